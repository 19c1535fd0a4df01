"""Which instruments a run can be watched with: their names, how each is made, and what it fills of the run's record."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from ampwise._base.errors import UsageError
from ampwise._base.suggest import not_one_of
from ampwise.observe.events import EventBus
from ampwise.observe.modules import ModuleStack
from ampwise.runner.spec import LaunchSpec

_EVERY: Final = 9
"""One step in so many has its tensors measured."""
_NUM_STEPS: Final = 10_000
"""As far as the steps are told that others slow."""


class Instrument(AbstractContextManager[Any], Protocol):
    """Watches a loop while entered."""

    @property
    def slowed_steps(self) -> frozenset[int]:
        """Indices of the steps that it made slower, so that their time says nothing."""
        ...

    def record(self) -> Any:
        """Its part of the run's record."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InstrumentRow:
    """One instrument. Those that watch operators have steps of their own, where no other disturbs them."""

    name: str
    field: str
    """Of ``RunRecord``."""
    make: Callable[[EventBus, LaunchSpec, ModuleStack], Instrument]
    """The stack of modules being called is shared: all instruments of a run call a module by the same name."""


def _syncs(bus: EventBus, _: LaunchSpec, stack: ModuleStack) -> Instrument:
    from ampwise.instruments.syncs import SyncWatch

    return SyncWatch(bus, steps=(1, 2), stack=stack)


def _casts(bus: EventBus, spec: LaunchSpec, stack: ModuleStack) -> Instrument:
    from ampwise.instruments.casts import CastWatch

    alone = range(1 if spec.stop_after != 1 else 0, spec.stop_after or 3)
    return CastWatch(bus, steps=alone if spec.instruments == ("casts",) else (3, 4), stack=stack)


def _memory(bus: EventBus, _: LaunchSpec, stack: ModuleStack) -> Instrument:
    from ampwise.instruments.memory_watch import MemoryWatch

    return MemoryWatch(bus, step=5, stack=stack)


def _layout(_: EventBus, __: LaunchSpec, stack: ModuleStack) -> Instrument:
    from ampwise.instruments.layout import LayoutWatch

    return LayoutWatch(stack=stack)


def _kernels(bus: EventBus, _: LaunchSpec, __: ModuleStack) -> Instrument:
    from ampwise.instruments.kernels import KernelWatch

    return KernelWatch(bus, step=11)  # kept graphs are looked for as late as in step 10


def _process(bus: EventBus, _: LaunchSpec, __: ModuleStack) -> Instrument:
    from ampwise.instruments.process import ProcessWatch

    slowed = {*range(13), *range(0, _NUM_STEPS, _EVERY)}  # of every other instrument
    return ProcessWatch(bus, leave_out=slowed)


def _nonfinite(bus: EventBus, spec: LaunchSpec, stack: ModuleStack) -> Instrument:
    from ampwise.instruments.nonfinite import NonFiniteWatch

    return NonFiniteWatch(bus, trace=spec.instruments == ("nonfinite",), steps=(7,), stack=stack)


def _numerics(bus: EventBus, spec: LaunchSpec, stack: ModuleStack) -> Instrument:
    from ampwise.instruments.numerics import NumericsWatch

    # a loss scale that ampwise injects is out of the gradients again where they are accumulated
    is_injected = "fp16" in {spec.precision, spec.emulate}
    return NumericsWatch(bus, every=_EVERY, max_share=None, has_unscaled_weights=is_injected, names=stack.names)


def _against_fp32(bus: EventBus, _: LaunchSpec, stack: ModuleStack) -> Instrument:
    import torch

    from ampwise.instruments.against_fp32 import AgainstFp32
    from ampwise.runtime.hardware.placement import current_device

    device_type = current_device().type
    in_fp32 = partial(torch.autocast, device_type, enabled=False)
    return AgainstFp32(bus, low=nullcontext, high=in_fp32, step=8, names=stack.names)


def _compilation(bus: EventBus, _: LaunchSpec, __: ModuleStack) -> Instrument:
    from ampwise.instruments.compilation import CompileWatch

    return CompileWatch(bus)


def _usage(bus: EventBus, _: LaunchSpec, __: ModuleStack) -> Instrument:
    from ampwise.instruments.usage import UsageWatch

    return UsageWatch(bus)


def _sensitivity(bus: EventBus, spec: LaunchSpec, stack: ModuleStack) -> Instrument:
    from ampwise.instruments.sensitivity import Sensitivity
    from ampwise.plan.file import parse_plan
    from ampwise.runner.rehearsal import PlanRehearsal

    plan = parse_plan(spec.rehearse or "")
    return Sensitivity(bus, rehearsal=PlanRehearsal(plan, emulate=spec.rehearse_emulated), stack=stack)


ROWS: Final = (
    InstrumentRow(name="usage", field="usage", make=_usage),
    InstrumentRow(name="layout", field="layout", make=_layout),
    InstrumentRow(name="nonfinite", field="nonfinite", make=_nonfinite),
    InstrumentRow(name="numerics", field="numerics", make=_numerics),
    InstrumentRow(name="syncs", field="syncs", make=_syncs),
    InstrumentRow(name="casts", field="casts", make=_casts),
    InstrumentRow(name="memory", field="memory", make=_memory),
    InstrumentRow(name="against_fp32", field="against_fp32", make=_against_fp32),
    InstrumentRow(name="kernels", field="kernels", make=_kernels),
    InstrumentRow(name="process", field="process", make=_process),
    InstrumentRow(name="compilation", field="compilation", make=_compilation),
)

_REHEARSED: Final = InstrumentRow(name="sensitivity", field="sensitivity", make=_sensitivity)
"""Where a plan is rehearsed; nobody asks for it by name."""


def rows_of(names: Iterable[str]) -> tuple[InstrumentRow, ...]:
    """The instruments of these names, in the table's order: it says who is entered first.

    Raises:
        UsageError: there is no instrument of that name.
    """
    wanted = tuple(names)
    known = [row.name for row in ROWS]
    for name in wanted:
        if name not in known:
            raise UsageError(not_one_of(name, known, kind="instrument"))
    return tuple(row for row in ROWS if row.name in wanted)


def enter_instruments(
    bus: EventBus, spec: LaunchSpec, undo: ExitStack, *, modules: ModuleStack | None = None
) -> dict[str, Instrument]:
    """Start the instruments that ``spec`` names, until ``undo`` is closed: each by its field of the run's record.

    Args:
        bus: Where the loop's events are published.
        spec: Names them, and the plan that is rehearsed.
        undo: Ends them.
        modules: Says which module is being called; by default one is made.
    """
    stack = modules or ModuleStack()
    rows = (*rows_of(spec.instruments), *((_REHEARSED,) if spec.rehearse is not None else ()))
    return {row.field: undo.enter_context(row.make(bus, spec, stack)) for row in rows}
