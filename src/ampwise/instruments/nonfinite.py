"""Finds the first infinity or NaN of a training loop: which operator made it, in which module, on which line."""

import time
import weakref
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch
from torch import nn

from ampwise.compat.memory import has_compiled_code
from ampwise.compat.stance import has_dynamo, run_uncompiled
from ampwise.instruments.bad_inputs import BadBuffers, BadInputs
from ampwise.instruments.bad_outputs import BadOutputs
from ampwise.instruments.guard import first_bad, is_any_bad
from ampwise.instruments.models import Models
from ampwise.instruments.origins import OriginFinder, is_finite
from ampwise.instruments.replay import Replay
from ampwise.instruments.step_again import StepAgain
from ampwise.interpose.internal import internal
from ampwise.observe.events import (
    BackwardEnded,
    BackwardStarted,
    EventBus,
    ForwardEnded,
    ForwardStarted,
    StepOutcome,
    StepStarted,
)
from ampwise.observe.modules import ModuleName, ModuleStack
from ampwise.observe.operators import OperatorSampler
from ampwise.records.nonfinite import FoundBy, NonFiniteKind, NonFiniteRecord, Origin
from ampwise.records.site import Phase, Site

_MAX_REPLAYS = 3
_MAX_TRACED = 3
"""Steps watched in full after an alarm that a replay did not explain."""


class _AllSteps(set[int]):
    """Holds every step's index."""

    def __contains__(self, _: object) -> bool:
        return True


class NonFiniteWatch:
    """Records where infinities and NaN came from, while entered in the thread that trains.

    By default a guard looks at losses, gradients and weights once a step. At an alarm the step's calls of modules are
    run again, uncompiled, from the same random numbers with every operator watched; what that does not explain (a
    loss, an optimizer) is watched in the steps that follow. With ``trace`` every operator of every step is watched, and
    compiled code runs uncompiled; with ``steps`` those of these steps, which shows infinities that leave no trace.
    Of watched steps a small step of torch's own optimizers is not: it is made again where it leaves something behind
    that is not finite.

    The guard waits for the device once after each backward pass and once after each step; the trace at every operator.
    Gradients autograd sums in place otherwise are summed out of place under the trace.

    Args:
        bus: Where the loop's events are published.
        trace: Watch every operator from the start.
        steps: Indices of steps that are watched in full without an alarm.
        stack: Says which module is being called; by default one of its own.
    """

    def __init__(
        self, bus: EventBus, *, trace: bool = False, steps: Collection[int] = (), stack: ModuleStack | None = None
    ) -> None:
        self._bus = bus
        self._trace = trace
        self._steps: set[int] = _AllSteps() if trace else set(steps)
        self._max_traced = _MAX_TRACED + len(self._steps)
        self.stack = stack or ModuleStack()
        self._finder = OriginFinder(self.stack, phase=self._phase, owner=self._owner)
        self._sampler = OperatorSampler(bus, self._finder, steps=self._steps, stack=self.stack, is_spotted=False)
        self._again = OriginFinder(self.stack, phase=lambda: Phase.FORWARD, owner=self._owner)
        self._replay = Replay()
        self._step_again = StepAgain()
        self._inputs = BadInputs(self.stack.names)
        self._outputs = BadOutputs(self.stack.names)
        self._buffers = BadBuffers(self.stack.names)
        self._undo = ExitStack()
        self._uncompiled: ExitStack | None = None
        self._models = Models()
        self._tainted: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._tainted_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimizer: Any = None
        self._guarded: list[Origin] = []
        self._bad_steps: dict[str, list[int]] = {"loss": [], "gradient": [], "weight": []}
        self._replayed: list[int] = []
        self._step = 0
        self._is_alarmed = False
        self._is_stepping_again = False
        self._cost_s = 0.0

    def __enter__(self) -> Self:
        for kind, listener in (
            (ForwardStarted, self._on_forward),
            *(() if self._trace else ((ForwardEnded, self._on_forward_end),)),
            (BackwardStarted, self._on_backward),
            (BackwardEnded, self._on_backward_end),
            (StepStarted, self._on_step_start),
            (StepOutcome, self._on_step),
        ):
            self._undo.callback(self._bus.subscribe(kind, listener))  # pyright: ignore[reportArgumentType] # they match
        self._undo.callback(self._compile_again)
        self._undo.callback(self._replay.clear)
        self._undo.enter_context(self._sampler)
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    @property
    def slowed_steps(self) -> frozenset[int]:
        """Indices of the steps whose time says nothing."""
        return frozenset((*self._sampler.seen_steps, *self._replayed))

    def record(self) -> NonFiniteRecord:
        """What was seen so far; waits for the device."""
        with internal():
            buffers = self._buffers.paths(self._models)
        origins = (
            *self._finder.origins(found_by=FoundBy.TRACE),
            *self._again.origins(found_by=FoundBy.REPLAY),
            *self._guarded,
        )
        order = {FoundBy.REPLAY: 0, FoundBy.TRACE: 0, FoundBy.GUARD: 1}
        num_traced = max(len(self._sampler.seen_steps), 1)
        return NonFiniteRecord(
            num_steps=self._step,
            origins=tuple(sorted(origins, key=lambda one: (one.step, order[one.found_by]))),
            loss_steps=tuple(self._bad_steps["loss"]),
            gradient_steps=tuple(self._bad_steps["gradient"]),
            weight_steps=tuple(self._bad_steps["weight"]),
            traced_steps=self._sampler.seen_steps,
            inputs=self._inputs.record(),
            outputs=self._outputs.record(),
            buffers=buffers,
            buffers_before=self._buffers.paths_before(),
            replayed_steps=tuple(self._replayed),
            is_compiled=has_compiled_code(),
            guard_ms=self._cost_s * 1_000 / max(self._step, 1),
            trace_ms=self._finder.cost_ns / 1e6 / num_traced,
            note=self._finder.fault or self._again.fault or self._sampler.note,
        )

    def _on_forward(self, event: ForwardStarted) -> None:
        self._watch_closure()
        with self._costed():
            self._models.see_model(event.module)
            self.stack.names.name_of(event.module)  # while the frames that hold it are on the stack
            self._buffers.see_model(event.module)
            if self._sampler.is_watching:
                self._run_uncompiled()
                self._inputs.see_arguments(self._step, event.module, event.args, event.kwargs)
                if event.module not in self._tainted:
                    self._tainted.add(event.module)
                    if not self._step:
                        self._inputs.see_state(self._step, event.module)
                    self._finder.taint((*event.module.parameters(), *event.module.buffers()))
            elif torch.is_grad_enabled():
                self._replay.begin(event.module, event.args, event.kwargs)
            if not torch.is_grad_enabled():
                self._outputs.begin(event.args, event.kwargs)

    def _on_forward_end(self, event: ForwardEnded) -> None:
        """Remember where the gradients of an outermost module's output come back; in an evaluation look at it."""
        with self._costed():
            if not torch.is_grad_enabled():
                self._outputs.end(self._step, event.module, event.output)
            elif not self._sampler.is_watching:
                self._replay.end(event.module, event.output)

    def _on_backward(self, event: BackwardStarted) -> None:
        self._watch_closure()
        with self._costed():
            if not all(map(is_finite, event.roots)):
                self._note_bad("loss")
            if self._sampler.is_watching:
                self._finder.end_forward(event.roots)

    def _on_backward_end(self, _: BackwardEnded) -> None:
        with self._costed():
            if is_any_bad([one.grad for one in self._models.trained() if one.grad is not None]):
                self._note_bad("gradient")
            self._is_alarmed = self._step in (self._bad_steps["loss"] + self._bad_steps["gradient"])[-2:]
        if self._is_alarmed and not self._sampler.is_watching:
            self._explain()

    def _on_step_start(self, event: StepStarted) -> None:
        self._optimizer = event.optimizer
        self._models.see_optimizer(event.optimizer)
        if (
            self._sampler.is_watching
            and event.optimizer is not None
            and event.optimizer not in self._tainted_optimizers
        ):
            self._tainted_optimizers.add(event.optimizer)
            with internal():
                self._finder.taint(_state_of(event.optimizer))
        if self._sampler.is_here and event.is_all and not self._finder.is_anything_bad:
            with self._costed():
                self._sampler.pause()
                if self._sampler.is_paused and not self._step_again.begin(event.optimizer):
                    self._sampler.resume()

    def _watch_closure(self) -> None:
        """An optimizer that evaluates its loss is watched from there on, and so is what follows one that raised."""
        self._sampler.resume()
        self._step_again.clear()

    def _end_pause(self) -> frozenset[int]:
        """Watch on after an optimizer's step, which is made again if it left something behind that is not finite.

        Gives the ids of the tensors that are known to be finite.
        """
        finite: frozenset[int] = frozenset()
        with self._costed():
            held = self._step_again.held() if self._step_again.is_kept else []
            if not is_any_bad(held):
                finite = frozenset(map(id, held))
            else:
                self._is_stepping_again = True
                try:
                    self._step_again.run(self._finder)
                except Exception as error:  # noqa: BLE001 # explaining must not end somebody's training
                    self._finder.fault = f"step {self._step} was not made again: {type(error).__name__}: {error}"
                self._is_stepping_again = False
            self._step_again.clear()
        self._sampler.resume()
        return finite

    def _on_step(self, _: StepOutcome) -> None:
        finite = self._end_pause()
        with self._costed():
            if is_any_bad([one for one in self._models.trained() if id(one) not in finite]):
                self._note_bad("weight")
                is_first = self._bad_steps["weight"] == [self._step] and not self._is_alarmed
                if is_first and not self._finder.has_found_in_step:
                    self._guard_alone(Phase.OPTIMIZER, [(one, one) for one in self._models.trained()])
            self._finder.end_step()
            self._again.step = self._step + 1
            self._replay.clear()
        self._step += 1
        self._is_alarmed = False
        if not self._sampler.is_watching:
            self._compile_again()

    def _explain(self) -> None:
        """Run the step's calls again; what that does not explain is watched in the next steps."""
        if len(self._replayed) < _MAX_REPLAYS:
            self._replayed.append(self._step)
            try:
                with self.stack:
                    self._replay.run(self._again)
            except Exception as error:  # noqa: BLE001 # explaining must not end somebody's training
                self._again.fault = f"step {self._step} could not be run again: {type(error).__name__}: {error}"
            is_explained = self._again.has_found_in_step
            self._again.end_step()
            self._again.step = self._step
            if is_explained:
                return
        self._guard_alone(Phase.BACKWARD, [(one, one.grad) for one in self._models.trained() if one.grad is not None])
        if len(self._steps) < self._max_traced:
            self._steps.add(self._step + 1)

    def _guard_alone(self, phase: Phase, pairs: list[tuple[nn.Parameter, torch.Tensor]]) -> None:
        """Note the parameter that the guard saw, where no operator is known."""
        with internal():
            bad = first_bad(pairs)
        if bad is None or any(one.site.phase is phase for one in self._guarded):
            return
        module, parameter = self._owner(bad)
        self._guarded.append(
            Origin(
                step=self._step,
                kind=NonFiniteKind.NAN if phase is Phase.OPTIMIZER else NonFiniteKind.INF,
                site=Site(phase=phase, module=None if module is None else module.path),
                found_by=FoundBy.GUARD,
                module_kind=None if module is None else module.kind,
                parameter=parameter,
            )
        )

    def _note_bad(self, what: str) -> None:
        steps = self._bad_steps[what]
        if not steps or steps[-1] != self._step:
            steps.append(self._step)

    def _phase(self) -> Phase:
        return Phase.OPTIMIZER if self._is_stepping_again else self._sampler.spot("").phase

    def _owner(self, tensor: torch.Tensor) -> tuple[ModuleName | None, str | None]:
        """The module whose parameter ``tensor`` is, or holds the optimizer's state of."""
        states = getattr(self._optimizer, "state", {})
        parameter = next((p for p, state in states.items() if any(one is tensor for one in state.values())), tensor)
        for root in self._models:
            for module in root.modules():
                for name, one in module.named_parameters(recurse=False):
                    if one is parameter:
                        found = self.stack.names.name_of(module)
                        path = found.path if found is not None else ""
                        return found, f"{path}.{name}" if path else name
        return None, None

    def _run_uncompiled(self) -> None:
        if self._uncompiled is None and has_dynamo():
            self._uncompiled = ExitStack()
            self._uncompiled.callback(run_uncompiled())

    def _compile_again(self) -> None:
        if self._uncompiled is not None:
            self._uncompiled.close()
            self._uncompiled = None

    @contextmanager
    def _costed(self) -> Generator[None]:
        start = time.thread_time()  # others may have the machine in the meantime
        with internal():
            yield
        self._cost_s += time.thread_time() - start


def _state_of(optimizer: Any) -> list[torch.Tensor]:
    """An optimizer's parameters and what it keeps of them."""
    kept = [one for state in optimizer.state.values() for one in state.values() if isinstance(one, torch.Tensor)]
    return [*(one for group in optimizer.param_groups for one in group["params"]), *kept]
