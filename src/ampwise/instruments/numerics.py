"""Measures how large a loop's numbers are, per module and kind of tensor, in a sample of its steps."""

import math
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from ampwise.instruments.tallies import Before, Measured, Reading, Tally, TallyKey, end_step, measure, see_updates
from ampwise.interpose.internal import internal, is_internal
from ampwise.observe.dtypes import leaf_tensors
from ampwise.observe.events import BackwardEnded, EventBus, StepOutcome, StepStarted
from ampwise.observe.modules import Call, ModuleName, ModuleNames, ModuleStack, unwrapped
from ampwise.observe.statistics import sample
from ampwise.records.numerics import NumericsRecord, SampledStep, TensorKind

_DENSER = 10
"""So many times as often after an alarm, for as many steps as usually lie between two samples."""
_MAX_DENSE = 20
"""Samples taken because of alarms: a run that is never well must not fill the recording."""
_THINNED_AFTER = 32
"""Samples after which the distance between two doubles."""
_OF_GRADIENTS = frozenset({TensorKind.GRADIENT, TensorKind.WEIGHT_GRADIENT})


class _Budget:
    """Says when the next step may be sampled, so that measuring takes no more than its share of the time."""

    def __init__(self, max_share: float | None) -> None:
        self._max_share = max_share
        self._last_end: float | None = None
        self._last_cost_s = 0.0
        self._sampled = 0
        self._sample_s = 0.0
        self._plain_s = math.inf

    def end_step(self, step: int, *, cost_s: float, was_sampled: bool) -> int:
        """The earliest step to sample, now that ``step`` has ended and measuring has taken ``cost_s`` in all."""
        now = time.perf_counter()
        if was_sampled:
            self._sampled, self._sample_s = step, cost_s - self._last_cost_s
        elif self._last_end is not None:
            self._plain_s = min(self._plain_s, now - self._last_end)
        self._last_end, self._last_cost_s = now, cost_s
        if self._max_share is None or math.isinf(self._plain_s):
            return 0
        return self._sampled + math.ceil(self._sample_s / (self._max_share * self._plain_s))


class NumericsWatch:
    """Records the sizes of activations, gradients, weights and updates in a sample of steps, while entered.

    Measured are each module's own output (one that it hands on from a module within counts there), the gradient that
    comes back to it, and each parameter with its gradient and update. Between sampled steps no hook is attached and
    only the ends of steps are heard of. Nothing waits for a device: numbers stay on it, or travel while the next
    steps run, until ``record`` is called. Of compiled code only what comes out of it is seen.

    A step is sampled if its index is a multiple of ``every``; ten times as often for a while after a sampled step that
    held something not finite and after a skipped step; half as often each time 32 have been.

    Args:
        bus: Where the loop's events are published.
        every: One step in so many is measured.
        max_share: Measuring may take this share of the host's time; where it would take more, as with many tiny
            layers, fewer steps are measured. None: however long it takes.
        has_unscaled_weights: The loss scale is taken out of the weights' gradients before they are accumulated, as
            ``ampwise run`` does.
        names: Of the modules; by default its own.
    """

    def __init__(
        self,
        bus: EventBus,
        *,
        every: int = 50,
        max_share: float | None = 0.02,
        has_unscaled_weights: bool = False,
        names: ModuleNames | None = None,
    ) -> None:
        self._bus = bus
        self._every = every
        self._distance = every
        self._has_unscaled_weights = has_unscaled_weights
        self._stack = ModuleStack(names, listeners=(self,))
        self._undo = ExitStack()
        self._attached = ExitStack()
        self._tallies: dict[TallyKey, Tally] = {}
        self._steps: list[SampledStep] = []
        self._scales: list[float | Tensor | None] = []
        self._readings: list[tuple[int, Reading]] = []
        self._alarms: list[int] = []
        self._dense_until = -1
        self._num_dense = 0
        self._next = 0
        self._step = 0
        self._is_sampling = False
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._outputs: list[weakref.ref[Tensor]] = []
        self._pending: dict[TallyKey, Measured] = {}
        self._before: list[Before] = []
        self._handles: list[Any] = []
        self._cost_s = 0.0
        self._budget = _Budget(max_share)
        self._fault: str | None = None

    def __enter__(self) -> Self:
        self._undo.callback(self._bus.subscribe(StepOutcome, self._on_step))
        self._undo.callback(self._detach)
        self._start_if_due()
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    @property
    def slowed_steps(self) -> frozenset[int]:
        """Indices of the steps whose time says nothing."""
        return frozenset(step.index for step in self._steps)

    def record(self) -> NumericsRecord:
        """What was measured so far; waits for the device."""
        with internal():
            for step, reading in self._readings:
                self._finish(step, reading)
            self._readings.clear()
            scales = [None if scale is None else float(scale) for scale in self._scales]
            is_scaled = any(scale is not None for scale in scales)
            statistics = [
                tally.statistics(
                    key,
                    num_steps=len(self._steps),
                    is_scaled=is_scaled
                    and key.kind in _OF_GRADIENTS
                    and not (key.kind is TensorKind.WEIGHT_GRADIENT and self._has_unscaled_weights),
                )
                for key, tally in self._tallies.items()
                if tally.amaxes
            ]
        return NumericsRecord(
            num_steps=self._step,
            steps=tuple(
                SampledStep(index=step.index, scale=scale) for step, scale in zip(self._steps, scales, strict=True)
            ),
            tensors=tuple(statistics),
            every=self._every,
            alarms=tuple(sorted(set(self._alarms))),
            cost_ms=self._cost_s * 1_000 / max(self._step, 1),
            note=self._fault,
        )

    def entered(self, call: Call, args: tuple[Any, ...]) -> None:
        """A module is about to be called; only what it gives counts."""

    def left(self, call: Call, args: tuple[Any, ...], output: Any) -> None:  # noqa: ARG002 # the listener's signature
        """Measure what a module gave, and have the gradient that comes back to it measured."""
        if not self._is_sampling or is_internal() or not torch.is_grad_enabled():
            return
        with self._costed():
            if self._stack.call is None and not call.is_recompute:
                self._roots.add(unwrapped(call.module))
            name = self._stack.names.name_of(call.module)
            if name is not None:
                self._see_output(name, call, output)

    def _see_output(self, name: ModuleName, call: Call, output: Any) -> None:
        key = TallyKey(TensorKind.ACTIVATION, name)
        # a reentrant checkpoint's first run takes no part in autograd and was passed over
        is_seen = call.is_recompute and key in self._tallies and bool(self._tallies[key].waiting)
        for tensor in leaf_tensors(output):
            if not _is_measurable(tensor) or any(reference() is tensor for reference in self._outputs[-8:]):
                continue
            self._outputs.append(weakref.ref(tensor))
            if not is_seen:
                self._add(key, tensor)
            if tensor.requires_grad:
                self._handles.append(tensor.register_hook(self._gradient_hook(name)))

    def _gradient_hook(self, name: ModuleName) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            if self._is_sampling:
                with self._costed():
                    self._add(TallyKey(TensorKind.GRADIENT, name), gradient)

        return hook

    def _on_backward_end(self, _: BackwardEnded) -> None:
        """Weights' gradients as the last micro-batch left them; the step commits them."""
        with self._costed():
            for name, parameter_name, parameter in self._parameters():
                gradient = parameter.grad
                if gradient is not None and _is_measurable(gradient):
                    self._pending[TallyKey(TensorKind.WEIGHT_GRADIENT, name, parameter_name)] = measure(gradient)

    def _on_step_start(self, event: StepStarted) -> None:
        if event.optimizer is None:
            return
        with self._costed():
            groups = event.optimizer.param_groups
            moved = {id(one) for group in groups if group.get("lr", 1) != 0 for one in group["params"]}
            for name, parameter_name, parameter in self._parameters():
                if id(parameter) in moved and parameter.grad is not None and _is_measurable(parameter.grad):
                    self._add(TallyKey(TensorKind.WEIGHT, name, parameter_name), parameter)
                    key = TallyKey(TensorKind.UPDATE, name, parameter_name)
                    self._before.append(
                        Before(
                            tally=self._tally(key, parameter.dtype),
                            parameter=parameter,
                            weights=sample(parameter).clone(),
                            has_gradient=sample(parameter.grad) != 0,
                        )
                    )

    def _on_step(self, event: StepOutcome) -> None:
        if self._is_sampling or self._readings:
            with self._costed():
                if self._is_sampling:
                    self._end_sample(event)
                self._readings = [one for one in self._readings if not self._is_finished(*one)]
        if _is_known_skip(event):
            self._alarm(self._step)
        earliest = self._budget.end_step(self._step, cost_s=self._cost_s, was_sampled=self._is_sampling)
        if self._is_sampling:
            self._detach()
        self._step += 1
        if self._step >= self._dense_until:
            self._next = max(self._next, earliest)
        self._start_if_due()

    def _end_sample(self, event: StepOutcome) -> None:
        self._scales.append(event.scale.detach().clone() if isinstance(event.scale, Tensor) else event.scale)
        place = len(self._steps)
        self._steps.append(SampledStep(index=self._step))
        for key, measured in self._pending.items():
            self._tally(key, measured.dtype).add(measured)
        if not _is_known_skip(event):
            see_updates(self._before, stepped=event.stepped)
        self._readings += [(self._step, reading) for reading in end_step(self._tallies.values(), place)]

    def _is_finished(self, step: int, reading: Reading) -> bool:
        return reading.has_arrived and self._finish(step, reading)

    def _finish(self, step: int, reading: Reading) -> bool:
        if not reading.finish():
            self._alarm(step)
        return True

    def _alarm(self, step: int) -> None:
        if self._num_dense >= _MAX_DENSE:
            return
        self._alarms.append(step)
        self._dense_until = self._step + self._every
        self._next = min(self._next, self._step + max(1, self._every // _DENSER))

    def _start_if_due(self) -> None:
        """Sample the step that begins, if it is its turn."""
        if self._step < self._next:
            return
        is_dense = self._step < self._dense_until and self._num_dense < _MAX_DENSE
        self._num_dense += is_dense
        if not is_dense and len(self._steps) % _THINNED_AFTER == _THINNED_AFTER - 1:
            self._distance *= 2
        self._next = self._step + (max(1, self._every // _DENSER) if is_dense else self._distance)
        self._is_sampling = True
        self._attached.enter_context(self._stack)
        self._attached.callback(self._bus.subscribe(BackwardEnded, self._on_backward_end))
        self._attached.callback(self._bus.subscribe(StepStarted, self._on_step_start))

    def _detach(self) -> None:
        """Take back all that was attached for a sampled step."""
        self._is_sampling = False
        self._attached.close()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._outputs.clear()
        self._pending.clear()
        self._before.clear()

    def _add(self, key: TallyKey, tensor: Tensor) -> None:
        if _is_measurable(tensor):
            self._tally(key, tensor.dtype).add(measure(tensor))

    def _tally(self, key: TallyKey, dtype: torch.dtype) -> Tally:
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = Tally(dtype=dtype)
        return tally

    def _parameters(self) -> Iterator[tuple[ModuleName, str, nn.Parameter]]:
        """The parameters of the models called in this step, each once."""
        seen: set[int] = set()
        for root in self._roots:
            for module in root.modules():
                name = self._stack.names.name_of(module)
                for parameter_name, parameter in module.named_parameters(recurse=False):
                    if name is not None and id(parameter) not in seen and _is_measurable(parameter):
                        seen.add(id(parameter))
                        yield name, parameter_name, parameter

    @contextmanager
    def _costed(self) -> Generator[None]:
        """Measuring takes time, which is told, and must not end somebody's training."""
        start = time.perf_counter()
        try:
            with internal(), torch.no_grad():
                yield
        except Exception as error:  # noqa: BLE001 # whatever a tensor of an unknown kind makes of it
            self._fault = f"not every tensor was measured: {type(error).__name__}: {error}"
        self._cost_s += time.perf_counter() - start


def _is_measurable(tensor: Tensor) -> bool:
    """Whether its numbers can be looked at: floating, dense, held by this process."""
    return (
        (tensor.is_floating_point() or tensor.is_complex())
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_quantized
        and type(tensor) in {Tensor, nn.Parameter}
    )


def _is_known_skip(event: StepOutcome) -> bool:
    """Whether the step was left out, as far as that can be told without waiting for a device."""
    if not isinstance(event.stepped, Tensor):
        return not event.stepped
    with internal():
        return event.stepped.device.type == "cpu" and not bool(event.stepped)
