"""What the rules on infinities and NaN share: where they came from, what they looked like, and what removed them."""

import math
from collections.abc import Iterator

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.plan.plan import Rule
from ampwise.plan.writing import rule_to_toml
from ampwise.records.nonfinite import Operand, Origin
from ampwise.records.run import Role, RunRecord
from ampwise.records.site import Site


def origins(case: Case) -> tuple[Origin, ...]:
    """Operators that made infinities or NaN of finite numbers, the first first: of the trace where there is one."""
    for run in (case.rerun(Role.TRACED), case.run):
        if run is not None and run.nonfinite is not None and run.nonfinite.origins:
            return run.nonfinite.origins
    return ()


def format_of(origin: Origin) -> str | None:
    """The format of the operator's result, as users say it."""
    if origin.output is not None:
        return origin.output.dtype
    return origin.inputs[0].dtype if origin.inputs else None


def has_fault(run: RunRecord | None) -> bool:
    """Whether a run was seen to have lost its numbers: a loss that is not finite."""
    return run is not None and any(step.loss is not None and not math.isfinite(step.loss) for step in run.steps)


def seen_in(origin: Origin) -> str:
    """The figures that show it: the inputs' formats and ranges, and what became of them."""
    inputs = "; ".join(_range(one) for one in origin.inputs[:3])
    output = origin.output
    made = "" if output is None else f"its {output.dtype} result holds {_losses(output)}"
    shown = ", ".join(part for part in (f"inputs {inputs}" if inputs else "", made) if part)
    return f"step {origin.step}: {shown}" if shown else f"step {origin.step}"


def what_removed_it(case: Case) -> Iterator[str]:
    """Which of the reruns did without the fault, in words."""
    words = {
        Role.RESCUED: "with the suspected modules in fp32",
        Role.UNSCALED: "without the loss scale",
        Role.IN_FP32: "in fp32",
    }
    for role, text in words.items():
        run = case.rerun(role)
        if run is not None and run.steps:
            yield f"{text} it {'stays' if has_fault(run) else 'is gone'}"


def kept_in_fp32(site: Site, because: str) -> str | None:
    """The rule of a plan that computes the module in fp32; None for the whole model, or where no module is known."""
    if not site.module:
        return None
    return rule_to_toml(Rule(module=site.module, compute="fp32", because=because))


def place_words(site: Site) -> str:
    """The operator and its module, for a sentence: ``aten.mm in layers.1.wo``."""
    op = site.op or "an operator"
    return f"{inert_line(op)} in {inert_line(site.module)}" if site.module else inert_line(op)


def _range(one: Operand) -> str:
    shape = "x".join(map(str, one.shape)) or "single"
    if one.amax is None:
        return f"{one.dtype} {shape}"
    return f"{one.dtype} {shape} up to {one.amax:.3g}"


def _losses(one: Operand) -> str:
    parts = [f"{one.num_infinite} inf" * bool(one.num_infinite), f"{one.num_nan} NaN" * bool(one.num_nan)]
    return " and ".join(part for part in parts if part) or "no finite number"
