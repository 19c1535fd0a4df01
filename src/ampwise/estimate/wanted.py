"""In which precision, or by which plan, an imaginary run trains: what ``--precision`` and ``--plan`` name."""

from dataclasses import dataclass

from ampwise._base.errors import UsageError
from ampwise._base.suggest import not_one_of
from ampwise._base.text import inert_line
from ampwise.estimate.order import GpuSpec
from ampwise.formats.hardware import natively_fast_formats
from ampwise.formats.table import find_format
from ampwise.plan.file import preset_rows
from ampwise.plan.find import find_plan
from ampwise.plan.plan import Plan
from ampwise.plan.presets import PRECISIONS
from ampwise.runner.planned import as_asked, is_plan_name, with_plan
from ampwise.runner.spec import LaunchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How a run computes."""

    name: str
    """As the user wrote it."""
    compute: str
    """``fp32``, ``tf32``, ``bf16`` or ``fp16``: the precision, or the plan's default."""
    plan: str | None = None
    """A plan as TOML, whose rules hold beside it."""


def wanted(word: str, *, gpu: GpuSpec) -> Wanted:
    """What ``word`` means: ``auto``, a precision, a preset or a plan's file.

    Raises:
        UsageError: it is none of these.
        CannotRunError: torch's autocast cannot train in it.
        PlanError: the plan has mistakes.
    """
    if word == "auto":
        best = _best(gpu)
        return Wanted(name=f"auto ({best})", compute=best)
    if is_plan_name(word) or word.endswith(".toml") or ("/" in word and find_format(word) is None):
        return by_plan(word, find_plan(word))
    if find_format(word) is None:
        known = ("auto", *preset_rows())
        raise UsageError(f"{not_one_of(inert_line(word), known, kind='precision')}; or a plan's file: plan.toml")
    precision = as_asked(LaunchSpec(), plan=None, precision=word).precision
    return Wanted(name=precision, compute=precision)


def by_plan(name: str, plan: Plan) -> Wanted:
    """What a plan means, shown as ``name``.

    Raises:
        CannotRunError: a run cannot follow it.
    """
    spec = with_plan(LaunchSpec(), plan)
    is_precision = name in PRECISIONS and not plan.rules
    return Wanted(name=name, compute=spec.precision, plan=None if is_precision else spec.plan)


def slow_note(gpu: GpuSpec, compute: str) -> str | None:
    """What to know of a precision that the GPU has no hardware for; None where it has."""
    capability = gpu.compute_capability
    if compute == "fp32" or capability is None or compute in natively_fast_formats(capability, name=gpu.name):
        return None
    return f"the {gpu.name} has no hardware for {compute}: it takes this memory there, and saves no time"


def _best(gpu: GpuSpec) -> str:
    """The 16-bit format that the GPU is fast in, as ``run`` chooses it; fp32 where there is none."""
    if gpu.compute_capability is None:
        return "bf16"
    fast = natively_fast_formats(gpu.compute_capability, name=gpu.name)
    return next((name for name in ("bf16", "fp16") if name in fast), "fp32")
