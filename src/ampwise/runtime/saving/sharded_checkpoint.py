"""Checkpoints that all ranks write together, each its shards, and that any number of ranks goes on from."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from ampwise._base.errors import RecordError, UsageError
from ampwise.compat.collectives import broadcast, gathered
from ampwise.compat.distributed import is_fsdp1, is_running, is_sharded, rank, world_size
from ampwise.compat.distributed_checkpoint import FailedError, StrangerError, read_into, tensors_in, write
from ampwise.runtime.casts.plan_places import without_wrappers
from ampwise.runtime.saving.checkpoint import Path_, read_document, write_document
from ampwise.runtime.saving.full_disk import explained
from ampwise.runtime.saving.random_state import restore_random_state, take_random_state
from ampwise.runtime.saving.shard_files import check_seen, damaged, digests_of_all, fault_of_index, first_of_all
from ampwise.runtime.step.step import TrainStep

_HEADER: Final = "ampwise"
Held = Mapping[str, tuple[torch.Size, torch.dtype]]
"""Shape and dtype of each tensor in a folder, by name."""


def save_sharded_checkpoint(
    folder: Path_, *, step: TrainStep, model: Module | None = None, extra: Mapping[str, Any] | None = None
) -> None:
    """Write all that training goes on from into a folder; every rank calls it and writes its own shards.

    Tensors lie there as torch.distributed.checkpoint writes them, by the names of parameters. The folder takes its name
    only when it is complete: until then a checkpoint of that name stays, and after a crash in between it is found.

    Args:
        folder: the same on all ranks, on a file system that all of them see; a checkpoint that is there is replaced.
        step: its optimizers, schedulers and loss scale are saved.
        model: None takes the one of the step's ``modules``.
        extra: what else the loop needs, as plain data; the first rank's is kept.

    Raises:
        UsageError: inside a window of accumulation; something is no plain data; the model is FSDP's first form; the
            folder holds something else; or it cannot be written. On every rank.
    """
    target = Path(folder).resolve()  # what a link names is replaced, not the link
    root = _model_of(step, model)
    state = step.state_dict()
    names = _names_of(root)
    groups = [_plain_groups(one, names) for one in step.optimizers]
    partial = target.with_name(f".{target.name}.part")
    tensors = dict(_tensors(root, step.optimizers, names))
    _as_first(lambda: _begin(partial, target))
    digests = _written(tensors, partial)
    content = {
        "step": {**state, "optimizers": groups},
        "model": [],
        "random": gathered(take_random_state()),
        "extra": dict(extra or {}),
        "files": digests,
    }
    try:
        _as_first(lambda: _finish(partial, target, content))
    except UsageError:
        shutil.rmtree(partial, ignore_errors=True)  # of a rank that wrote elsewhere
        raise


def load_sharded_checkpoint(folder: Path_, *, step: TrainStep, model: Module | None = None) -> dict[str, Any]:
    """Put step and model in the state that was saved, on as many ranks as there are now; returns the ``extra``.

    Random generators are put back where the number of ranks is the one that saved; on another they stay as they are.
    Runs no code from the folder. Every rank calls it.

    Args:
        folder: as it was saved.
        step: a TrainStep with as many optimizers and schedulers, over parameters of the same names.
        model: None takes the one of the step's ``modules``.

    Raises:
        RecordError: there is no such checkpoint, it is damaged, or does not fit: nothing was loaded then, on any rank;
            or the disk fails while it is read.
    """
    place, document, held, fault = _looked_at(Path(folder).resolve())
    root = _model_of(step, model)
    names = _names_of(root)
    faults = [fault] if fault else [*damaged(place, document["files"]), *_faults(step, root, names, document, held)]
    found = first_of_all(faults)
    if found:
        raise RecordError(f"{folder} cannot be loaded: {'; '.join(found[:5])}. Nothing was loaded")
    saved = document["step"]
    tensors = dict(_model_tensors(root))
    states = _empty_states(step.optimizers, names, held)
    try:
        read_into({**tensors, **states}, place)
    except FailedError as error:
        raise RecordError(f"{folder} could not be read to its end: {error}. Part of the model may be loaded") from error
    loaded = [_state_dict(one, index, names, saved, states) for index, one in enumerate(step.optimizers)]
    step.load_state_dict({**saved, "optimizers": loaded})
    if len(document["random"]) == world_size():
        restore_random_state(document["random"][rank()])
    return document["extra"]


def _looked_at(target: Path) -> tuple[Path, dict[str, Any], Held, str | None]:
    """The folder that is complete, what its header and its index say; or why it cannot be read."""
    try:
        place = _complete_one(target)
        document = read_document(place / _HEADER, also=("files",))
        fault = fault_of_index(place, document["files"])
        return place, document, {} if fault else _held(place), fault
    except (RecordError, OSError) as error:
        return target, {}, {}, str(error).removesuffix(". Nothing was loaded").removesuffix("; nothing was loaded")


def _written(tensors: dict[str, Any], partial: Path) -> dict[str, str]:
    """The digests of all files, once every rank has written its own.

    Raises:
        UsageError: one of them could not; on every rank, and nothing is left of it.
    """
    try:
        write(tensors, partial)
    except FailedError as error:
        digests, faults = {}, [explained(str(error), partial.parent)]
    else:
        digests, faults = digests_of_all(partial)
    if faults:
        if rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise UsageError(f"cannot write the checkpoint: {'; '.join(faults[:5])}; what was there is as it was")
    return digests


def _model_of(step: TrainStep, model: Module | None) -> Module:
    models = step.modules if model is None else (model,)
    if len(models) != 1:
        raise UsageError(f"a sharded checkpoint is of one model, and {len(models)} are given; give model=")
    if any(map(is_fsdp1, models[0].parameters())):
        raise UsageError(
            "FullyShardedDataParallel, FSDP's first form, joins parameters, and a sharded checkpoint knows each by its "
            "name. Use fully_shard(), or let every rank save_checkpoint() a file of its own"
        )
    return models[0]


def _names_of(model: Module) -> dict[int, str]:
    """Every parameter's name, without those that wrappers put in front, by ``id``."""
    return {id(param): without_wrappers(name) for name, param in model.named_parameters()}


def _model_tensors(model: Module) -> Iterator[tuple[str, Tensor]]:
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            yield f"model.{without_wrappers(name)}", value


def _tensors(model: Module, optimizers: Sequence[Optimizer], names: Mapping[int, str]) -> Iterator[tuple[str, Tensor]]:
    yield from _model_tensors(model)
    for index, optimizer in enumerate(optimizers):
        for param, state in optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    yield f"optimizers.{index}.{_name(names, param)}.{key}", value


def _name(names: Mapping[int, str], param: Tensor) -> str:
    name = names.get(id(param))
    if name is None:
        raise UsageError(
            "an optimizer has a parameter that the model has not; a sharded checkpoint knows it by its name"
        )
    return name


def _plain_groups(optimizer: Optimizer, names: Mapping[int, str]) -> dict[str, Any]:
    """The groups' settings, with names for parameters, and what of the state is no tensor."""
    groups = [
        {**_settings(group), "params": [_name(names, param) for param in group["params"]]}
        for group in optimizer.param_groups
    ]
    rest = {
        _name(names, param): {key: value for key, value in state.items() if not isinstance(value, Tensor)}
        for param, state in optimizer.state.items()
    }
    return {"param_groups": groups, "rest": rest}


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in group.items() if key != "params"}
    return {key: float(value) if key == "lr" and isinstance(value, Tensor) else value for key, value in kept.items()}


def _held(place: Path) -> Held:
    try:
        return tensors_in(place)
    except StrangerError as error:
        raise RecordError(f"{place} holds what no checkpoint is made of: {error}. Nothing was loaded") from error
    except Exception as error:
        raise RecordError(f"the index of {place} cannot be read: {error}. Nothing was loaded") from error


def _faults(
    step: TrainStep,
    model: Module,
    names: Mapping[int, str],
    document: Mapping[str, Any],
    held: Held,
) -> list[str]:
    """Why step and model cannot take over what was saved."""
    saved = document["step"]
    faults = step.state_faults(saved)
    if not faults:
        for index, (one, state) in enumerate(zip(step.optimizers, saved["optimizers"], strict=True)):
            mine = [[_name(names, param) for param in group["params"]] for group in one.param_groups]
            if mine != [group["params"] for group in state["param_groups"]]:
                faults.append(f"optimizers[{index}] has other parameters, or in another order")
    for name, value in _model_tensors(model):
        if name not in held:
            faults.append(f"{name} is not in it")
        elif held[name][0] != value.shape:
            faults.append(f"{name} has shape {tuple(value.shape)}, in it {tuple(held[name][0])}")
    return faults


def _empty_states(optimizers: Sequence[Optimizer], names: Mapping[int, str], held: Held) -> dict[str, Tensor]:
    """Tensors for the optimizers' state, cut as the parameters are now."""
    made: dict[str, Tensor] = {}
    for index, optimizer in enumerate(optimizers):
        for param in (param for group in optimizer.param_groups for param in group["params"]):
            prefix = f"optimizers.{index}.{_name(names, param)}."
            for name in (one for one in held if one.startswith(prefix) and "." not in one[len(prefix) :]):
                size, dtype = held[name]
                is_cut = is_sharded(param) and size == param.shape
                made[name] = torch.empty_like(param, dtype=dtype) if is_cut else torch.empty(size, dtype=dtype)
    return made


def _state_dict(
    optimizer: Optimizer, index: int, names: Mapping[int, str], saved: Mapping[str, Any], states: Mapping[str, Tensor]
) -> dict[str, Any]:
    """What the optimizer's ``load_state_dict`` takes."""
    given = saved["optimizers"][index]
    params = [param for group in optimizer.param_groups for param in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for place, param in enumerate(params):
        name = _name(names, param)
        prefix = f"optimizers.{index}.{name}."
        own = {key[len(prefix) :]: value for key, value in states.items() if key.startswith(prefix)}
        own = {key: value for key, value in own.items() if "." not in key} | given["rest"].get(name, {})
        if own:
            state[place] = own
    groups: list[dict[str, Any]] = []
    count = 0
    for group in given["param_groups"]:
        places = list(range(count, count + len(group["params"])))
        count += len(places)
        groups.append({**group, "params": places})
    return {"state": state, "param_groups": groups}


def _as_first(do: Callable[[], None]) -> None:
    """Let the first rank do something that all wait for; where it fails, all fail."""
    fault: list[str | None] = [None]
    if rank() == 0:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - whatever it is, the others must not wait for it
            fault = [str(error) if isinstance(error, (OSError, UsageError)) else f"{type(error).__name__}: {error}"]
    told = broadcast(fault[0]) if is_running() else fault[0]
    if told is not None:
        raise UsageError(f"cannot write the checkpoint: {told}")


def _begin(partial: Path, target: Path) -> None:
    is_taken = target.exists() and not (target / _HEADER).exists()
    if is_taken and not (target.is_dir() and not any(target.iterdir())):
        raise UsageError(
            f"{target} is there and no sharded checkpoint, which is a folder of its own: give another name"
        )
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)


def _old(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


def _finish(partial: Path, target: Path, content: Mapping[str, Any]) -> None:
    """Give the complete folder its name; at every instant one of that name, or the old one, is complete."""
    old = _old(target)
    try:
        check_seen(partial, content["files"])
        write_document(partial / _HEADER, content)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _complete_one(target: Path) -> Path:
    for place in (target, _old(target)):
        if (place / _HEADER).exists():
            return place
    if target.is_file():
        raise RecordError(f"{target} is one file: what save_checkpoint() wrote, load_checkpoint() loads")
    raise RecordError(f"there is no sharded checkpoint {target}")
