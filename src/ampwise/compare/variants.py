"""Reads which variants of a script are to be compared: ``fp32,auto,bf16+compile``."""

from collections.abc import Iterable
from dataclasses import dataclass

from ampwise._base.errors import AmpwiseError, CannotRunError, UsageError
from ampwise._base.suggest import not_one_of
from ampwise._base.text import inert_line
from ampwise.plan.presets import get_precision

_COMPILE = "compile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way of running the script."""

    name: str
    """As the user wrote it."""
    precision: str
    """``auto`` or a precision's own name."""
    compile: bool = False

    @property
    def is_fp32(self) -> bool:
        """Whether it is the reference that losses are judged by."""
        return self.precision == "fp32" and not self.compile


FP32 = Variant(name="fp32", precision="fp32")


def parse_variants(text: str) -> tuple[Variant, ...]:
    """The variants that ``text`` names, in its order.

    Raises:
        UsageError: some are unknown or named twice; all mistakes are told at once.
        CannotRunError: some are formats that autocast cannot compute in.
    """
    variants: list[Variant] = []
    errors: list[AmpwiseError] = []
    for name in (part.strip() for part in text.split(",")):
        try:
            variants.append(_parse(name))
        except AmpwiseError as error:
            errors.append(error)
    errors.extend(_duplicates(variants))
    if errors:
        kind = UsageError if any(isinstance(error, UsageError) for error in errors) else CannotRunError
        raise kind("; ".join(f"--precision: {error}" for error in errors))
    return tuple(variants)


def _parse(name: str) -> Variant:
    if not name:
        raise UsageError("a name is missing; write them with commas between, as in fp32,auto")
    precision, *additions = (part.strip().lower() for part in name.split("+"))
    for addition in additions:
        if addition != _COMPILE:
            raise UsageError(
                f'"{inert_line(name)}": {not_one_of(inert_line(addition), [_COMPILE], kind="known addition")}'
            )
    known = precision if precision == "auto" else get_precision(precision).name
    return Variant(name=inert_line(name), precision=known, compile=bool(additions))


def _duplicates(variants: Iterable[Variant]) -> list[UsageError]:
    seen: dict[tuple[str, bool], str] = {}
    errors: list[UsageError] = []
    for variant in variants:
        key = (variant.precision, variant.compile)
        if key in seen:
            same = f"{seen[key]} and {variant.name} are the same" if seen[key] != variant.name else variant.name
            errors.append(UsageError(f"{same}; name each variant once (more runs of each: --repeat)"))
        seen.setdefault(key, variant.name)
    return errors
