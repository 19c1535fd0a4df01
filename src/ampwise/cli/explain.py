"""``ampwise explain``: what a format, a number in each, an operator or a rule is."""

import json
import math
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence

import click

from ampwise._base.errors import UsageError
from ampwise._base.suggest import closest
from ampwise._base.text import inert_line
from ampwise.cli.completion import complete_plans, complete_topics
from ampwise.cli.operator_text import operator_head, operator_rows, planned_rows
from ampwise.cli.rule_text import find_rule, rule_lines
from ampwise.formats import FORMATS, find_format
from ampwise.formats.explain import (
    FormatFacts,
    Image,
    LossScaling,
    NumberFacts,
    Outcome,
    explain_format,
    explain_number,
    parse_number,
)
from ampwise.plan.explain import explain_in_plan
from ampwise.plan.find import find_plan
from ampwise.plan.operators import OperatorDescription, describe_operator, is_operator, nearest_operator
from ampwise.plan.presets import PRECISIONS
from ampwise.records.files import to_plain
from ampwise.records.finding import RuleInfo

_OUTCOMES = {
    Outcome.EXACT: "exact",
    Outcome.ROUNDED: "rounded",
    Outcome.SUBNORMAL: "subnormal, few digits",
    Outcome.ZERO: "underflows to zero",
    Outcome.OVERFLOW: "overflows",
}


_GTX_16XX = (7, 5)
"""Their compute capability; they have no tensor cores."""

_NEGATIVE = re.compile(r"-(?:[\d.]|inf|nan)", re.IGNORECASE)


class _TakesNegativeNumbers(click.Command):
    """A command to which ``-3e5`` is an argument, not the options 3, e and 5."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" not in args:
            numbers = [arg for arg in args if _NEGATIVE.match(arg)]
            args = [arg for arg in args if arg not in numbers] + ["--", *numbers]
        return super().parse_args(ctx, args)


@click.command("explain", cls=_TakesNegativeNumbers)
@click.argument("word", shell_complete=complete_topics)
@click.option(
    "--plan",
    shell_complete=complete_plans,
    metavar="PLAN",
    help="Say of an operator what this plan makes of it: a file, or a preset.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(word: str, *, plan: str | None, as_json: bool) -> None:
    """Explain a format, what a number becomes in each format, in which precision an operator runs, or a rule.

    WORD is a format (fp16, bf16, half, ...), a number (1e-8, 65520, -3e5, 2^-24, 1/3, nan, inf), an operator
    (softmax, F.layer_norm, nn.BCELoss, attention, @, ...) or a rule of lint (MP101) or the
    doctor (DR101).

    \b
    ampwise explain fp16
    ampwise explain 1e-8
    ampwise explain softmax
    ampwise explain --plan plan.toml softmax
    ampwise explain DR101
    """  # noqa: D301 - click's mark for a block kept as it is
    if plan is not None:
        _explain_in_plan(word, plan, as_json=as_json)
        return
    facts = _facts(word)
    kind, lines = _shown(facts)
    click.echo(json.dumps({kind: to_plain(facts)}, indent=1, allow_nan=False) if as_json else "\n".join(lines))


def _explain_in_plan(word: str, plan: str, *, as_json: bool) -> None:
    planned = explain_in_plan(word, find_plan(plan))
    if as_json:
        click.echo(json.dumps({"plan": plan, "planned_operator": to_plain(planned)}, indent=1, allow_nan=False))
        return
    shown = inert_line(word, max_length=60)
    head = (
        f"{shown}, under {inert_line(plan)} and the cast lists of torch {planned.torch_version}; the first that fits:"
    )
    click.echo("\n".join([head, *_wrapped(planned_rows(planned))]))


def _facts(word: str) -> FormatFacts | NumberFacts | OperatorDescription | RuleInfo:
    rule = find_rule(word)
    if rule is not None:
        return rule
    format_ = find_format(word)
    if format_ is not None:
        return explain_format(format_)
    value = parse_number(word)
    if value is not None:
        return explain_number(value, given=word.strip())
    if is_operator(word):
        return describe_operator(word)
    shown = inert_line(word, max_length=60)
    aliases = [alias for row in FORMATS.values() for alias in row.aliases]
    near = nearest_operator(word) or closest(word, [*FORMATS, *aliases])
    hint = f'; did you mean "{near}"?' if near else ""
    raise UsageError(
        f'"{shown}" is neither a format nor a number nor an operator{hint} '
        f"(formats: {', '.join(FORMATS)}; numbers as in 1e-8, 65520, 2^-24, nan, inf; operators as in softmax; "
        "rules as in MP101 or DR101)"
    )


def _shown(facts: FormatFacts | NumberFacts | OperatorDescription | RuleInfo) -> tuple[str, list[str]]:
    """Which kind of thing it is, and the lines that say so."""
    match facts:
        case FormatFacts():
            return "format", _format_lines(facts)
        case NumberFacts():
            return "number", _number_lines(facts)
        case OperatorDescription():
            return "operator", [operator_head(facts), *_wrapped(operator_rows(facts))]
        case RuleInfo():
            return "rule", list(rule_lines(facts))


def _format_lines(facts: FormatFacts) -> list[str]:
    rows = [
        ("bits", f"1 sign, {facts.exponent_bits} exponent, {facts.mantissa_bits} mantissa; {_storage(facts)}"),
        ("largest", f"{_show(facts.max)}{_overflow(facts)}"),
        ("smallest normal", f"{_show(facts.smallest_normal)}; below it numbers are subnormal and lose digits"),
        ("smallest subnormal", f"{_show(facts.smallest_subnormal)}{_underflow(facts)}"),
        ("ulp at 1.0 (eps)", f"{_show(facts.eps)}; 1.0 + 0.0005 comes out as {facts.one_plus_half_thousandth:.5g}"),
        ("whole numbers", f"exact up to {facts.max_exact_integer}"),
        ("tensor cores", _gpus(facts)),
        ("CPU instructions", ", ".join(facts.cpu_flags)),
        ("in training", _training(facts.name)),
    ]
    others = ", ".join(alias for alias in facts.aliases if alias != facts.title)
    return [f"{facts.name}: {facts.title}{f' (also {others})' if others else ''}", *_wrapped(rows)]


def _wrapped(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Names and their texts in two columns as wide as the terminal; an empty text is left out with its name."""
    table = [(f"  {name}  ", text) for name, text in rows if text]
    indent = max(len(name) for name, _ in table)
    return [
        line
        for name, text in table
        for line in textwrap.wrap(
            text,
            shutil.get_terminal_size().columns,
            initial_indent=name.ljust(indent),
            subsequent_indent=" " * indent,
        )
    ]


def _gpus(facts: FormatFacts) -> str:
    if facts.least_compute_capability is None:
        return ""
    major, minor = facts.least_compute_capability
    exception = ", but for GTX 16xx" if (major, minor) <= _GTX_16XX else ""
    return f"compute capability {major}.{minor} and above{exception}: {', '.join(facts.gpus)}"


def _storage(facts: FormatFacts) -> str:
    return f"stored in {facts.storage_bits // 8} byte{'s' if facts.storage_bits > 8 else ''}"


def _overflow(facts: FormatFacts) -> str:
    if facts.overflow_threshold is None:
        return ""
    limit = _show(facts.overflow_threshold)
    where = f"{limit} and above" if facts.overflows_at_threshold else f"above {limit}"
    return f"; {where} overflow to {_show(facts.overflows_to)}"


def _underflow(facts: FormatFacts) -> str:
    if facts.underflow_threshold is None:
        return ""
    power = round(math.log2(facts.underflow_threshold))
    return f"; {_show(facts.underflow_threshold)} (2^{power}) and below become 0"


def _training(name: str) -> str:
    precision = PRECISIONS.get(name)
    if precision is None:
        return ""
    scaling = "needs loss scaling" if precision.needs_loss_scaling else "needs no loss scaling"
    return f"{scaling}; fast on {precision.needs}" if precision.needs != "nothing" else f"{scaling}; runs everywhere"


def _number_lines(facts: NumberFacts) -> list[str]:
    head = ("  format", "becomes", "what happens", "rel. error", "ulp", "1.0 + it")
    lines = [facts.given, *_columns([head, *map(_image_row, facts.images)])]
    return lines if facts.loss_scaling is None else [*lines, "", *_scaling_lines(facts.loss_scaling)]


def _image_row(image: Image) -> Sequence[str]:
    error = "" if image.relative_error is None else f"{image.relative_error:.1e}" if image.relative_error else "0"
    return (
        f"  {image.format}",
        _show(image.becomes),
        _OUTCOMES[image.outcome] if math.isfinite(image.becomes) or image.outcome is Outcome.OVERFLOW else "stays",
        error,
        f"{image.ulp:.1e}" if math.isfinite(image.ulp) else "",
        _show(image.one_plus),
    )


def _scaling_lines(scaling: LossScaling) -> list[str]:
    rows = [(f"  {row.scale}", _show(row.becomes), _OUTCOMES[row.outcome]) for row in scaling.common]
    return ["As a gradient in fp16, under a loss scale of:", *_columns(rows), _scaling_verdict(scaling)]


def _scaling_verdict(scaling: LossScaling) -> str:
    if scaling.common[0].outcome is Outcome.OVERFLOW:
        return "No loss scale helps: it overflows without one."
    if scaling.smallest_nonzero is None:
        return "No loss scale helps: fp32, in which gradients are unscaled, cannot hold it."
    if scaling.smallest_normal == 1:
        return "It needs no loss scale."
    return (
        f"Least power of two that keeps it from zero: {_scale(scaling.smallest_nonzero)}; "
        f"all its digits: {_scale(scaling.smallest_normal)}."
    )


def _scale(scale: int | None) -> str:
    if scale is None:
        return "none"
    return f"{scale}" if scale < 2**20 else f"2^{scale.bit_length() - 1}"


def _show(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e7 else f"{value:.7g}"


def _columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows with their columns aligned, two spaces between."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
