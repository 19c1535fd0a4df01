"""The tag in the key of torch's compile caches: set by its public name it holds in one thread, here in all of them.

Private names: ``_config`` of torch's configuration modules, whose entries keep what was set in a thread apart from what
the environment said.
"""

from typing import Any

import torch
from torch.utils import _config_module


def cache_tag() -> str:
    """The tag in all threads that have set none themselves."""
    entry = _entry()
    return str(entry.default if _is_unset(entry.env_value_default) else entry.env_value_default)


def set_cache_tag(tag: str) -> None:
    """Set the tag in all threads that have set none themselves."""
    _entry().env_value_default = tag


def own_cache_tag() -> str | None:
    """The tag that this thread has set itself; None where it has not, or follows all threads again.

    ``torch.compiler.config.patch`` leaves the value that it found as the thread's own.
    """
    entry = _entry()
    if entry.user_override.get() == cache_tag():
        entry.user_override.set(_config_module._UNSET_SENTINEL)
    own = entry.user_override.get()
    return None if _is_unset(own) else str(own)


def _entry() -> Any:
    config: Any = torch.compiler.config
    return config._config["cache_key_tag"]


def _is_unset(value: Any) -> bool:
    return value is _config_module._UNSET_SENTINEL
