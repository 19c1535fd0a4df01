"""Watches which dtypes the operators of a loop compute in, and the casts that takes."""

import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from ampwise.compat.operators import Operator
from ampwise.observe.dtypes import dtype_name, dtype_names, tensors_in
from ampwise.observe.events import EventBus, StepOutcome
from ampwise.observe.frames import Line
from ampwise.observe.instructions import Instruction, current_instruction
from ampwise.observe.modules import ModuleStack
from ampwise.observe.operators import OperatorSampler, Spot
from ampwise.records.casts import CastOrigin, CastPlace, CastRecord, OperatorCalls, Promotion, RepeatedCast
from ampwise.records.site import Phase

_CASTS = frozenset({"aten._to_copy", "aten.copy_"})
_MAKES_NOTHING = frozenset({"aten.empty_like", "aten.zeros_like", "aten.ones_like", "aten.empty", "aten.zeros"})


@dataclass(slots=True, kw_only=True, eq=False)
class _Cast:
    """One cast, until it is known what it was for."""

    spot: Spot
    line: Line | None
    instruction: Instruction
    source: str
    target: str
    bytes: int
    expanded_bytes: int
    ns: int
    origin: CastOrigin = CastOrigin.SCRIPT
    reason: str | None = None


@dataclass(slots=True)
class _Sum:
    """What the operators or casts of one place came to."""

    count: int = 0
    bytes: int = 0
    expanded_bytes: int = 0
    ns: int = 0


@dataclass(slots=True)
class _Weight:
    """How often a weight was cast to one dtype."""

    name: str
    nbytes: int
    counts: Counter[int] = field(default_factory=Counter[int])
    """By step."""


class CastWatch:
    """Records the dtypes and casts of some steps, while entered in the thread that trains.

    A cast is autocast's where the operator that takes its result ran for the same call of Python's: an operator's own
    ``dtype=`` argument counts as one, too. Times are the host's; where a device computes on its own there are none.
    What compiled code does is not seen.

    Args:
        bus: Where the loop's events are published.
        steps: Indices of the steps to watch; None: all.
        stack: Says which module is being called; by default one of its own.
    """

    def __init__(
        self, bus: EventBus, *, steps: Collection[int] | None = (1, 2), stack: ModuleStack | None = None
    ) -> None:
        self._sampler = OperatorSampler(bus, self, steps=steps, stack=stack)
        self._bus = bus
        self._undo = ExitStack()
        self._calls: dict[tuple[Spot, str, str], _Sum] = defaultdict(_Sum)
        self._casts: dict[tuple[Any, ...], _Sum] = defaultdict(_Sum)
        self._promotions: Counter[tuple[Spot, Line | None, tuple[str, ...], str]] = Counter()
        self._weights: dict[tuple[int, str], tuple[weakref.ref[torch.Tensor], _Weight]] = {}
        self._pending: dict[int, tuple[weakref.ref[torch.Tensor], _Cast]] = {}
        self._unfolded: list[_Cast] = []
        self._total = _Sum()
        self._is_on_host = True
        self._fault: str | None = None

    def __enter__(self) -> Self:
        self._undo.callback(self._bus.subscribe(StepOutcome, self._on_step))
        self._undo.enter_context(self._sampler)
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    @property
    def slowed_steps(self) -> frozenset[int]:
        """Indices of the steps whose time says nothing."""
        return frozenset(self._sampler.seen_steps)

    def around(
        self, operator: Operator, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operator and count it."""
        start = time.perf_counter_ns()
        result = proceed(*args, **kwargs)
        ns = time.perf_counter_ns() - start
        if self._fault is None:
            try:
                self._count(operator, list(tensors_in(args, *kwargs.values())), list(tensors_in(result)), ns)
            except Exception as error:  # noqa: BLE001 # counting must not end somebody's training
                self._fault = f"casts were not counted to the end: {type(error).__name__}: {error}"
        return result

    def record(self) -> CastRecord:
        """What was seen so far."""
        self._fold()
        return CastRecord(
            steps=self._sampler.seen_steps,
            calls=tuple(
                sorted(map(self._call, self._calls), key=lambda call: (call.ms or 0, call.count), reverse=True)
            ),
            casts=tuple(sorted(map(self._place, self._casts), key=lambda cast: cast.bytes, reverse=True)),
            repeated=tuple(sorted(self._repeated(), key=lambda one: one.bytes, reverse=True)),
            promotions=tuple(
                Promotion(site=spot.site(line), dtypes=dtypes, result=result, count=count)
                for (spot, line, dtypes, result), count in self._promotions.most_common()
            ),
            num_operators=self._total.count,
            operator_bytes=self._total.bytes,
            operator_ms=self._ms(self._total.ns),
            cost_ms=self._sampler.cost_ms,
            note=self._fault or self._sampler.note,
        )

    def _on_step(self, _: StepOutcome) -> None:
        self._fold()

    def _count(self, operator: Operator, inputs: list[torch.Tensor], outputs: list[torch.Tensor], ns: int) -> None:
        source, target = inputs[0] if inputs else None, outputs[0] if outputs else None
        if operator.name == "aten.copy_" and len(inputs) > 1:
            source = inputs[1]
        if operator.is_view:
            self._follow_view(inputs, outputs)
            return
        size = sum(map(_nbytes, inputs)) + sum(map(_nbytes, outputs))
        self._total.count += 1
        self._total.bytes += size
        self._total.ns += ns
        self._is_on_host &= all(tensor.device.type == "cpu" for tensor in outputs)
        if operator.name in _CASTS and source is not None and target is not None and _is_cast(source, target):
            self._add_cast(operator, source, target, ns)
        else:
            self._add_call(operator, inputs, outputs, ns)

    def _add_cast(self, operator: Operator, source: torch.Tensor, target: torch.Tensor, ns: int) -> None:
        spot, instruction = self._sampler.spot(operator.name), current_instruction()
        is_backward = spot.phase is Phase.BACKWARD and not self._sampler.is_recompute
        # the gradient of a sum is an expanded tensor, by no choice of the script's
        repeats = not is_backward and any(
            stride == 0 and size > 1 for stride, size in zip(source.stride(), source.shape, strict=True)
        )
        held = source.untyped_storage().nbytes() * target.element_size() // source.element_size() if repeats else 0
        cast = _Cast(
            spot=spot,
            line=self._sampler.line(),
            instruction=instruction,
            source=dtype_name(source.dtype),
            target=dtype_name(target.dtype),
            bytes=_nbytes(source) + _nbytes(target),
            expanded_bytes=max(0, _nbytes(target) - held) if repeats else 0,
            ns=ns,
        )
        if is_backward:
            cast.origin = CastOrigin.BACKWARD
        elif instruction.is_cast_list:
            cast.origin = CastOrigin.AUTOCAST
        self._unfolded.append(cast)
        self._pending[id(target)] = (weakref.ref(target), cast)
        if isinstance(source, torch.nn.Parameter) and spot.phase is Phase.FORWARD:
            self._weight(source, cast.target).counts[self._sampler.step] += 1

    def _add_call(self, operator: Operator, inputs: list[torch.Tensor], outputs: list[torch.Tensor], ns: int) -> None:
        for tensor in inputs:
            cast = self._cast_that_made(tensor)
            if cast is not None and cast.reason is None:
                cast.reason = operator.name
                if cast.origin is CastOrigin.SCRIPT and cast.instruction == current_instruction():
                    cast.origin = CastOrigin.AUTOCAST
        dtypes, results = dtype_names(inputs), dtype_names(outputs)
        if (not dtypes and not results) or operator.name in _MAKES_NOTHING:
            return
        spot, result = self._sampler.spot(operator.name), results[0] if results else ""
        call = self._calls[spot, "+".join(sorted(dtypes)), result]
        call.count += 1
        call.ns += ns
        mixed = dtype_names(tensor for tensor in inputs if tensor.dim())
        if len(mixed) > 1 and outputs and _is_promoted(inputs, outputs[0]):
            self._promotions[spot, self._sampler.line(), mixed, result] += 1

    def _follow_view(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """A view of a cast's result stands for it: ``weight.t()``."""
        cast = self._cast_that_made(inputs[0]) if inputs else None
        if cast is not None:
            for tensor in outputs:
                self._pending[id(tensor)] = (weakref.ref(tensor), cast)

    def _cast_that_made(self, tensor: torch.Tensor) -> _Cast | None:
        reference, cast = self._pending.get(id(tensor), (None, None))
        return cast if reference is not None and reference() is tensor else None

    def _weight(self, parameter: torch.nn.Parameter, target: str) -> _Weight:
        reference, weight = self._weights.get((id(parameter), target), (None, None))
        if reference is None or weight is None or reference() is not parameter:
            weight = _Weight(self._name_of(parameter), parameter.numel())
            self._weights[id(parameter), target] = (weakref.ref(parameter), weight)
        return weight

    def _name_of(self, parameter: torch.nn.Parameter) -> str:
        """The parameter's path, found among those of the modules being called, the innermost first."""
        for call in reversed(self._sampler.stack.calls):
            for name, one in call.module.named_parameters():
                if one is parameter:
                    path = call.name.path if call.name is not None else ""
                    return f"{path}.{name}" if path else name
        return "a parameter of no module"

    def _fold(self) -> None:
        """Add up the casts of a step that has ended: nothing can take their results any more but by accident."""
        for cast in self._unfolded:
            spot = Spot(cast.spot.phase, cast.spot.module, "aten._to_copy")
            place = self._casts[spot, cast.line, cast.origin, cast.source, cast.target, cast.reason]
            place.count += 1
            place.bytes += cast.bytes
            place.expanded_bytes += cast.expanded_bytes
            place.ns += cast.ns
        self._unfolded.clear()
        self._pending.clear()

    def _place(self, key: tuple[Any, ...]) -> CastPlace:
        spot, line, origin, source, target, reason = key
        place = self._casts[key]
        return CastPlace(
            site=spot.site(line),
            origin=origin,
            source=source,
            target=target,
            reason=reason,
            count=place.count,
            bytes=place.bytes,
            ms=self._ms(place.ns),
            expanded_bytes=place.expanded_bytes,
        )

    def _call(self, key: tuple[Spot, str, str]) -> OperatorCalls:
        (spot, dtype, result), call = key, self._calls[key]
        return OperatorCalls(site=spot.site(), dtype=dtype, result=result, count=call.count, ms=self._ms(call.ns))

    def _repeated(self) -> list[RepeatedCast]:
        num_steps = max(len(self._sampler.seen_steps), 1)
        size_of = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
        return [
            RepeatedCast(
                parameter=weight.name,
                target=target,
                num_per_step=weight.counts.total() / num_steps,
                bytes=sum(count - 1 for count in weight.counts.values()) * weight.nbytes * size_of.get(target, 1),
            )
            for (_, target), (_, weight) in self._weights.items()
            if max(weight.counts.values(), default=0) > 1
        ]

    def _ms(self, ns: int) -> float | None:
        return ns / 1e6 if self._is_on_host else None


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_cast(source: torch.Tensor, target: torch.Tensor) -> bool:
    return source.dtype != target.dtype and source.dtype.is_floating_point and target.dtype.is_floating_point


def _is_promoted(inputs: list[torch.Tensor], output: torch.Tensor) -> bool:
    """Whether some operand was narrower than the result: normalisation of bf16 with fp32 weights promotes nothing."""
    return output.dtype.is_floating_point and any(
        tensor.dim() and tensor.dtype.is_floating_point and tensor.element_size() < output.element_size()
        for tensor in inputs
    )
