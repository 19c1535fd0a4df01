"""What a whole training run can be asked for by name: a precision, or a plan that is known to be good."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from ampwise._base.errors import CannotRunError, UsageError
from ampwise._base.suggest import not_one_of
from ampwise.formats.table import find_format
from ampwise.plan.file import preset_plan, preset_rows
from ampwise.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """How a run computes: parameters, gradients and optimizer state stay in fp32 in every one of them."""

    name: str
    compute: str
    """Format of the matrix products and convolutions."""
    needs_loss_scaling: bool
    """Whether small gradients would underflow in ``compute``."""
    needs: str
    """Hardware on which it is fast, in words."""


_ROWS = (
    Precision(name="fp32", compute="fp32", needs_loss_scaling=False, needs="nothing"),
    Precision(
        name="tf32",
        compute="tf32",
        needs_loss_scaling=False,
        needs="a CUDA device of compute capability 8.0 or higher",
    ),
    Precision(
        name="bf16",
        compute="bf16",
        needs_loss_scaling=False,
        needs="a CUDA device of compute capability 8.0 or higher, or a CPU with avx512_bf16 or amx_bf16",
    ),
    Precision(
        name="fp16",
        compute="fp16",
        needs_loss_scaling=True,
        needs="a CUDA device of compute capability 7.0 or higher with tensor cores, or a CPU with amx_fp16",
    ),
)

PRECISIONS: Mapping[str, Precision] = MappingProxyType({row.name: row for row in _ROWS})
"""Every precision by its name. ``auto`` is none of them: it is a request to choose one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A plan that is known to be good, by name."""

    name: str
    about: str
    """What it does, in one line."""
    sources: tuple[str, ...]
    """Where it is from: papers, issues."""
    plan: Plan


@cache
def presets() -> Mapping[str, Preset]:
    """Every preset by its name."""
    return MappingProxyType(
        {
            name: Preset(name=name, about=row["about"], sources=tuple(row["sources"]), plan=preset_plan(name))
            for name, row in preset_rows().items()
        }
    )


def get_precision(name: str) -> Precision:
    """The precision users mean by ``name``; a format's other names (``bfloat16``, ``half``) will do.

    Raises:
        UsageError: ``name`` is neither a precision nor a format; the text suggests one and lists ``auto`` and all.
        CannotRunError: it is a format (fp64, fp8) in which torch's autocast cannot train, or a preset that is more than
            a precision.
    """
    format_ = find_format(name)
    precision = PRECISIONS.get(format_.name) if format_ else None
    if precision:
        return precision
    if name in preset_rows():
        raise CannotRunError(f'"{name}" is a plan, more than a precision: give it as plan="{name}"')
    names = ("auto", *PRECISIONS)
    if format_ is None:
        raise UsageError(not_one_of(name, names, kind="precision"))
    raise CannotRunError(
        f'precision "{name}": autocast cannot compute in {format_.name}; '
        f"choose one of {', '.join(names)}{_emulation_of(format_.name)}"
    )


def _emulation_of(name: str) -> str:
    return f". --emulate {name} computes on a CPU as if it had it" if name.startswith("fp8") else ""
