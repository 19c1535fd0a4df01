"""Keeps the hidden loss scale beside the script's checkpoints, which know nothing of it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampwise._base.errors import AmpwiseError, RecordError
from ampwise._base.files import write_atomically
from ampwise.interpose.saving import PATH_FUNCTIONS
from ampwise.interpose.seam import Undo, intercept, undo_all
from ampwise.observe.checkpoints import holds_optimizer_state
from ampwise.runtime.scaling.loss_scale import LossScale, decode, encode

if TYPE_CHECKING:
    from ampwise.runner.hidden_scale import HiddenScale

SUFFIX = ".ampwise.json"
VERSION = 1
_ROWS = {(function.row.owner, function.row.attribute): function.row for function in PATH_FUNCTIONS}
SAVE, LOAD = _ROWS["torch", "save"], _ROWS["torch", "load"]


def keep_scale_beside_checkpoints(scaling: "HiddenScale", *, note: Callable[[str], None]) -> Undo:
    """Write the scale beside every checkpoint with an optimizer's state; pick it up when one is loaded.

    Args:
        scaling: Whose state it is.
        note: Told whether a resumed run's scale was restored or restarted.
    """

    def save(proceed: Callable[..., Any], obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        result = proceed(obj, f, *args, **kwargs)
        path = sidecar_of(f)
        if path is not None and holds_optimizer_state(obj):
            try:
                write_sidecar(path, scaling.state)
            except AmpwiseError as error:
                note(f"the loss scale was not kept: {error}")
        return result

    def load(proceed: Callable[..., Any], f: Any, *args: Any, **kwargs: Any) -> Any:
        result = proceed(f, *args, **kwargs)
        path = sidecar_of(f)
        if path is not None and (path.exists() or holds_optimizer_state(result)):
            note(_resume(scaling, path))
        return result

    undos = intercept(SAVE, save), intercept(LOAD, load)
    return lambda: undo_all(undos)


def sidecar_of(file: Any) -> Path | None:
    """Where the scale of a checkpoint lies; None for a file object."""
    return Path(f"{os.fspath(file)}{SUFFIX}") if isinstance(file, (str, os.PathLike)) else None


def write_sidecar(path: Path, state: LossScale) -> None:
    """Write a loss scale's state, whole or not at all."""
    write_atomically(path, json.dumps({"version": VERSION, "loss_scale": encode(state)}, indent=2) + "\n")


def read_sidecar(path: Path) -> LossScale:
    """The state that a sidecar holds.

    Raises:
        RecordError: it is corrupt or of a newer version.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        version, fields = data["version"], data["loss_scale"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{path} is not a loss scale's file: {error!r}") from error
    if version != VERSION:
        raise RecordError(f"{path} has version {version}; this ampwise reads {VERSION}: update it, or delete the file")
    return decode(fields)


def _resume(scaling: "HiddenScale", path: Path) -> str:
    if not path.exists():
        return f"loss scale restarted at {scaling.scale:g}: there is no {path}"
    try:
        scaling.state = read_sidecar(path)
    except AmpwiseError as error:
        return f"loss scale restarted at {scaling.scale:g}: {error}"
    return f"loss scale {scaling.scale:g} restored from {path}"
