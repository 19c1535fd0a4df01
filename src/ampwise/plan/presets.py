"""The precisions a whole training run can be asked for by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ampwise._base.errors import CannotRunError, UsageError
from ampwise._base.suggest import not_one_of
from ampwise.formats.table import find_format


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


def get_precision(name: str) -> Precision:
    """The precision users mean by ``name``; a format's other names (``bfloat16``, ``half``) will do.

    Raises:
        UsageError: ``name`` is neither a precision nor a format; the text suggests one and lists ``auto`` and all.
        CannotRunError: it is a format (fp64, fp8) in which torch's autocast cannot train.
    """
    format_ = find_format(name)
    precision = PRECISIONS.get(format_.name) if format_ else None
    if precision:
        return precision
    names = ("auto", *PRECISIONS)
    if format_ is None:
        raise UsageError(not_one_of(name, names, kind="precision"))
    raise CannotRunError(
        f'precision "{name}": autocast cannot compute in {format_.name}; '
        f"choose one of {', '.join(names)}. Its rounding is what --emulate {format_.name} will show, "
        "which this version does not have yet"
    )
