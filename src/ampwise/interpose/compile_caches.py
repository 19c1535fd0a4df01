"""Tells torch's compiler that kernels were replaced: what was compiled before would pass them by."""

import sys
from collections.abc import Callable

import torch

from ampwise.compat.compile_caches import cache_tag, own_cache_tag, set_cache_tag
from ampwise.interpose.seam import Undo, once

Change = Callable[[list[str]], list[str]]


def cache_tags() -> list[str]:
    """The tags that the compile caches' key carries now, in all threads."""
    return _parts(cache_tag())


def tag_caches(tag: str) -> Undo:
    """Give torch's compile caches a key of their own until the undo is called; compiled functions are compiled anew."""
    _change_tags(lambda tags: [*tags, tag])

    def undo() -> None:
        _change_tags(lambda tags: [one for one in tags if one != tag])

    return once(undo)


def _change_tags(change: Change) -> None:
    own = own_cache_tag()
    set_cache_tag("+".join(change(cache_tags())))
    if own is not None:  # a tag of the user's own goes before that of all threads
        torch.compiler.config.cache_key_tag = "+".join(change(_parts(own)))
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def _parts(tag: str) -> list[str]:
    return tag.split("+") if tag else []
