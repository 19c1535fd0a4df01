"""What ``torch.cuda`` and ``torch.accelerator`` answer while a GPU is imagined: one, idle, as large as told."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Protocol, Self

import torch

from ampwise.compat.imaginary import GPU
from ampwise.interpose.seam import Undo
from ampwise.interpose.stand_in import StandIn, put


class Meter(Protocol):
    """Knows what the imaginary allocator holds."""

    def allocated_bytes(self) -> int: ...  # noqa: D102 - torch's own names
    def reserved_bytes(self) -> int: ...  # noqa: D102
    def peak_allocated_bytes(self) -> int: ...  # noqa: D102
    def peak_reserved_bytes(self) -> int: ...  # noqa: D102
    def empty_cache(self) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class ImaginaryGpu:
    """The GPU that is imagined."""

    name: str
    compute_capability: tuple[int, int]
    total_bytes: int
    num_gpus: int = 1
    """How many of them the process sees; it uses the first."""

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:  # noqa: FBT001, FBT002 # torch's own signature
        """What ``torch.cuda`` says: tensors in bf16 can be made on a GPU without hardware for it too."""
        return including_emulation or self.compute_capability >= (8, 0)


def stand_in_for_cuda(gpu: ImaginaryGpu, meter: Meter) -> Undo:
    """Let torch believe in ``gpu`` until the returned undo is called."""
    return put([*_cuda(gpu, meter), *_accelerator(gpu, meter), *_elsewhere()])


class _Stream:
    """A stream or an event on which nothing ever waits."""

    device = GPU
    device_index = 0
    stream_id = 0
    cuda_stream = 0
    priority = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def query(self) -> bool:
        """Whether all its work is done."""
        return True

    def is_capturing(self) -> bool:
        """Whether a graph is being captured."""
        return False

    def elapsed_time(self, _: Any) -> float:
        """Milliseconds between two events; nothing takes time here."""
        return 0.0

    def record_event(self, event: Any = None) -> Any:
        """An event that has happened."""
        return event or _Event()

    def _nothing(self, *_: Any, **__: Any) -> None:
        pass

    synchronize = wait = wait_event = wait_stream = record = _nothing


class _Event(_Stream):
    """An event that has happened."""


class _Device(AbstractContextManager[None]):
    """``with torch.cuda.device(0)``: there is one, and it is current."""

    def __init__(self, *_: Any) -> None:
        self.idx = 0
        self.prev_idx = 0

    def __exit__(self, *exc: object) -> None:
        pass


class _IsGenerator(type):
    """Answers ``isinstance(generator, torch.Generator)`` as the class stood in for would."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _HOST_GENERATOR)


class _Generator(metaclass=_IsGenerator):
    """Makes generators on the host, wherever they are asked for: the numbers they draw are never seen."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:  # torch's own class comes out
        _ = device
        return _HOST_GENERATOR("cpu")


_HOST_GENERATOR: Final = torch.Generator


def _always(answer: Any) -> Callable[..., Any]:
    def answering(*_: Any, **__: Any) -> Any:
        return answer

    return answering


def _asking(ask: Callable[[], Any]) -> Callable[..., Any]:
    """``ask``, whatever arguments it is called with: they name a device, and there is one."""

    def answering(*_: Any, **__: Any) -> Any:
        return ask()

    return answering


_NOTHING: Final = (
    "_lazy_init init synchronize set_device manual_seed manual_seed_all seed seed_all set_rng_state set_rng_state_all "
    "ipc_collect set_stream _sleep set_per_process_memory_fraction set_sync_debug_mode reset_accumulated_memory_stats"
)
_TRUE: Final = "is_available is_initialized"
_FALSE: Final = "is_current_stream_capturing _is_in_bad_fork can_device_access_peer"
_ZERO: Final = "current_device initial_seed get_sync_debug_mode utilization memory_usage"


def _cuda(gpu: ImaginaryGpu, meter: Meter) -> Iterator[StandIn]:
    properties = SimpleNamespace(
        name=gpu.name,
        major=gpu.compute_capability[0],
        minor=gpu.compute_capability[1],
        total_memory=gpu.total_bytes,
        multi_processor_count=108,
        warp_size=32,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        gcnArchName="",
    )
    state = torch.zeros(16, dtype=torch.uint8)
    answers: dict[str, Any] = {
        **dict.fromkeys(_NOTHING.split(), _always(None)),
        **dict.fromkeys(_TRUE.split(), _always(True)),
        **dict.fromkeys(_FALSE.split(), _always(False)),
        **dict.fromkeys(_ZERO.split(), _always(0)),
        "device_count": _always(gpu.num_gpus),
        "get_device_capability": _always(gpu.compute_capability),
        "get_device_name": _always(gpu.name),
        "get_device_properties": _always(properties),
        "get_arch_list": _always([f"sm_{gpu.compute_capability[0]}{gpu.compute_capability[1]}"]),
        "is_bf16_supported": gpu.is_bf16_supported,
        "is_tf32_supported": _always(gpu.compute_capability >= (8, 0)),
        "get_rng_state": _asking(state.clone),
        "get_rng_state_all": _asking(lambda: [state.clone()]),
        "mem_get_info": _asking(lambda: (gpu.total_bytes - meter.reserved_bytes(), gpu.total_bytes)),
        "stream": _asking(nullcontext),
        "Stream": _Stream,
        "ExternalStream": _Stream,
        "Event": _Event,
        "device": _Device,
        "device_of": _Device,
        "current_stream": _asking(_Stream),
        "default_stream": _asking(_Stream),
        "default_generators": (torch.default_generator,),
        **_memory(meter),
    }
    for name, answer in answers.items():
        yield StandIn(owner="torch.cuda", attribute=name, make=_always(answer))
        for module in (torch.cuda.random, torch.cuda.memory):  # where some scripts ask instead
            if hasattr(module, name):
                yield StandIn(owner=module.__name__, attribute=name, make=_always(answer))
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        yield StandIn(owner="torch.cuda.nvtx", attribute=name, make=_always(_always(None)))
    yield StandIn(owner="torch.cuda.nvtx", attribute="range", make=_always(_asking(nullcontext)))


def _memory(meter: Meter) -> dict[str, Callable[..., Any]]:
    def stats(*_: Any, **__: Any) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": meter.allocated_bytes(),
            "allocated_bytes.all.peak": meter.peak_allocated_bytes(),
            "reserved_bytes.all.current": meter.reserved_bytes(),
            "reserved_bytes.all.peak": meter.peak_reserved_bytes(),
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    return {
        "memory_allocated": _asking(meter.allocated_bytes),
        "memory_reserved": _asking(meter.reserved_bytes),
        "memory_cached": _asking(meter.reserved_bytes),
        "max_memory_allocated": _asking(meter.peak_allocated_bytes),
        "max_memory_reserved": _asking(meter.peak_reserved_bytes),
        "max_memory_cached": _asking(meter.peak_reserved_bytes),
        "memory_stats": stats,
        "memory_summary": _always("(no memory summary: this GPU is imagined)"),
        "memory_snapshot": _always([]),
        "empty_cache": _asking(meter.empty_cache),
        # the peaks are the estimate's own answer: a script that resets them does not lower it
        **dict.fromkeys(
            ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"), _always(None)
        ),
    }


def _accelerator(gpu: ImaginaryGpu, meter: Meter) -> Iterator[StandIn]:
    nothing = "set_device_index set_device_idx set_stream synchronize reset_peak_memory_stats"
    answers: dict[str, Any] = {
        **dict.fromkeys(nothing.split(), _always(None)),
        "current_accelerator": _always(torch.device("cuda")),
        "is_available": _always(True),
        "device_count": _always(gpu.num_gpus),
        "current_device_index": _always(0),
        "current_device_idx": _always(0),
        "current_stream": _asking(_Stream),
        "empty_cache": _asking(meter.empty_cache),
    }
    for name, answer in answers.items():
        yield StandIn(owner="torch.accelerator", attribute=name, make=_always(answer))


def _elsewhere() -> Iterator[StandIn]:
    yield StandIn(owner="torch.cuda.amp.common", attribute="amp_definitely_not_available", make=_always(_always(False)))
    yield StandIn(owner="torch", attribute="Generator", make=_always(_Generator))
