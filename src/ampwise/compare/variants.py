"""Reads which variants of a script are to be compared: ``fp32,auto,bf16+compile``."""

from collections.abc import Iterable
from dataclasses import dataclass

from ampwise._base.errors import AmpwiseError, CannotRunError, UsageError
from ampwise._base.suggest import not_one_of
from ampwise._base.text import inert_line
from ampwise.emulate.recipes import get_recipe
from ampwise.formats.table import find_format
from ampwise.plan.find import find_plan
from ampwise.plan.plan import Plan
from ampwise.plan.presets import get_precision
from ampwise.runner.planned import in_precision, is_plan_name
from ampwise.runner.spec import LaunchSpec

_COMPILE = "compile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way of running the script."""

    name: str
    """As the user wrote it."""
    precision: str
    """``auto`` or a precision's own name."""
    compile: bool = False
    emulate: str | None = None
    """The format whose hardware the CPU is to have; it is then the precision too."""
    plan: Plan | None = None
    """The precision is its default."""

    @property
    def is_fp32(self) -> bool:
        """Whether it is the reference that losses are judged by."""
        return self.precision == "fp32" and not self.compile and self.plan is None


FP32 = Variant(name="fp32", precision="fp32")


def parse_variants(text: str, *, emulate: str | None = None) -> tuple[Variant, ...]:
    """The variants that ``text`` names, in its order, then those that ``emulate`` names.

    Raises:
        UsageError: some are unknown or named twice; all mistakes are told at once.
        CannotRunError: some are formats that autocast cannot compute in.
    """
    variants: list[Variant] = []
    errors: list[AmpwiseError] = []
    given = {"--precision": (text, _parse), "--emulate": (emulate, _parse_emulated)}
    for option, (names, parse) in given.items():
        for name in (part.strip() for part in names.split(",")) if names is not None else ():
            try:
                variants.append(parse(name))
            except AmpwiseError as error:
                errors.append(type(error)(f"{option}: {error}"))
    errors.extend(_duplicates(variants))
    if errors:
        kind = UsageError if any(isinstance(error, UsageError) for error in errors) else CannotRunError
        raise kind("; ".join(map(str, errors)))
    return tuple(variants)


def _parse(name: str) -> Variant:
    precision, is_compiled = _parts(name, example="fp32,auto")
    if is_plan_name(precision) or _is_file(precision):
        plan = find_plan(name.partition(f"+{_COMPILE}")[0].strip())
        own = get_precision(plan.default).name
        return Variant(name=inert_line(name), precision=own, compile=is_compiled, plan=plan)
    known = in_precision(LaunchSpec(), precision).precision
    return Variant(name=inert_line(name), precision=known, compile=is_compiled)


def _is_file(word: str) -> bool:
    """Whether the word is meant as a plan's file; a precision that is misspelt is not."""
    return word != "auto" and find_format(word) is None and (word.endswith(".toml") or "/" in word)


def _parse_emulated(name: str) -> Variant:
    format_name, is_compiled = _parts(name, example="fp16,fp8")
    known = get_recipe(format_name).name
    title = f"emulated {known}+{_COMPILE}" if is_compiled else f"emulated {known}"
    return Variant(name=title, precision=known, compile=is_compiled, emulate=known)


def _parts(name: str, *, example: str) -> tuple[str, bool]:
    """What stands before ``+compile``, and whether that is there."""
    if not name:
        raise UsageError(f"a name is missing; write them with commas between, as in {example}")
    first, *additions = (part.strip().lower() for part in name.split("+"))
    for addition in additions:
        if addition != _COMPILE:
            raise UsageError(
                f'"{inert_line(name)}": {not_one_of(inert_line(addition), [_COMPILE], kind="known addition")}'
            )
    return first, bool(additions)


def _duplicates(variants: Iterable[Variant]) -> list[UsageError]:
    seen: dict[tuple[object, ...], str] = {}
    errors: list[UsageError] = []
    for variant in variants:
        key = (variant.precision, variant.compile, variant.emulate, variant.plan)
        if key in seen:
            option = "--precision" if variant.emulate is None else "--emulate"
            same = f"{seen[key]} and {variant.name} are the same" if seen[key] != variant.name else variant.name
            errors.append(UsageError(f"{option}: {same}; name each variant once (more runs of each: --repeat)"))
        seen.setdefault(key, variant.name)
    return errors
