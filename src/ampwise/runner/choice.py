"""Chooses the precision of a run once, for all its processes on this machine."""

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampwise._base.errors import CannotRunError
from ampwise.records.files import from_json, load, save, to_json
from ampwise.runner.spec import LaunchSpec
from ampwise.runner.store import first_word, store_of, team_of

if TYPE_CHECKING:
    import torch

    from ampwise.runtime.hardware.device import Choice


def choose_once(spec: LaunchSpec, *, device: "torch.device", environ: Mapping[str, str] | None = None) -> "Choice":
    """The precision this run computes in: the one another of its processes chose, or else chosen here.

    A measurement may come out differently on a busy machine, and ranks that train together must agree.

    Args:
        spec: What was asked for.
        device: Where this process computes.
        environ: Says whether torchrun started this process together with others, maybe on other machines.

    Raises:
        CannotRunError: the machine cannot compute in the precision asked for, or emulate it.
    """
    from ampwise.runtime.hardware.device import Choice, choose_precision

    if spec.emulate is not None:
        return _emulated(spec.emulate, device)
    shared = Path(spec.parts, "choice.json") if spec.parts is not None and Path(spec.parts).is_dir() else None
    if shared is not None and shared.exists():
        return load(shared, Choice)
    choice = choose_precision(spec.precision, device=device)
    store = _store(spec, environ or {}) if spec.precision == "auto" else None
    if store is not None:
        return from_json(first_word(store, "choice", to_json(choice)), Choice)
    if shared is None:
        return choice
    return load(shared, Choice) if not _publish(choice, shared) else choice


def _store(spec: LaunchSpec, environ: Mapping[str, str]) -> Any:
    """Where the ranks leave each other word; None where there is nothing of the kind."""
    if spec.store is not None:
        return store_of(spec.store)
    team = team_of(environ)
    return None if team is None else team.store


def _emulated(name: str, device: "torch.device") -> "Choice":
    from ampwise.emulate.recipes import RECIPES
    from ampwise.runtime.hardware.device import Choice

    if device.type != "cpu":
        raise CannotRunError(
            f"--emulate {name}: the CPU is what emulates, and this run is on {device}; add --device cpu, or compute on "
            f"{device} itself with --precision"
        )
    reason = f"asked for; {RECIPES[name].words}"
    return Choice(precision=name, reason=reason, slow_factor=None, device="cpu", emulated=True)


def _publish(choice: "Choice", shared: Path) -> bool:
    """Put the choice where the other processes look; False where one of them was first."""
    descriptor, name = tempfile.mkstemp(dir=shared.parent)
    os.close(descriptor)
    own = Path(name)
    try:
        save(choice, own)
        with suppress(FileExistsError):
            shared.hardlink_to(own)
            return True
        return False
    finally:
        own.unlink()


def own_gpu(environ: Mapping[str, str]) -> "torch.device | None":
    """The GPU that belongs to this rank of a launcher's; None where no launcher says."""
    import torch

    local_rank = environ.get("LOCAL_RANK", "")
    is_there = local_rank.isdecimal() and torch.cuda.is_available() and int(local_rank) < torch.cuda.device_count()
    return torch.device("cuda", int(local_rank)) if is_there else None
