"""Says which precision to train in on a device."""

from dataclasses import dataclass

import torch

from ampwise._base.errors import CannotRunError
from ampwise.plan.presets import get_precision
from ampwise.runtime.hardware.decide import decide, describe
from ampwise.runtime.hardware.facts import DeviceFacts, is_native
from ampwise.runtime.hardware.gather import device_facts, measured_facts
from ampwise.runtime.hardware.placement import check_present, current_device


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The precision a run computes in, and why."""

    precision: str
    """``fp32``, ``tf32``, ``bf16`` or ``fp16``; where it is emulated, any that can be."""
    reason: str
    """Why, in words."""
    slow_factor: float | None
    """How many times as long as fp32's a matrix product takes, where the hardware lacks the precision asked for."""
    device: str
    """As torch writes it: ``cuda:1``."""
    emulated: bool = False
    """Whether the device computes as if it had the precision's hardware."""

    @property
    def label(self) -> str:
        """The precision as readers are told it: ``emulated fp16``."""
        return f"emulated {self.precision}" if self.emulated else self.precision


def choose_precision(requested: str = "auto", *, device: torch.device | None = None) -> Choice:
    """The precision to train in on ``device``: the one asked for, or the one the device is good at.

    ``auto`` measures for a fraction of a second, once in a process; a precision asked for by name is measured
    only where the hardware lacks it.

    Args:
        requested: ``auto`` or a precision's name.
        device: the current device if None.

    Raises:
        UsageError: ``requested`` is not a precision.
        CannotRunError: there is no such device, or it cannot compute in that precision, not even slowly.
    """
    target = current_device() if device is None else device
    check_present(target)
    if requested.strip().lower() == "auto":
        facts = measured_facts(target)
        decision = decide(facts)
        return Choice(precision=decision.precision, reason=decision.reason, slow_factor=None, device=facts.device)
    precision = get_precision(requested)
    facts = device_facts(target)
    if precision.compute == "fp32":
        return Choice(precision="fp32", reason="asked for", slow_factor=None, device=facts.device)
    if precision.compute == "tf32":
        return _tf32(facts)
    if is_native(precision.compute, facts):
        return Choice(precision=precision.compute, reason="asked for", slow_factor=None, device=facts.device)
    return _without_hardware(precision.compute, measured_facts(target))


def _tf32(facts: DeviceFacts) -> Choice:
    if is_native("tf32", facts):
        return Choice(precision="tf32", reason="asked for", slow_factor=None, device=facts.device)
    raise CannotRunError(
        f'precision "tf32": {facts.name} ({facts.device}) cannot compute in it; it needs a CUDA device of compute '
        "capability 8.0 or higher. --emulate tf32 computes on a CPU as if it had it; or choose auto, fp32, bf16 or fp16"
    )


def _without_hardware(name: str, facts: DeviceFacts) -> Choice:
    """Run what can be run, and say what it costs."""
    measured = facts.measured.get(name)
    if measured is None:
        error = facts.failed.get(name) or "it could not be measured"
        raise CannotRunError(
            f'precision "{name}": {facts.name} ({facts.device}) cannot compute in it: {error}; choose auto or fp32'
        )
    is_slow = measured.ratio < 1
    slow = f", but slow: {facts.name} has no {name} hardware, and" if is_slow else ";"
    wrong = f"; {facts.wrong_conv or 'fp16 convolutions are known to give NaN on GTX 16xx and kin'}"
    return Choice(
        precision=name,
        reason=f"asked for{slow} {describe(name, measured)}{wrong if _is_known_wrong(name, facts) else ''}",
        slow_factor=1 / measured.ratio if is_slow else None,
        device=facts.device,
    )


def _is_known_wrong(name: str, facts: DeviceFacts) -> bool:
    return name == "fp16" and facts.is_gtx_16
