"""Puts a precision into effect for a whole script that knows nothing of it, and takes it back afterwards."""

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ampwise.emulate.emulation import emulated
from ampwise.emulate.recipes import RECIPES
from ampwise.interpose.cast_lists import share_cuda_lists, use_cuda_lists
from ampwise.interpose.custom_function import functions_in_fp32
from ampwise.interpose.data import keep_data_out
from ampwise.interpose.module_call import MODULE_CALL
from ampwise.interpose.numpy_view import upcast_for_numpy
from ampwise.interpose.own_amp import on_own_amp, where
from ampwise.interpose.seam import intercept
from ampwise.interpose.sparse_matmul import multiply_sparse_in_fp32
from ampwise.interpose.threads import pass_to_threads
from ampwise.observe.events import BUS, EventBus, PrecisionTaken, StepOutcome
from ampwise.observe.loop import LoopWatcher
from ampwise.runner.hidden_scale import HiddenScale
from ampwise.runner.regions import AutocastRegions
from ampwise.runner.sidecar import keep_scale_beside_checkpoints
from ampwise.runner.spec import Lists

if TYPE_CHECKING:
    from ampwise.plan.plan import Plan
    from ampwise.runner.low_parameters import LowParameters
    from ampwise.runtime.hardware.device import Choice
    from ampwise.runtime.scaling.loss_scale import LossScale

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The precisions that are autocast's; the others are the hardware's."""

_PLAN_LEFT = (
    "plan: not in effect in a script with its own mixed precision; there the script itself applies it: "
    "ampwise.apply_plan(model, PLAN)"
)


class Injected:
    """What became of an injected precision so far."""

    def __init__(self) -> None:
        self.left_alone: str | None = None
        """The script's own mixed precision, with its place, where ampwise stepped back for it."""
        self._notes: list[str] = []
        self.num_steps = 0
        self.num_skipped = 0
        self._scale: Callable[[], float | None] = lambda: None
        self._rules: Callable[[], Iterable[str]] = tuple

    @property
    def notes(self) -> list[str]:
        """What else the reader should know, each once."""
        return [*self._notes, *self._rules()]

    @property
    def scale(self) -> float | None:
        """The hidden loss scale; None where there is none."""
        return self._scale()

    def note(self, text: str) -> None:
        """Add a note, unless it is there."""
        if text not in self._notes:
            self._notes.append(text)

    def count(self, outcome: StepOutcome) -> None:
        """Count a step."""
        self.num_steps += 1
        self.num_skipped += not bool(outcome.stepped)

    def show_rules(self, rules: Callable[[], Iterable[str]]) -> None:
        """Take from ``rules`` what a plan's rules held for."""
        self._rules = rules

    def show_scale(self, scale: Callable[[], float | None]) -> None:
        """Take the scale from ``scale`` from now on."""
        self._scale = scale


@contextmanager
def inject(
    *,
    choice: "Choice",
    lists: Lists = Lists.CUDA,
    plan: "Plan | None" = None,
    loss_scale: "LossScale | None" = None,
    rules_stay: bool = False,
    on_plan_left: Callable[[str], None] | None = None,
    bus: EventBus = BUS,
) -> Generator[Injected]:
    """Let a precision take effect for whatever training loop runs meanwhile, and publish the loop's events.

    A script that does mixed precision by itself is left to it, from the moment it does.

    Args:
        choice: The precision, and on which device.
        lists: Whose cast lists autocast follows.
        plan: Whose rules hold beside that precision, which is its default.
        loss_scale: fp16's loss scale to start from; None starts torch's dynamic one.
        rules_stay: The plan's rules hold in a script with its own mixed precision too.
        on_plan_left: Told at once where a plan ends for the script's own mixed precision, and of what.
        bus: Where the loop's events go.
    """
    injected = Injected()
    with ExitStack() as stack:
        if choice.emulated:  # outside of all that the script's own mixed precision puts an end to
            stack.enter_context(emulated(choice.precision))
        effect = _Effect(choice, lists, loss_scale, injected, plan, rules_stay=rules_stay, on_plan_left=on_plan_left)
        stack.callback(bus.subscribe(StepOutcome, injected.count))
        stack.enter_context(LoopWatcher(bus, judge=effect.judge))
        stack.callback(bus.subscribe(StepOutcome, effect.settle))
        stack.callback(on_own_amp(effect.leave_alone, is_ours=effect.has_cast))
        stack.callback(bus.subscribe(PrecisionTaken, effect.leave_to))
        stack.callback(effect.stop_rules)
        stack.callback(effect.stop)
        effect.start()
        yield injected


class _Effect:
    """The precision's parts, put into effect and taken back together."""

    def __init__(
        self,
        choice: "Choice",
        lists: Lists,
        loss_scale: "LossScale | None",
        injected: Injected,
        plan: "Plan | None" = None,
        *,
        rules_stay: bool = False,
        on_plan_left: Callable[[str], None] | None = None,
    ) -> None:
        self._plan = plan
        self._on_plan_left = on_plan_left
        self._rules_stay = rules_stay
        self._choice = choice
        self._lists = lists
        self._injected = injected
        has_fp16 = choice.precision == "fp16" or (plan is not None and any(one.compute == "fp16" for one in plan.rules))
        self._scaling = HiddenScale(loss_scale) if has_fp16 else None
        self._low_parameters: LowParameters | None = None
        self._settles_late = False
        self._stack = ExitStack()
        self._rules = ExitStack()

    def start(self) -> None:
        choice = self._choice
        dtype = _DTYPES.get((RECIPES[choice.precision].autocast or "") if choice.emulated else choice.precision)
        if dtype is not None:
            self._start_autocast(torch.device(choice.device).type, dtype)
        elif choice.precision == "tf32" and not choice.emulated:
            from ampwise.compat.tf32 import tf32_enabled

            self._stack.enter_context(tf32_enabled(on=True))
        if self._scaling is not None:
            self._start_scaling(self._scaling)
        if self._plan is not None and self._plan.parameters in _DTYPES:
            self._start_low_parameters(self._plan)
        if self._plan is not None:
            self._start_rules(self._plan, torch.device(choice.device).type)

    def stop(self) -> None:
        self._stack.close()

    def stop_rules(self) -> None:
        self._rules.close()

    def has_cast(self, param: torch.Tensor) -> bool:
        """Whether the plan, not the script, has brought ``param`` to its format."""
        return self._low_parameters is not None and self._low_parameters.has_cast(param)

    def leave_alone(self, what: str, *, in_dynamo: bool) -> None:
        """Step back for the script's own mixed precision; while Dynamo is at work, only after the step."""
        if self._injected.left_alone is None:
            self._injected.left_alone = what
            self._tell_of_plan(what)
        if in_dynamo or self._settles_late:
            return
        if torch.is_inference_mode_enabled():  # whose end puts autocast back as it was at its beginning
            self._settles_late = True
            self._stack.callback(intercept(MODULE_CALL, self._settle_outside))
        else:
            self.settle()

    def _settle_outside(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not torch.is_inference_mode_enabled():
            self.settle()
        return proceed(*args, **kwargs)

    def _tell_of_plan(self, what: str) -> None:
        if self._plan is None or self._rules_stay:
            return
        self._injected.note(_PLAN_LEFT)
        if self._on_plan_left is not None:
            self._on_plan_left(what)

    def leave_to(self, taken: PrecisionTaken) -> None:
        """Step back for a loop that says itself that it governs its precision."""
        self.leave_alone(f"{taken.what} made {where()}", in_dynamo=False)

    def settle(self, _: StepOutcome | None = None) -> None:
        """Step back if the script's own mixed precision was found."""
        if self._injected.left_alone is not None:
            self._injected.show_scale(lambda: None)
            self._scaling = None
            self.stop()
            if not self._rules_stay:
                self.stop_rules()

    def judge(self, optimizer: Any) -> StepOutcome:
        """How the step that has just ended went."""
        if self._scaling is None:
            return StepOutcome(optimizer=optimizer)
        return self._scaling.judge(optimizer)

    def _start_autocast(self, device_type: str, dtype: torch.dtype) -> None:
        stack = self._stack
        if self._lists is Lists.CUDA:
            stack.callback(use_cuda_lists(device_type))
            stack.callback(multiply_sparse_in_fp32())
        regions = AutocastRegions(device_type, dtype, on_full_precision=self._note_full_precision)
        stack.callback(regions.stop)
        regions.start()
        for undo in (
            functions_in_fp32(device_type),
            upcast_for_numpy(dtype, torch.bfloat16),
            keep_data_out(device_type),
            pass_to_threads(device_type),
        ):
            stack.callback(undo)

    def _start_low_parameters(self, plan: "Plan") -> None:
        from ampwise.runner.low_parameters import LowParameters

        low = LowParameters(plan)
        self._stack.callback(low.stop)
        low.start()
        self._low_parameters = low
        self._injected.note(f"plan: parameters are kept in {plan.parameters}, {plan.updates.words}")

    def _start_rules(self, plan: "Plan", device_type: str) -> None:
        from ampwise.runner.plan_rules import PlanRules

        if self._lists is Lists.CUDA and any(rule.compute in _DTYPES for rule in plan.rules):
            self._rules.callback(share_cuda_lists(device_type))  # where the default, being fp32, did not
        rules = PlanRules(plan, device_type=device_type)
        self._rules.callback(rules.stop)
        rules.start()
        self._injected.show_rules(rules.notes)

    def _start_scaling(self, scaling: HiddenScale) -> None:
        self._stack.callback(scaling.stop)
        scaling.start()
        self._injected.show_scale(lambda: scaling.scale)
        self._stack.callback(keep_scale_beside_checkpoints(scaling, note=self._injected.note))

    def _note_full_precision(self, optimizer: Any) -> None:
        name = type(optimizer).__name__
        self._injected.note(f"{name}'s closure ran in fp32: its line search needs exact losses")
