"""``PrecisionScheduler``: groups of modules move to a safer format while a training needs it, and back."""

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from types import TracebackType
from typing import Any, Final, Never, Self

import torch
from torch import Tensor, nn

from ampwise._base.errors import CannotRunError, RecordError, UsageError
from ampwise._base.text import inert_line
from ampwise.adapt.cells import Cells
from ampwise.adapt.encoding import decode, encode
from ampwise.adapt.groups import Groups
from ampwise.adapt.moves import Moves
from ampwise.adapt.options import is_number
from ampwise.adapt.schedule import Schedule
from ampwise.adapt.setup import prepared
from ampwise.adapt.state import Combinations, GroupState, SchedulerState
from ampwise.adapt.telemetry import StepRows
from ampwise.adapt.triggers import Trigger
from ampwise.compat.scaler import scale_of
from ampwise.observe.events import BUS, PrecisionSwitched, PrecisionTaken
from ampwise.plan.find import AnyPlan
from ampwise.records.switches import SwitchRecord
from ampwise.runtime.hardware import host
from ampwise.runtime.scaling.loss_scale import LossScale, StaticLossScale
from ampwise.runtime.scaling.result import StepResult
from ampwise.runtime.scaling.scaler import GradScaler
from ampwise.runtime.step.planned import scale_of_plan

EVERY: Final = 10
"""Steps from one reading to the next, where a reading waits for the device."""
MAX_COMBINATIONS: Final = 8
DEFAULT_TRIGGERS: Final = ("nonfinite", "loss-spike", "underflow-share")
_LOG = logging.getLogger("ampwise")


class PrecisionScheduler:
    """Puts a plan on a model, and moves groups of its modules to a safer format while the training needs it.

    Example::

        scheduler = ampwise.PrecisionScheduler(model, "fp16")
        step = ampwise.TrainStep(optimizer, modules=[model], precision="fp32", loss_scale=scheduler.loss_scale)
        for x, y in loader:
            with step.autocast():
                loss = criterion(model(x), y)
            result = step(loss)
            scheduler.step(loss, result)
        scheduler.close()

    A group goes up when a trigger fires and down after a quiet period. A switch takes effect at the next forward pass;
    it writes to what replaced the modules' forwards and to nothing else: parameters, gradients and the optimizer's
    state stay, nothing is wrapped anew. A compiled model is compiled once more for each combination of raised groups.

    Law: between two readings nothing waits for the device. The same losses, results and gradients give the same
    switches; a run that was saved and went on makes those of one that never stopped.

    Args:
        model: the plan is put on it until ``close()``; DDP, DataParallel and compiled models are looked through.
        plan: what is to be computed in which format; or what names it: a file, a preset, ``"fp16"``.
        triggers: what moves a group up: values such as ``LossSpike(num_deviations=8.0)``, or their names
            (``"loss-spike"``); a ``Schedule`` is one too.
        groups: which modules move together: globs over module paths, each a group, or groups by name with their globs.
            By default a group is a repeated block, another child with modules in it, or the single layers between.
        safer: the format of a group that is up: ``"fp32"`` or ``"bf16"``. What the plan has in a safer one stays there.
        quiet: a group goes down after so many steps in which every trigger was calm; twice as many each time that it
            had to come back within as many steps.
        cool_down: so many steps after a group moved, only lost numbers (infinities, NaN) move it.
        hysteresis: a trigger is calm below this share of what it fires at.
        max_switches: each group moves so often at most, and is up at the end of them.
        max_combinations: how many combinations of groups are ever used, each a graph of a model that is compiled whole;
            groups go up with others where there would be more. By default one more than there are groups, 8 at most:
            as many graphs of one function as torch.compile makes.
        every: steps from one reading to the next. By default 1 on a CPU, and 10 where a reading waits for a device.

    Attributes:
        plan: the plan.
        switches: what moved so far, the oldest first.

    Raises:
        UsageError: options that cannot be meant, or groups that match nothing or overlap; all of them are named.
        PlanError: there is no such plan, it has mistakes, or its rules name modules that the model lacks.
        CannotRunError: the model has a plan already, the plan has nothing to move, or torch cannot do what it asks for.
            The model is left as it was.
    """

    def __init__(  # noqa: PLR0913 - one policy, all its options
        self,
        model: nn.Module,
        plan: AnyPlan,
        *,
        triggers: Sequence[Trigger | Schedule | str] = DEFAULT_TRIGGERS,
        groups: Groups | None = None,
        safer: str = "fp32",
        quiet: int = 25,
        cool_down: int = 10,
        hysteresis: float = 0.5,
        max_switches: int = 20,
        max_combinations: int | None = None,
        every: int | None = None,
    ) -> None:
        policy = {"quiet": quiet, "cool_down": cool_down, "hysteresis": hysteresis, "max_switches": max_switches}
        setup = prepared(
            model,
            plan,
            triggers=triggers,
            groups=groups,
            safer=safer,
            policy=policy,
            max_combinations=max_combinations,
            every=every,
        )
        self.plan = setup.plan
        self.switches: tuple[SwitchRecord, ...] = ()
        self._setup, self._device, self._num_steps = setup, setup.device, 0
        self._scale_before: Tensor | None = None
        num_groups = len(setup.groups)
        groups_at_start = (GroupState(),) * num_groups
        self._state = SchedulerState(policy=setup.policy, triggers=setup.triggers, groups=groups_at_start)
        limit = setup.max_combinations or min(MAX_COMBINATIONS, num_groups + 1)
        self._moves = Moves(
            names=tuple(one.name for one in setup.groups),
            schedules=setup.schedules,
            combinations=Combinations(num_groups=num_groups, limit=limit),
        )
        self._num_low = [0] * num_groups
        with ExitStack() as stack:
            self._cells = Cells(
                setup.model,
                setup.plan,
                setup.groups,
                safer=setup.safer,
                has_rest=setup.has_rest,
                has_products=setup.scaled is not None,
            )
            stack.callback(self._cells.close)
            rows = setup.every or (1 if host.reads_freely(self._device) else EVERY)
            self._telemetry = StepRows(setup.measured(self._cells), device=self._device, every=rows)
            stack.callback(self._telemetry.close)
            self._undo: ExitStack | None = stack.pop_all()
        BUS.publish(PrecisionTaken(what=f"ampwise.PrecisionScheduler ({setup.lowest})"))
        self._move()

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale that the plan needs, for ``TrainStep`` or ``GradScaler``: dynamic where that is fp16, else 1.

        Under either, a step whose gradients are not finite is skipped: no format mends weights that are NaN.
        """
        return scale_of_plan(self.plan) or StaticLossScale(scale=1.0)

    @property
    def groups(self) -> Mapping[str, str]:
        """The groups by name, each with the format it computes in now."""
        return {
            one.name: self._setup.safer if place in self._moves.raised else one_low
            for place, (one, one_low) in enumerate(zip(self._setup.groups, self._setup.low, strict=True))
        }

    @property
    def low_share(self) -> float:
        """Which share of the work was done as the plan says: steps, groups weighed by their parameters' number."""
        weights = self._setup.weights
        total = sum(weights) * self._num_steps
        return sum(num * weight for num, weight in zip(self._num_low, weights, strict=True)) / total if total else 1.0

    def step(
        self, loss: Tensor | float, result: "StepResult | torch.amp.GradScaler | None" = None
    ) -> tuple[SwitchRecord, ...]:
        """Take in a step that has ended; move what is to move.

        Args:
            loss: what was trained on, a scalar.
            result: what ``TrainStep`` gave for it, or the scaler of a loop of one's own after its ``update()``; None
                where there is no loss scale. A result that is no update (a window of accumulation goes on) adds its
                loss to the step's.

        Returns:
            The groups that move now; none in most steps.
        """
        if self._undo is None:
            raise UsageError("this PrecisionScheduler is closed; make another one")
        if self._setup.device != self._device:
            raise CannotRunError(
                f"the model was moved to {self._setup.device} after its PrecisionScheduler was made, which measures on "
                f"{self._device}; make the scheduler after model.to(...)"
            )
        self._telemetry.note_loss(_checked_loss(loss))
        found, scale = self._outcome(result)
        if isinstance(result, StepResult) and not result.is_update:
            return ()
        self._telemetry.end_step(skipped=False if found is None else found, scale=1.0 if scale is None else scale)
        self._num_steps += 1
        for place in range(len(self._num_low)):
            self._num_low[place] += place not in self._moves.raised
        if self._telemetry.is_full:
            raised = tuple(place in self._moves.raised for place in range(len(self._num_low)))
            readings = self._telemetry.read(raised=raised)
            self._state = reduce(SchedulerState.observe, readings, self._state)
        return self._move()

    def state_dict(self) -> dict[str, Any]:
        """All that it goes on from, as plain data: give it to ``save_checkpoint`` in ``extra``."""
        return {
            "groups_by_name": [one.name for one in self._setup.groups],
            "num_steps": self._num_steps,
            "num_low": list(self._num_low),
            "scale": None if self._scale_before is None else self._scale_before.cpu(),
            **encode(self._state, self._moves.combinations),
            **self._telemetry.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave, thresholds included; the groups move to where they were.

        Raises:
            RecordError: it is of other groups or triggers, or no state of a PrecisionScheduler. Nothing is changed.
        """
        names = [one.name for one in self._setup.groups]
        state, combinations, counts = decode(state_dict)
        if counts.names != names:
            raise RecordError(
                f"the state is of the groups {', '.join(counts.names)}, this PrecisionScheduler has {', '.join(names)}"
            )
        kinds = [[type(one).__name__ for one in triggers] for triggers in (state.triggers, self._state.triggers)]
        if kinds[0] != kinds[1] or not self._telemetry.fits(dict(state_dict)):
            raise RecordError(
                f"the state is of the triggers {', '.join(kinds[0])}, this PrecisionScheduler has "
                f"{', '.join(kinds[1])}; give it the same ones, the same every=, and emulate the same format"
            )
        self._state, self._num_steps, self._num_low = state, counts.num_steps, counts.num_low
        self._scale_before = counts.scale
        self._telemetry.load_state_dict(dict(state_dict))
        self._moves = self._moves.resumed(combinations)
        self._cells.switch(self._moves.raised)

    def close(self) -> None:
        """Take the plan and all that measures back; the model is as it was. May be called again."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo.close()

    def __reduce__(self) -> Never:
        """Refuse to be copied or pickled: the copy's ``close()`` would take the plan off the model of this one."""
        raise CannotRunError(
            "a PrecisionScheduler cannot be copied or pickled; save state_dict(), and give it to the load_state_dict() "
            "of one that is made for the other model"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _outcome(
        self, result: "StepResult | torch.amp.GradScaler | None"
    ) -> tuple[Tensor | bool | None, Tensor | None]:
        """Whether the step was skipped, as far as that is known, and what its loss was multiplied by."""
        if isinstance(result, GradScaler):
            result = result.last_step
        if isinstance(result, StepResult):
            if result.loss_tensor is not None and not host.reads_freely(result.loss_tensor):
                raise CannotRunError(
                    "a captured step replays the formats it was recorded in, so no switch reaches it; "
                    "train with TrainStep(...) without capture=True under a PrecisionScheduler"
                )
            return result.found_inf, result.scale_tensor
        if isinstance(result, torch.amp.GradScaler):
            after = scale_of(result)  # update() has moved it on
            before, self._scale_before = self._scale_before, after
            return None, after if before is None else before
        if result is not None:
            raise UsageError(
                f"scheduler.step(loss, result) was given a {type(result).__name__}; give what TrainStep returned, or "
                "the GradScaler"
            )
        return None, None

    def _move(self) -> tuple[SwitchRecord, ...]:
        before = self._moves.raised
        self._moves = self._moves.at(self._num_steps, self._state)
        if self._moves.raised == before:
            return ()
        self._cells.switch(self._moves.raised)
        moved = tuple(self._switched(place, before) for place in sorted(self._moves.raised ^ before))
        self.switches += moved
        return moved

    def _switched(self, place: int, before: frozenset[int]) -> SwitchRecord:
        setup, is_raised = self._setup, place not in before
        formats = (setup.low[place], setup.safer)
        switch = SwitchRecord(
            step=self._num_steps,
            group=setup.groups[place].name,
            before=formats[not is_raised],
            after=formats[is_raised],
            is_raised=is_raised,
            cause=self._moves.cause(place, self._num_steps, self._state),
        )
        _LOG.info("step %d: %s to %s: %s", switch.step, inert_line(switch.group), switch.after, switch.cause)
        BUS.publish(PrecisionSwitched(switch=switch))
        return switch


def _checked_loss(loss: Any) -> Tensor | float:
    if isinstance(loss, Tensor) and loss.numel() == 1 and not loss.is_complex():
        return loss
    if is_number(loss):
        try:
            return float(loss)
        except OverflowError:  # a whole number beyond every float
            return math.inf if loss > 0 else -math.inf
    given = f"a {type(loss).__name__}" if loss is not None else "None"
    given = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else given
    raise UsageError(f"scheduler.step(loss) was given {given}; give the loss, a scalar (the sum of several)")
