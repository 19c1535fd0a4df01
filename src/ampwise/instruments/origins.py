"""Finds the operator that made infinities or NaN of finite numbers, among operators that run before its eyes."""

import math
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from ampwise.compat.distributed import local_of
from ampwise.compat.operators import Operator, last_sequence_number, running_sequence_number
from ampwise.interpose.internal import internal
from ampwise.observe.dtypes import dtype_name, tensors_in
from ampwise.observe.frames import Line, user_line
from ampwise.observe.modules import ModuleName, ModuleStack
from ampwise.records.nonfinite import FoundBy, NonFiniteKind, Operand, Origin
from ampwise.records.site import Phase, Site

_WORDS: Final = """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ set_ full full_like new_full fill
    fill_ masked_fill masked_fill_ scalar_tensor lift_fresh zeros_like ones_like new_zeros new_ones zero_
"""
_CONSTANTS: Final = frozenset(f"aten.{word}" for word in _WORDS.split())
"""What they give was put there by the script (a mask's -inf), or is memory that nobody wrote yet."""
_SAFE_WORDS: Final = """
    clone cat stack embedding index_select gather select slice_scatter relu relu_ sigmoid tanh gelu
    max_pool2d_with_indices repeat roll flip constant_pad_nd abs neg zeros ones
    threshold_backward sigmoid_backward tanh_backward select_backward slice_backward
"""
_SAFE: Final = frozenset(f"aten.{word}" for word in _SAFE_WORDS.split())
"""They make nothing infinite of finite numbers, so their outputs need no look while nothing infinite is about."""
_PRODUCTS: Final = frozenset({"aten.mul", "aten.mul_"})
_RANGE_OF_FP32: Final = frozenset({torch.float32, torch.bfloat16})
"""What one of them holds, the other does, but for the last 2^-9 of the range, which rounds to infinity in bf16."""
_SUMMED: Final = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})
"""The others, fp8, have no kernels."""
_MAX_ORIGINS: Final = 32
_MAX_OPERANDS: Final = 8
Owner = Callable[[torch.Tensor], tuple[ModuleName | None, str | None]]
"""Says whose parameter a tensor is, or holds the state of: the module and the parameter's name in it."""


class _Forward(NamedTuple):
    """A forward operator, kept for the sake of its gradient."""

    module: ModuleName | None
    op: str
    line: Line | None


@dataclass(slots=True, kw_only=True, eq=False)
class _Found:
    """An origin while its step goes on."""

    step: int
    kind: NonFiniteKind
    phase: Phase
    at: _Forward
    op: str
    inputs: tuple[Operand, ...]
    scalars: tuple[float, ...]
    output: Operand
    parameter: str | None
    vanished: tuple[Phase, _Forward] | None = None
    num_seen: int = 1


class OriginFinder:
    """Stands around every operator and keeps those whose output is not finite while their inputs were.

    A NaN made of infinities counts as well, unless an operator of the same step is known to have made those.
    It reads each output from the device, so a GPU is waited for at every operator.

    Args:
        stack: Says which module is being called.
        phase: Says which part of the loop is running, for operators outside of a backward pass.
        owner: Says whose parameter an operator of the optimizer writes to.
    """

    def __init__(self, stack: ModuleStack, *, phase: Callable[[], Phase], owner: Owner) -> None:
        self._stack = stack
        self._phase = phase
        self._owner = owner
        self._forward: dict[int, _Forward] = {}
        self._tainted: dict[int, tuple[weakref.ref[torch.Tensor], _Found | None]] = {}
        self._strays: dict[int, tuple[weakref.ref[torch.Tensor], NonFiniteKind]] = {}
        """What operators made of infinities and NaN that no known one made: an input's, a mask's."""
        self._found: dict[tuple[Any, ...], _Found] = {}
        self._of_step: list[_Found] = []
        self.step = 0
        self.cost_ns = 0
        self.fault: str | None = None

    @property
    def has_found_in_step(self) -> bool:
        """Whether an operator of the current step is an origin."""
        return bool(self._of_step)

    @property
    def is_anything_bad(self) -> bool:
        """Whether tensors are about that are not finite."""
        return bool(self._tainted)

    def around(
        self, operator: Operator, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operator and look at what it gave."""
        result = proceed(*args, **kwargs)
        start = time.perf_counter_ns()
        try:
            self._look(operator, args, kwargs, result)
        except Exception as error:  # noqa: BLE001 # looking must not end somebody's training
            self.fault = f"not every operator could be looked at: {operator.name}: {type(error).__name__}: {error}"
        self.cost_ns += time.perf_counter_ns() - start
        return result

    def taint(self, tensors: Iterable[torch.Tensor]) -> None:
        """Those of the tensors that are not finite now are no operator's doing from here on."""
        for tensor in tensors:
            if not is_finite(tensor):
                self._tainted[id(tensor)] = (weakref.ref(tensor), None)

    def end_forward(self, roots: Iterable[torch.Tensor]) -> None:
        """The losses are known: where one is not finite, nothing has vanished."""
        if not all(is_finite(root) for root in roots):
            for found in self._of_step:
                found.vanished = None

    def end_step(self) -> None:
        """Forget what concerns the step that has ended."""
        self._forward.clear()
        self._of_step.clear()
        self._tainted = {key: entry for key, entry in self._tainted.items() if entry[0]() is not None}
        self._strays = {key: entry for key, entry in self._strays.items() if entry[0]() is not None}
        self.step += 1

    def origins(self, *, found_by: FoundBy) -> tuple[Origin, ...]:
        """What was found, in the order it happened."""
        return tuple(_origin(found, found_by) for found in self._found.values())

    def _look(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        number = running_sequence_number()
        call = self._stack.call
        is_recompute = call is not None and call.is_recompute
        if number is None or is_recompute:
            here = last_sequence_number()
            if here not in self._forward:
                self._forward[here] = _Forward(self._stack.name, operator.name, user_line(1))
        if is_recompute:
            return  # its first run was looked at
        if operator.is_view:
            if self._tainted:
                self._pass_on(self._taint_of(tensors_in(args)), tensors_in(result))
            return
        is_suspect = bool(self._tainted or (self._strays and operator.written))
        if is_suspect or not _is_harmless(operator, args, result):
            with internal():
                if is_suspect or not _is_plainly_finite(operator, result):
                    self._look_closely(operator, args, kwargs, result)

    def _look_closely(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        written = [tensor for place in operator.written if place < len(args) for tensor in tensors_in(args[place])]
        outputs = list({id(one): one for one in (*tensors_in(result), *written)}.values())
        if "attention" in operator.name:
            outputs = outputs[:1]  # the others say how a row was reduced, -inf for an empty one
        bad = [one for one in outputs if not is_finite(one)]
        if bad:
            self._judge(operator, args, kwargs, written, bad)
            return
        for tensor in written:
            self._strays.pop(id(tensor), None)
        if self._tainted and operator.name not in _CONSTANTS:
            self._see_vanish(operator, args, written, outputs)

    def _judge(
        self,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        written: list[torch.Tensor],
        bad: list[torch.Tensor],
    ) -> None:
        """Tell an origin from what only passes on what it was given."""
        inputs = [one for one in tensors_in(args, tuple(kwargs.values())) if not any(one is other for other in written)]
        given = [one for one in inputs if not is_finite(one)]
        before = self._taint_of((*given, *written))
        strays = [stray[1] for one in written if (stray := self._strays.get(id(one))) and stray[0]() is one]
        kind = NonFiniteKind.NAN if any(_has_nan(one) for one in bad) else NonFiniteKind.INF
        scalars = [one for one in (*args, *kwargs.values()) if isinstance(one, float)]
        is_passed_on = bool(given or before or strays or not all(map(math.isfinite, scalars)))
        if is_passed_on and kind is NonFiniteKind.NAN and not self._of_step:
            is_passed_on = bool(before) or kind in strays or any(_has_nan(one) for one in given)
        if is_passed_on or operator.name in _CONSTANTS:
            self._pass_on(before, bad)
            if not before:
                self._strays.update((id(one), (weakref.ref(one), kind)) for one in bad)
            return
        found = self._add(operator, kind, inputs, scalars, bad[0])
        self._pass_on([found], bad)

    def _add(
        self,
        operator: Operator,
        kind: NonFiniteKind,
        inputs: list[torch.Tensor],
        scalars: list[float],
        output: torch.Tensor,
    ) -> _Found | None:
        phase, at = self._place(operator)
        module, parameter = self._owner(output) if phase is Phase.OPTIMIZER else (None, None)
        at = at if module is None else _Forward(module, at.op, at.line)
        key = (phase, at, operator.name, kind)
        known = self._found.get(key)
        if known is not None:
            known.num_seen += 1
            self._of_step.append(known)
            return known
        if len(self._found) >= _MAX_ORIGINS:
            return None
        found = _Found(
            step=self.step,
            kind=kind,
            phase=phase,
            at=at,
            op=operator.name,
            inputs=tuple(operand(one) for one in inputs[:_MAX_OPERANDS]),
            scalars=tuple(scalars[:_MAX_OPERANDS]),
            output=operand(output),
            parameter=parameter,
        )
        self._found[key] = found
        self._of_step.append(found)
        return found

    def _place(self, operator: Operator) -> tuple[Phase, _Forward]:
        number = running_sequence_number()
        if number is None:
            return self._phase(), _Forward(self._stack.name, operator.name, user_line(1))
        return Phase.BACKWARD, self._forward.get(number) or _Forward(None, "", user_line(1))

    def _taint_of(self, tensors: Iterable[torch.Tensor]) -> list[_Found | None]:
        """What is known of where the tensors' infinities came from; None stands for what was there before."""
        entries = ((self._tainted.get(id(one)), one) for one in tensors)
        return [entry[1] for entry, one in entries if entry is not None and entry[0]() is one]

    def _pass_on(self, taint: list[_Found | None], tensors: Iterable[torch.Tensor]) -> None:
        if taint:
            for tensor in tensors:
                self._tainted[id(tensor)] = (weakref.ref(tensor), taint[0])

    def _see_vanish(
        self, operator: Operator, args: tuple[Any, ...], written: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> None:
        taint = self._taint_of(tensors_in(args))
        for tensor in written:
            self._tainted.pop(id(tensor), None)
        if not any(one.is_floating_point() for one in outputs):
            return
        place = self._place(operator)
        for found in filter(None, taint):
            if place[0] is Phase.BACKWARD is not found.phase:
                continue  # a finite gradient of an infinite result: the loss has told what became of it
            if found in self._of_step and found.kind is NonFiniteKind.INF and found.vanished is None:
                found.vanished = place


def _is_harmless(operator: Operator, args: tuple[Any, ...], result: Any) -> bool:
    """Whether it is known without a look that an operator makes finite numbers of finite ones."""
    if operator.name in _SAFE:
        return True
    if operator.name == "aten._to_copy":
        return result.dtype in _RANGE_OF_FP32 and args[0].dtype is not torch.float64
    # as an optimizer does to every state
    return operator.name in _PRODUCTS and isinstance(args[1], float) and -1 <= args[1] <= 1


def _is_plainly_finite(operator: Operator, result: Any) -> bool:
    """Whether one quick look says that what an operator made is finite, as it nearly always is."""
    if isinstance(result, torch.Tensor):
        return is_finite(result)  # an operator in place gives what it wrote to
    return not operator.written and not isinstance(result, (tuple, list))  # a number for the host


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all of a floating tensor's numbers are finite; True for what holds none. Waits for the device."""
    dtype = tensor.dtype
    if not dtype.is_floating_point or tensor.layout is not torch.strided or tensor.is_meta or is_lazy(tensor):
        return True
    values = local_of(
        tensor.detach() if tensor.requires_grad else tensor
    )  # a sum over shards waits for other processes
    if not values.numel():
        return True
    if dtype not in _SUMMED:
        values = values.float()
    # A sum is half the cost, a third where none of another dtype is asked for: torch adds up halves in fp32 and rounds.
    # Where it overflows though every number is finite, the extremes tell.
    if math.isfinite(values.sum().item()):
        return True
    low, high = torch.aminmax(values)
    return math.isfinite(low.item()) and math.isfinite(high.item())


def operand(tensor: torch.Tensor) -> Operand:
    """What a record says of a tensor. Waits for the device."""
    values = tensor.detach()
    shown = Operand(dtype=dtype_name(values.dtype), shape=tuple(values.shape), minimum=None, maximum=None)
    if not values.is_floating_point() or values.layout is not torch.strided or values.is_meta:
        return shown
    numbers = values.double().flatten()
    finite = numbers[numbers.isfinite()]
    return Operand(
        dtype=shown.dtype,
        shape=shown.shape,
        minimum=finite.min().item() if finite.numel() else None,
        maximum=finite.max().item() if finite.numel() else None,
        num_infinite=int(numbers.isinf().sum()),
        num_negative_infinite=int(numbers.isneginf().sum()),
        num_nan=int(numbers.isnan().sum()),
    )


def _has_nan(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and bool(tensor.detach().isnan().any())


def _origin(found: _Found, found_by: FoundBy) -> Origin:
    module = found.at.module
    vanished = found.vanished
    return Origin(
        step=found.step,
        kind=found.kind,
        site=_site(found.phase, found.at, found.op),
        found_by=found_by,
        module_kind=module.kind if module is not None else None,
        forward_op=(found.at.op or None) if found.phase is Phase.BACKWARD else None,
        inputs=found.inputs,
        scalars=found.scalars,
        output=found.output,
        parameter=found.parameter,
        vanished=None if vanished is None else _site(vanished[0], vanished[1], vanished[1].op),
        num_seen=found.num_seen,
    )


def _site(phase: Phase, at: _Forward, op: str) -> Site:
    return Site(
        phase=phase,
        module=at.module.path if at.module is not None else None,
        op=op,
        file=at.line.shown_file if at.line is not None else None,
        line=at.line.line if at.line is not None else None,
    )
