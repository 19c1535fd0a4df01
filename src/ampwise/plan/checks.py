"""What is wrong with a plan's fields: every mistake at once, each with its path."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ampwise._base.suggest import not_one_of
from ampwise._base.text import inert_line
from ampwise.formats.table import FORMATS, find_format
from ampwise.plan.names import op_mistake
from ampwise.plan.patterns import mistake_in

RULE_FORMATS: Final = ("compute", "output", "grad")
"""Fields of a rule that name a format."""
PLAN_FORMATS: Final = ("default", "output", "grad", "parameters")
"""Fields of a plan that name a format."""

_TORCH: Final = re.compile(r"\d+\.\d+")
_HALF_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def rule_mistakes(rule: Mapping[str, Any], *, path: str = "", is_placed: bool = False) -> Iterator[str]:
    """Everything that is wrong with the fields of a rule, taken alone.

    Args:
        rule: its fields; what is missing is None or not there.
        path: where it stands in the plan.
        is_placed: it had a module or an op that was no text, which was said already.
    """
    dot = f"{path}." if path else ""
    module, op = rule.get("module"), rule.get("op")
    if module is None and op is None and not is_placed:
        yield f"{path or 'rule'}: names neither a module nor an op; to set a format everywhere, write it as the default"
    yield from _format_mistakes(rule, RULE_FORMATS, dot)
    if module is not None and (wrong := mistake_in(module)):
        yield f"{dot}module: {quoted(module)} {wrong}"
    if op is not None and (wrong := op_mistake(op)):
        yield f"{dot}op: {quoted(op)} {wrong}"
    for name in ("module", "because"):
        if _HALF_SURROGATE.search(rule.get(name) or ""):
            yield f"{dot}{name}: holds half a surrogate pair, which no file can"


def plan_mistakes(plan: Mapping[str, Any]) -> Iterator[str]:
    """Everything that is wrong with the fields of a plan, its rules aside."""
    yield from _format_mistakes(plan, PLAN_FORMATS, "")
    torch, updates = plan.get("torch"), plan.get("updates", "nearest")
    if torch is not None and not _TORCH.fullmatch(torch):
        yield f"torch: {quoted(torch)} is not a torch release; write it as in 2.13"
    kept = find_format(str(plan.get("parameters", "fp32")))
    if updates != "nearest" and kept is not None and kept.storage_bits >= 32:
        yield f"updates: {updates} is for parameters below fp32; parameters are {kept.name}"


def kind_mistakes(fields: Mapping[str, Any], *, needed: str, texts: Sequence[str]) -> Iterator[str]:
    """What is of a kind that no file gives: from Python anything may be.

    Args:
        fields: what was given.
        needed: the one field that nothing stands in for.
        texts: fields that are texts, or None; formats may also be dtypes of torch's.
    """
    if fields[needed] is None:
        yield f"{needed}: is missing; give the format to compute in, such as bf16"
    for name in texts:
        given = fields[name]
        if given is not None and not isinstance(given, str):
            yield f"{name}: is {type(given).__name__} {inert_line(repr(given), max_length=60)}; give text"


def own_name(given: Any) -> Any:
    """The name ampwise has for a format given by any of its names; what was given, where it is none."""
    found = None if given is None else find_format(str(given))
    return given if found is None else found.name


def quoted(word: str) -> str:
    """A word of the user's as messages show it."""
    return f'"{inert_line(word, max_length=60)}"'


def _format_mistakes(fields: Mapping[str, Any], names: Sequence[str], dot: str) -> Iterator[str]:
    for name in names:
        given = fields.get(name)
        if given is not None and find_format(str(given)) is None:
            yield f"{dot}{name}: {not_one_of(inert_line(str(given), max_length=60), FORMATS, kind='format')}"
