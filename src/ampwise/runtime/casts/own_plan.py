"""What a plan that a script itself puts into effect is to whoever governs the run."""

from typing import Final

import torch

from ampwise.compat.autocast import is_enabled
from ampwise.observe.events import BUS, PrecisionTaken
from ampwise.plan.plan import Plan

_FULL: Final = frozenset({"fp32", "fp64", None})


def announce(plan: Plan, *, by: str) -> None:
    """Tell who set a precision for the run that the script has its own from here on."""
    num = len(plan.rules)
    rules = f", {num} rule{'s' * (num != 1)}" if num else ""
    computed = {plan.default, *(rule.compute for rule in plan.rules)}
    low = next((one for one in ("fp16", "bf16") if one in computed), None)
    BUS.publish(PrecisionTaken(what=f"{by} ({plan.default}{rules})", low=low))


def is_held_off(plan: Plan, device_type: str) -> bool:
    """Whether the plan must have no effect: in a run that is made to see the script in fp32, no autocast has any."""
    asked = {plan.default, plan.grad, plan.output, *(one for rule in plan.rules for one in rule.wanted)}
    # every device's autocast takes fp16; its default may be one that turns it off
    return not asked <= _FULL and not is_enabled(torch.autocast(device_type, dtype=torch.float16))
