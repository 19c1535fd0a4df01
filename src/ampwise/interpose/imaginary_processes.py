"""What ``torch.distributed`` answers while one process of several is imagined: nobody is there to talk to.

torch's own "fake" backend carries no numbers, so that what one process holds is all there is: the gradient buckets of
DistributedDataParallel, the shards and the gathered layers of FSDP2. What reads a message's numbers is stood in for.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import torch

from ampwise.compat.data_parallel import reduce_alone
from ampwise.compat.imaginary import left_to_torch
from ampwise.interpose.stand_in import StandIn

_DISTRIBUTED: Final = "torch.distributed"
_C10D: Final = "torch.distributed.distributed_c10d"
_DDP: Final = "torch.nn.parallel.distributed:DistributedDataParallel"
_FAKE: Final = "fake"
"""torch's name of the backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """What an imaginary run is to know of the processes it stands for."""

    world_size: int | None
    """How many were asked for; None leaves it to the script."""
    assume: Callable[[str], None]
    """Told of what is taken for something else."""
    resized: Callable[[torch.UntypedStorage], None]
    """Told of a storage that was given another size, as FSDP2 does with its gathered layers."""
    holding_gradients: Callable[[], AbstractContextManager[None]]
    """What is made within it and stays holds gradients."""


def stand_in_for_processes(processes: Processes) -> Iterator[StandIn]:
    """Stand-ins for starting processes, for what they tell each other, and for what DDP and FSDP2 ask of them."""
    for owner in (_DISTRIBUTED, _C10D, "torch.distributed.device_mesh"):
        yield StandIn(owner=owner, attribute="init_process_group", make=lambda start: _start(start, processes))
    for owner in (_DISTRIBUTED, _C10D):
        yield StandIn(owner=owner, attribute="new_group", make=_new_group)
        yield StandIn(owner=owner, attribute="is_nccl_available", make=lambda _: _true)
        for name, stand_in in _OBJECTS.items():
            yield StandIn(owner=owner, attribute=name, make=lambda _, stand_in=stand_in: stand_in)
    # it compares with what the others sent
    yield StandIn(owner=_DISTRIBUTED, attribute="_verify_params_across_processes", make=lambda _: _nothing)
    yield StandIn(owner="torch.multiprocessing", attribute="spawn", make=lambda _: _spawn(processes))
    yield StandIn(owner="torch._C", attribute="_get_accelerator", make=lambda _: _accelerator)
    yield from _data_parallel(processes)
    yield StandIn(
        owner="torch.distributed.tensor._sharding_prop:ShardingPropagator",
        attribute="_propagate_tensor_meta_non_cached",
        make=_left_to_torch,
    )
    yield StandIn(owner="torch:UntypedStorage", attribute="resize_", make=lambda resize: _resize(resize, processes))


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _true() -> bool:
    return True


def _accelerator(*_: Any) -> torch.device:
    return torch.device("cuda")


def _start(original: Callable[..., None], processes: Processes) -> Callable[..., None]:
    def start(*args: Any, **kwargs: Any) -> None:
        asked = kwargs.get("world_size", args[3] if len(args) > 3 else -1)
        world_size = processes.world_size or (asked if isinstance(asked, int) and asked > 0 else 1)
        more = "" if processes.world_size is not None else "; for more: --world-size N"
        processes.assume(
            f"one process of {world_size} that train together{more}. NCCL's own buffers are left out, and streams "
            "share one pool of memory"
        )
        original(_FAKE, rank=0, world_size=world_size)

    return start


def _new_group(original: Callable[..., Any]) -> Callable[..., Any]:
    def new_group(ranks: Any = None, *_: Any, **__: Any) -> Any:
        return original(ranks)  # of the backend that there is

    return new_group


def _spawn(processes: Processes) -> Callable[..., None]:
    """``torch.multiprocessing.spawn`` that runs the first process here."""

    def spawn(function: Callable[..., Any], args: Any = (), *_: Any, **__: Any) -> None:
        processes.assume("of the processes that torch.multiprocessing.spawn starts the first is imagined")
        function(0, *args)

    return spawn


def _gather(objects: list[Any], given: Any, *_: Any, **__: Any) -> None:
    objects[:] = [given] * len(objects)


def _gather_to_one(given: Any, objects: list[Any] | None = None, *_: Any, **__: Any) -> None:
    if objects is not None:
        objects[:] = [given] * len(objects)


def _scatter(objects: list[Any], given: list[Any] | None = None, *_: Any, **__: Any) -> None:
    if given:
        objects[0] = given[0]


_OBJECTS: Final = {
    "all_gather_object": _gather,
    "gather_object": _gather_to_one,
    "scatter_object_list": _scatter,
    "broadcast_object_list": _nothing,
    "monitored_barrier": _nothing,
}
"""What sends Python's objects: every process has what this one has."""


def _data_parallel(processes: Processes) -> Iterator[StandIn]:
    """The reducer's buckets hold gradients; and its all-reduce, which looks at what came back, is a hook of ours."""

    def helper(original: Callable[..., None]) -> Callable[..., None]:
        def init(wrapped: Any, *args: Any, **kwargs: Any) -> None:
            with processes.holding_gradients():
                original(wrapped, *args, **kwargs)
            reduce_alone(wrapped.reducer)

        return init

    def rebuild(original: Callable[..., bool]) -> Callable[..., bool]:
        def rebuilt(reducer: Any) -> bool:
            with processes.holding_gradients():
                return original(reducer)

        return rebuilt

    def register(*_: Any, **__: Any) -> None:
        processes.assume("the communication hook of DistributedDataParallel is left out")

    yield StandIn(owner=_DDP, attribute="_ddp_init_helper", make=helper)
    yield StandIn(owner=_DDP, attribute="register_comm_hook", make=lambda _: register)
    yield StandIn(owner=_DDP, attribute="_register_builtin_comm_hook", make=lambda _: register)
    yield StandIn(owner="torch._C._distributed_c10d:Reducer", attribute="_rebuild_buckets", make=rebuild)


def _left_to_torch(original: Callable[..., Any]) -> Callable[..., Any]:
    def propagate(*args: Any, **kwargs: Any) -> Any:
        with left_to_torch():
            return original(*args, **kwargs)

    return propagate


def _resize(original: Callable[..., Any], processes: Processes) -> Callable[..., Any]:
    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        processes.resized(storage)
        return result

    return resize_
