"""Runs a script on an imaginary GPU, in this process, and says what its training step takes."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Final

import torch

from ampwise.estimate.allocator import AllocatorSettings, CachingAllocator
from ampwise.estimate.casts import ImaginaryAutocast
from ampwise.estimate.composites import choose_as_cuda_does
from ampwise.estimate.device import ImaginaryDevice
from ampwise.estimate.ledger import Ledger
from ampwise.estimate.notes import Notes
from ampwise.estimate.order import GPUS_PER_NODE, GpuSpec
from ampwise.estimate.picture import picture
from ampwise.estimate.remedies import remedies_of
from ampwise.estimate.whereabouts import Whereabouts
from ampwise.formats.hardware import cublas_workspace_bytes
from ampwise.interpose.imaginary_gpu import ImaginaryGpu, stand_in_for_cuda
from ampwise.interpose.imaginary_processes import Processes, stand_in_for_processes
from ampwise.interpose.imaginary_tensor import stand_in_for_tensors
from ampwise.interpose.scripts_calls import stand_in_for_scripts_calls
from ampwise.interpose.seam import intercept
from ampwise.interpose.stand_in import put
from ampwise.interpose.threads import RUN
from ampwise.observe.events import BUS, EventBus
from ampwise.observe.modules import ModuleStack
from ampwise.plan.operators import cast_lists
from ampwise.records.estimate import Estimate

MODULES: Final = ("torch._dynamo", "torch.distributed.tensor", "torch.distributed.fsdp", "torch.nn.parallel")
"""What is loaded before anything of torch is stood in for."""


class Imagination:
    """An imaginary GPU in effect, and what is known of its memory so far."""

    def __init__(self, gpu: GpuSpec, *, bus: EventBus, settings: AllocatorSettings, has_workspaces: bool) -> None:
        self.notes = Notes()
        self.ledger = Ledger(CachingAllocator(settings))
        self.modules = ModuleStack()
        self.whereabouts = Whereabouts(bus, modules=self.modules, ledger=self.ledger)
        self.device = ImaginaryDevice(
            self.ledger,
            self.notes,
            spot=self.whereabouts.spot,
            workspace_bytes=cublas_workspace_bytes(gpu.compute_capability) if has_workspaces else 0,
        )
        self._gpu = gpu

    def estimate(self, *, precision: str, is_lower_bound: bool = False, has_remedies: bool = True) -> Estimate:
        """What a step takes, by what was seen so far; with what to change where it does not fit."""
        made = picture(
            self.ledger,
            self.whereabouts,
            precision=precision,
            capacity_bytes=self._gpu.capacity_bytes,
            context_bytes=self._gpu.context_bytes,
            assumptions=self.notes.texts,
            is_lower_bound=is_lower_bound,
        )
        if made.fits is not False or not has_remedies:
            return made
        is_expandable = self.ledger.allocator.settings.expandable_segments
        return replace(made, remedies=remedies_of(self.ledger, self.whereabouts, is_expandable=is_expandable))


@contextmanager
def imagined(
    gpu: GpuSpec,
    *,
    bus: EventBus = BUS,
    settings: AllocatorSettings | None = None,
    has_workspaces: bool = True,
    world_size: int | None = None,
) -> Generator[Imagination]:
    """Let this process believe that it has ``gpu``; for a process of its own, since all of torch is affected.

    Args:
        gpu: What is imagined.
        bus: Where the training loop's events are published.
        settings: The caching allocator's.
        has_workspaces: Whether cuBLAS takes workspaces from the allocator, as it does since torch 1.12.
        world_size: How many processes train together, of which this is the first; None leaves it to the script.
    """
    for module in MODULES:
        import_module(module)  # they keep tables of torch's names, which are about to be stood in for
    imagination = Imagination(gpu, bus=bus, settings=settings or AllocatorSettings(), has_workspaces=has_workspaces)
    shown = ImaginaryGpu(
        name=gpu.name,
        compute_capability=gpu.compute_capability or (9, 0),
        total_bytes=gpu.total_bytes,
        num_gpus=min(world_size or 1, GPUS_PER_NODE),
    )
    processes = Processes(
        world_size=world_size,
        assume=imagination.notes.assume,
        resized=lambda storage: imagination.ledger.resized(storage, lambda: imagination.whereabouts.spot("resize_")),
        holding_gradients=imagination.whereabouts.holding_gradients,
    )
    lists = cast_lists(torch.__version__).devices["cuda"]
    autocast = ImaginaryAutocast(dict(lists), casting=imagination.device.casting)
    with ExitStack() as stack:
        stack.callback(stand_in_for_cuda(shown, _Meter(imagination.ledger)))
        stack.callback(stand_in_for_tensors())
        stack.callback(put(stand_in_for_scripts_calls(imagination.notes.assume)))
        stack.callback(put(stand_in_for_processes(processes)))
        stack.callback(intercept(RUN, imagination.device.in_thread))
        stack.callback(choose_as_cuda_does(gpu.compute_capability, imagination.notes))
        stack.callback(autocast.start())
        stack.enter_context(imagination.device.entered())
        stack.enter_context(imagination.modules)
        stack.enter_context(imagination.whereabouts)
        yield imagination


@dataclass(frozen=True, slots=True)
class _Meter:
    """What ``torch.cuda``'s memory functions ask."""

    ledger: Ledger

    @property
    def allocator(self) -> CachingAllocator:
        return self.ledger.allocator

    def allocated_bytes(self) -> int:
        return self.allocator.allocated_bytes

    def reserved_bytes(self) -> int:
        return self.allocator.reserved_bytes

    def peak_allocated_bytes(self) -> int:
        return self.allocator.peak_allocated_bytes

    def peak_reserved_bytes(self) -> int:
        return self.allocator.peak_reserved_bytes

    def empty_cache(self) -> None:
        self.ledger.empty_cache()
