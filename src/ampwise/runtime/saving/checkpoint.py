"""Checkpoints from which training goes on bit for bit as if it had never stopped."""

import contextlib
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module

from ampwise._base.errors import RecordError, UsageError
from ampwise.runtime.saving.full_disk import explained
from ampwise.runtime.saving.plain_data import checksum, strangers
from ampwise.runtime.saving.random_state import restore_random_state, take_random_state
from ampwise.runtime.step.step import TrainStep

Path_ = str | os.PathLike[str]
FORMAT = "ampwise checkpoint"
VERSION = 1
"""A file with a higher one is refused."""


def save_checkpoint(
    path: Path_,
    *,
    step: TrainStep | None = None,
    model: Module | Sequence[Module] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write all that training goes on from: the step's, the model's and the random generators' state.

    The file takes its name only when it is complete: a run killed while it saves leaves the checkpoint that was there.
    ``torch.load(path, weights_only=True)`` reads it too.

    Args:
        path: the file.
        step: its optimizers, schedulers and loss scale are saved.
        model: one or several; None takes the step's ``modules``.
        extra: whatever else the loop needs, as numbers, texts, lists, dicts and tensors: the epoch, the best loss.

    Raises:
        UsageError: inside a window of accumulation; nothing is given to save; something is no plain data; or the file
            cannot be written. A checkpoint that was there stays.
    """
    models = _models(model, step)
    if step is None and not models:
        raise UsageError("save_checkpoint() was given nothing to save; give step=, model= or both")
    content = {
        "step": None if step is None else step.state_dict(),
        "model": [one.state_dict() for one in models],
        "random": take_random_state(),
        "extra": dict(extra or {}),
    }
    write_document(Path(path), content)


def load_checkpoint(
    path: Path_, *, step: TrainStep | None = None, model: Module | Sequence[Module] | None = None
) -> dict[str, Any]:
    """Put step, model and random generators in the state that was saved; returns what was given as ``extra``.

    The run that saved may have trained in another precision, with a loss scale or without. Nothing is changed unless
    everything fits. Runs no code from the file.

    Args:
        path: the file.
        step: a TrainStep with as many optimizers and schedulers as the one saved; None leaves its state out.
        model: as many models as were saved; None takes the step's ``modules``.

    Raises:
        RecordError: there is no such file; it is damaged, no checkpoint of ampwise's, of a newer version; or its parts
            do not fit.
    """
    document = read_document(Path(path))
    models = _models(model, step)
    faults = _model_faults(document["model"], models) if models else []
    if step is not None:
        faults += step.state_faults(document["step"]) if document["step"] else ["it was saved without step="]
    if faults:
        raise RecordError(f"{path} does not fit: {'; '.join(faults[:5])}; nothing was loaded")
    for one, state in zip(models, document["model"], strict=False):
        one.load_state_dict(state)
    if step is not None:
        step.load_state_dict(document["step"])
    restore_random_state(document["random"])
    return document["extra"]


def _models(model: Module | Sequence[Module] | None, step: TrainStep | None) -> tuple[Module, ...]:
    if model is None:
        return () if step is None else step.modules
    return (model,) if isinstance(model, Module) else tuple(model)


def write_document(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain data with its checksum; the file takes its name only when it is complete.

    Raises:
        UsageError: something is no plain data, or the file cannot be written.
    """
    found = [fault for name, one in content.items() for fault in strangers(one, name)]
    if found:
        if any(fault.endswith(".DTensor") for fault in found):
            raise UsageError(
                f"{path} would hold one rank's part of what is cut over several ({found[0]}): let every rank call "
                "save_sharded_checkpoint()"
            )
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise UsageError(
            f"this cannot be saved so that it can be loaded safely: {'; '.join(found[:5])}{more}. Possible are "
            "numbers, texts, lists, tuples, dicts and dense tensors, of exactly those types: turn a numpy number into "
            "a float, an object into its state"
        )
    header = {"format": FORMAT, "version": VERSION, "checksum": checksum(content)}
    _write_whole(path, {**header, **content})


def _write_whole(target: Path, document: Mapping[str, Any]) -> None:
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        torch.save(document, str(temporary))
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException as error:
        fault = explained(str(error), target.parent)  # while what was written is still there
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, (OSError, RuntimeError)):
            raise UsageError(f"cannot write the checkpoint {target}: {fault}; what was there is as it was") from error
        raise


def read_document(path: Path, *, also: Sequence[str] = ()) -> dict[str, Any]:
    """What ``write_document`` wrote: ``step``, ``model``, ``random`` and ``extra``.

    Args:
        path: the file.
        also: what else it must hold.

    Raises:
        RecordError: there is none, or it is damaged.
    """
    try:
        document = torch.load(str(path), map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise RecordError(f"there is no checkpoint {path}") from error
    except IsADirectoryError as error:
        raise RecordError(
            f"{path} is a folder, and save_checkpoint() writes a file; the folders of save_sharded_checkpoint() are "
            "loaded by load_sharded_checkpoint(). Nothing was loaded"
        ) from error
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise RecordError(
            f"{path} is no checkpoint or a damaged one (a cut-off copy, say): {reason}. Nothing was loaded"
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RecordError(
            f"{path} is a file of torch.save's, but no checkpoint of ampwise's. Load it with torch.load and hand its "
            "parts to model.load_state_dict, optimizer.load_state_dict and scaler.load_state_dict (torch.amp's state "
            "fits); nothing was loaded"
        )
    return _checked(path, document, names=("step", "model", "random", "extra", *also))


def _checked(path: Path, document: dict[str, Any], *, names: Sequence[str]) -> dict[str, Any]:
    version = document.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise RecordError(
            f"{path} is a checkpoint of version {version}; this ampwise reads {VERSION}: update ampwise. "
            "Nothing was loaded"
        )
    content = {name: document[name] for name in names if name in document}
    if len(content) < len(names) or checksum(content) != document.get("checksum"):
        raise RecordError(f"{path} is damaged: its checksum is not that of its content. Nothing was loaded")
    return content


def _model_faults(states: Sequence[Mapping[str, Any]], models: Sequence[Module]) -> list[str]:
    """Why the models cannot take over ``states``."""
    if len(states) != len(models):
        return [f"it holds {len(states)} models, {len(models)} are given"]
    return [fault for one, state in zip(models, states, strict=True) for fault in _state_faults(state, one)]


def _state_faults(state: Mapping[str, Any], model: Module) -> list[str]:
    mine, name = model.state_dict(), type(model).__name__
    faults = [f"{name} has no {key}" for key in state if key not in mine]
    faults += [f"{name}'s {key} is not in it" for key in mine if key not in state]
    for key in mine.keys() & state.keys():
        shapes = [tuple(getattr(one, "shape", ())) for one in (state[key], mine[key])]
        if shapes[0] != shapes[1]:
            faults.append(f"{key} has shape {shapes[0]} in it, {shapes[1]} in {name}")
    return faults
