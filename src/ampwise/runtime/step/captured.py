"""The whole training step, from the batch to the next loss scale, in graphs that are replayed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ampwise._base.errors import UsageError
from ampwise.compat.autocast_cache import num_levels
from ampwise.runtime.scaling.result import StepResult
from ampwise.runtime.step.graph import Graphs, Replay
from ampwise.runtime.step.static_inputs import StaticInputs

LossFunction = Callable[..., Any]
NUM_WARM_UPS = 3
"""Steps before the capture, as torch advises: kernels are chosen, workspaces and the optimizer's state made."""
NUM_WARM_UPS_OF_DDP = 11
"""DistributedDataParallel logs and rebuilds its buckets within its first ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a step leaves on the device while it is recorded, and after each replay.

    Attributes:
        loss: 0-dim; the sum, where there are several.
        result: of the step.
        found_inf: for each optimizer that stepped whether its gradients were not finite; None where nothing is skipped.
        stepping: the optimizers that stepped; none inside a window.
    """

    loss: Tensor
    result: StepResult
    found_inf: tuple[Tensor | bool | None, ...] = ()
    stepping: tuple[Optimizer, ...] = ()

    def packed(self) -> Tensor:
        """All its numbers in one tensor, so that one copy saves them from the next replay."""
        result = self.result
        given = (self.loss, result.scale_tensor, result.grad_norm_tensor, result.found_inf, *self.found_inf)
        dtype = torch.promote_types(self.loss.dtype, torch.float32)
        device = self.loss.device
        return torch.stack([_number(one, dtype, device) for one in given])

    def read_from(self, row: Tensor) -> "Trace":
        """Itself, with the numbers of ``row``."""
        loss, scale, norm, found, *each = row.unbind()
        result = replace(
            self.result,
            loss_tensor=loss,
            scale_tensor=None if self.result.scale_tensor is None else scale,
            grad_norm_tensor=None if self.result.grad_norm_tensor is None else norm,
            found_inf=None if self.result.found_inf is None else found,
        )
        found_inf = tuple(None if was is None else now for was, now in zip(self.found_inf, each, strict=True))
        return replace(self, loss=loss, result=result, found_inf=found_inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordable:
    """What a captured step uses of its TrainStep.

    Attributes:
        run: takes a step as ever: ``run(loss_fn, arguments, last=, owner=)``.
        trace: takes a step that is being recorded: ``trace(loss_fn, arguments, num_open=, last=)``. Of the host's part
            it does only what the next trace of its window needs.
        take_in: does the host's part of a step that was replayed (events, schedules, history): ``take_in(trace,
            owner=)``.
        num_open_for: how many losses the window holds; raises if another than the owner began it.
        generation: changes when the state is replaced to which the graphs would go on writing.
    """

    run: Callable[..., StepResult]
    trace: Callable[..., Trace]
    take_in: Callable[..., StepResult]
    num_open_for: Callable[[object], int]
    generation: Callable[[], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    replay: Replay
    trace: Trace
    row: Tensor


def num_warm_ups_of(modules: Sequence[Module]) -> int:
    """How many steps a capture of these models' training waits for."""
    is_ddp = any(isinstance(one, DistributedDataParallel) for one in modules)
    return NUM_WARM_UPS_OF_DDP if is_ddp else NUM_WARM_UPS


class CapturedStep:
    """One call for forward pass, loss, backward pass and step; made by ``TrainStep.capture``.

    Law: losses, parameters, optimizer state, buffers, scales and random numbers are those of the same TrainStep stepped
    by hand, bit for bit.

    Args:
        loss_fn: gives the loss, or several, of a batch.
        step: takes the steps.
        graphs: records them; None takes every step as ever.
        device: where the batches go.
        accumulation_steps: the step's.
        num_warm_ups: how many steps are taken as ever before the first is recorded.
    """

    def __init__(
        self,
        loss_fn: LossFunction,
        step: Recordable,
        *,
        graphs: Graphs | None,
        device: torch.device,
        accumulation_steps: int = 1,
        num_warm_ups: int = NUM_WARM_UPS,
    ) -> None:
        self._loss_fn, self._step, self._graphs, self._device = loss_fn, step, graphs, device
        self._accumulation_steps, self._num_warm_ups = accumulation_steps, num_warm_ups
        self._inputs: StaticInputs | None = None
        self._recorded: dict[tuple[bool, int | None], _Recorded] = {}
        self._num_steps = 0
        self._generation = step.generation()

    @property
    def is_captured(self) -> bool:
        """Whether the last call replayed a graph."""
        return bool(self._recorded)

    def __call__(self, *inputs: Any, last: bool = False) -> StepResult:
        """Take a step on a batch.

        Args:
            inputs: what the loss function takes: tensors, also in lists and dicts, of the same shapes in every call;
                all else must have the same value in every call.
            last: end the window here, as in ``step(loss, last=True)``.

        Returns:
            The step's result, with its ``loss``.

        Raises:
            UsageError: the batch is not like the first one; or an autocast region, or a window begun by ``step(loss)``,
                is open.
        """
        if self._inputs is None:
            self._inputs = StaticInputs(inputs, self._device)
        num_open = self._step.num_open_for(self)
        closes = last or num_open + 1 == self._accumulation_steps
        if self._generation != self._step.generation():
            self._generation, self._num_steps = self._step.generation(), 0
            self._recorded.clear()
        if self._graphs is None:
            self._inputs.check(inputs)
            result = self._step.run(self._loss_fn, inputs, last=closes, owner=self)
        else:
            result = self._on_the_device(self._graphs, self._inputs, inputs, num_open=num_open, closes=closes)
        self._num_steps += closes
        return result

    def _on_the_device(
        self, graphs: Graphs, static: StaticInputs, inputs: Sequence[Any], *, num_open: int, closes: bool
    ) -> StepResult:
        if num_levels():
            raise UsageError("the captured step was called inside an autocast region: it opens its own around the loss")
        static.fill(inputs)
        if self._num_steps < self._num_warm_ups:
            return graphs.warm_up(lambda: self._step.run(self._loss_fn, static.arguments, last=closes, owner=self))
        key = (num_open == 0, num_open + 1 if closes else None)
        if key not in self._recorded:
            self._recorded[key] = self._record(graphs, static, num_open=num_open, closes=closes)
        one = self._recorded[key]
        one.replay()
        return self._step.take_in(one.trace.read_from(one.row.clone()), owner=self)

    def _record(self, graphs: Graphs, static: StaticInputs, *, num_open: int, closes: bool) -> _Recorded:
        def body() -> tuple[Trace, Tensor]:
            trace = self._step.trace(self._loss_fn, static.arguments, num_open=num_open, last=closes)
            return trace, trace.packed()

        replay, (trace, row) = graphs.record(body)
        return _Recorded(replay=replay, trace=trace, row=row)


def _number(given: Tensor | bool | None, dtype: torch.dtype, device: torch.device) -> Tensor:  # noqa: FBT001 - known on the host, or a tensor
    if isinstance(given, Tensor):
        return given.detach().to(device=device, dtype=dtype).reshape(())
    return torch.full((), 0.0 if given is None else float(given), dtype=dtype, device=device)
