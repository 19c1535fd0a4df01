"""Finds the plan that a word means: a file, a preset, a short form or a format."""

import os
from pathlib import Path
from typing import TypeAlias

from ampwise._base.errors import PlanError, UsageError
from ampwise._base.suggest import closest
from ampwise._base.text import inert_line
from ampwise.formats.table import find_format
from ampwise.plan.file import load_plan, preset_rows
from ampwise.plan.plan import Plan
from ampwise.plan.presets import presets
from ampwise.plan.shorthand import is_shorthand, parse_shorthand

AnyPlan: TypeAlias = Plan | str | os.PathLike[str]
"""A plan, or what names one: a file, a preset, a short form, a format."""


def find_plan(word: AnyPlan) -> Plan:
    """The plan users mean by ``word``: ``plan.toml``, ``fp16-safe``, ``p=fp32,c=bf16``, ``bfloat16``; or a plan itself.

    A preset's name means the preset even where a file has that name: ``./fp16-safe`` means the file, and so does a
    ``Path``.

    Raises:
        UsageError: ``word`` is neither text nor a path.
        PlanError: it is none of these, or the plan it names has mistakes.
    """
    if isinstance(word, Plan):
        return word
    if isinstance(word, os.PathLike):
        return load_plan(word)
    if not isinstance(word, str):  # pyright: ignore[reportUnnecessaryIsInstance] # of a caller without types
        raise UsageError(
            f"a plan was given as {type(word).__name__}; give an ampwise.Plan, a plan file, a preset or a short form"
        )
    if word in preset_rows():
        return presets()[word].plan
    if word and _looks_like_a_file(word):
        return load_plan(word)
    if is_shorthand(word):
        return parse_shorthand(word)
    format_ = find_format(word)
    if format_ is not None:
        return Plan(default=format_.name)
    near = closest(word, preset_rows())
    hint = f'; did you mean "{near}"?' if near else ""
    raise PlanError(
        f'"{inert_line(word, max_length=60)}" is neither a plan file nor a preset{hint} '
        f"(presets: {', '.join(preset_rows())}; or a file as in plan.toml, or a short form as in p=fp32,c=bf16)"
    )


def _looks_like_a_file(word: str) -> bool:
    try:
        return word.endswith(".toml") or "/" in word or Path(word).exists()
    except (OSError, ValueError):
        return False
