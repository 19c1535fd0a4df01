"""Chooses a precision from what is known of a device: a pure function, so that every GPU is tested without one."""

from dataclasses import dataclass

from ampwise._base.units import format_ratio
from ampwise.runtime.hardware.facts import DeviceFacts, DeviceKind, Measured, is_native, native_instructions

MARGIN = 1.2
"""How much faster than fp32 a product must be to carry the casts around it and the step's other operators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The precision that suits a device, and why."""

    precision: str
    reason: str


def decide(facts: DeviceFacts) -> Decision:
    """Which precision to train in on a device.

    On CUDA the compute capability decides, elsewhere the measurement; where the two disagree the reason says so.
    """
    match facts.kind:
        case DeviceKind.CPU:
            return _for_cpu(facts)
        case DeviceKind.CUDA:
            return _for_cuda(facts)
        case DeviceKind.ROCM | DeviceKind.OTHER:
            return _by_measurement(facts)


def describe(format_name: str, measured: Measured) -> str:
    """The measurement in words: ``512 x 512 matrix products run 2.31x as fast in bf16 as in fp32``."""
    products = f"{measured.size} x {measured.size} matrix products"
    if measured.ratio >= 1:
        return f"{products} run {format_ratio(measured.ratio)} as fast in {format_name} as in fp32"
    return f"{products} take {format_ratio(1 / measured.ratio)} as long in {format_name} as in fp32"


def _for_cpu(facts: DeviceFacts) -> Decision:
    instructions = native_instructions("bf16", facts)
    has = f"the CPU has {' and '.join(instructions)}" if instructions else "the CPU reports no bf16 instructions"
    measured = facts.measured.get("bf16")
    if measured is None:
        return Decision(precision="fp32", reason=f"{has}, but {_not_measured('bf16', facts)}")
    found = describe("bf16", measured)
    if measured.ratio >= MARGIN:
        link = "and" if instructions else "yet the measurement decides on a CPU:"
        return Decision(precision="bf16", reason=f"{has}, {link} {found}")
    link = "yet the measurement decides on a CPU:" if instructions else "and"
    return Decision(precision="fp32", reason=f"{has}, {link} {found}{_too_little(measured)}")


def _for_cuda(facts: DeviceFacts) -> Decision:
    if facts.capability is None:
        return Decision(precision="fp32", reason=f"the compute capability of {facts.name} could not be read")
    has = f"compute capability {'.'.join(map(str, facts.capability))}"
    if facts.capability >= (8, 0):
        return _for_ampere_on(facts, has)
    if facts.capability >= (7, 0):
        return _for_volta_and_turing(facts, has)
    return Decision(
        precision="fp32", reason=f"{has} has no tensor cores, which came with 7.0{_though_faster('fp16', facts)}"
    )


def _for_ampere_on(facts: DeviceFacts, has: str) -> Decision:
    measured = facts.measured.get("bf16")
    if measured is None:
        return Decision(precision="tf32", reason=f"{has} has TF32, and {_not_measured('bf16', facts)}")
    found = describe("bf16", measured)
    if measured.ratio < 1:
        return Decision(precision="bf16", reason=f"{has} has bf16 tensor cores, which decides, although {found}")
    return Decision(precision="bf16", reason=f"{has} has bf16 tensor cores, and {found}")


def _for_volta_and_turing(facts: DeviceFacts, has: str) -> Decision:
    if facts.is_gtx_16:
        return Decision(
            precision="fp32",
            reason=f"{facts.name} is a GTX 16xx or has its chip, without tensor cores in spite of {has}, and with fp16 "
            f"convolutions known to give NaN{f' (here {facts.wrong_conv})' if facts.wrong_conv else ''}",
        )
    if facts.wrong_conv:
        return Decision(precision="fp32", reason=f"{has} has fp16 tensor cores, but {facts.wrong_conv}")
    measured = facts.measured.get("fp16")
    if measured is None:
        return Decision(precision="fp32", reason=f"{has} has fp16 tensor cores, but {_not_measured('fp16', facts)}")
    link = "which decides, although" if measured.ratio < 1 else "and"
    found = describe("fp16", measured)
    return Decision(
        precision="fp16",
        reason=f"{has} has fp16 tensor cores but none for bf16, {link} {found}; with loss scaling",
    )


def _by_measurement(facts: DeviceFacts) -> Decision:
    """bf16 before fp16, since it needs no loss scaling; then TF32 where the hardware has it."""
    for name in ("bf16", "fp16"):
        measured = facts.measured.get(name)
        if measured is not None and measured.ratio >= MARGIN:
            scaling = "; with loss scaling" if name == "fp16" else ""
            return Decision(precision=name, reason=f"measured on {facts.name}: {describe(name, measured)}{scaling}")
    found = [
        describe(name, facts.measured[name]) if name in facts.measured else _not_measured(name, facts)
        for name in ("bf16", "fp16")
    ]
    precision = "tf32" if is_native("tf32", facts) else "fp32"
    return Decision(precision=precision, reason=f"measured on {facts.name}: {' and '.join(found)}")


def _not_measured(format_name: str, facts: DeviceFacts) -> str:
    error = facts.failed.get(format_name)
    return f"{format_name} could not be measured{f' ({error})' if error else ''}"


def _too_little(measured: Measured) -> str:
    return f", less than the {format_ratio(MARGIN)} that the casts around it cost" if measured.ratio >= 1 else ""


def _though_faster(format_name: str, facts: DeviceFacts) -> str:
    measured = facts.measured.get(format_name)
    if measured is None or measured.ratio < MARGIN:
        return ""
    return f"; that decides on CUDA, although {describe(format_name, measured)}"
