"""A plan without rules as a short text: ``p=fp32,c=bf16,o=fp32``."""

from collections.abc import Mapping
from typing import Final

from ampwise._base.errors import PlanError
from ampwise._base.suggest import not_one_of
from ampwise._base.text import inert_line
from ampwise.formats.table import FORMATS, find_format
from ampwise.plan.checks import quoted
from ampwise.plan.plan import Plan

_KEYS: Final[Mapping[str, str]] = {"p": "parameters", "c": "default", "o": "output", "g": "grad"}
_LONG: Final[Mapping[str, str]] = {"params": "p", "parameters": "p", "compute": "c", "output": "o", "grad": "g"}


def is_shorthand(text: str) -> bool:
    """Whether ``text`` is meant as a short form: nothing else that names a plan has an equals sign."""
    return "=" in text


def parse_shorthand(text: str) -> Plan:
    """The plan of a short text: p(arameters), c(ompute), o(utput) and g(rad), each a format.

    Only ``c`` has to be given; parameters are fp32 then, and output and gradients as they come.

    Raises:
        PlanError: it is none; everything that is wrong with it is named.
    """
    fields: dict[str, str] = {}
    mistakes: list[str] = []
    for part in text.split(","):
        said, equals, format_ = (word.strip() for word in part.partition("="))
        letter = _LONG.get(said, said)
        if not equals or letter not in _KEYS:
            mistakes.append(f"{quoted(part)} is not one of p=, c=, o=, g= with a format")
        elif find_format(format_) is None:
            mistakes.append(f"{said}: {not_one_of(inert_line(format_, max_length=60), FORMATS, kind='format')}")
        elif _KEYS[letter] in fields:
            mistakes.append(f"{said}: is given twice")
        else:
            fields[_KEYS[letter]] = format_
    if not mistakes and "default" not in fields:
        mistakes.append("c: is missing; write the format to compute in, as in p=fp32,c=bf16")
    if mistakes:
        raise PlanError(
            "\n".join([f"{quoted(text)} is not a short form of a plan:", *(f"  {one}" for one in mistakes)])
        )
    return Plan(**fields)  # pyright: ignore[reportArgumentType]  # the keys are Plan's, and all texts


def to_shorthand(plan: Plan) -> str:
    """The short form of the plan's own formats, from which ``parse_shorthand`` makes them again; rules have none."""
    given = {letter: getattr(plan, field) for letter, field in _KEYS.items()}
    return ",".join(f"{letter}={format_}" for letter, format_ in given.items() if format_ is not None)
