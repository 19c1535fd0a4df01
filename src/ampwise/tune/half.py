"""Where a script puts its model and data into half precision by itself: what has to go before it can be tuned."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ampwise._base.errors import CannotRunError
from ampwise._base.text import inert_line
from ampwise.records.run import RunRecord
from ampwise.runner.script import Target

_METHODS: Final = frozenset({"half", "bfloat16"})
_DTYPES: Final = frozenset({"float16", "half", "bfloat16"})
_MOST: Final = 4
"""Places that are named before the others are counted."""


def check_parameters(run: RunRecord, target: Target) -> None:
    """Refuse a training whose parameters are in half precision: what was to be its fp32 is none.

    Raises:
        CannotRunError: they are; the lines are named that put them there, as far as the script's text tells.
    """
    if run.left_alone is None or "parameters" not in run.left_alone:
        return
    own = inert_line(run.left_alone, max_length=120)
    raise CannotRunError(
        f"the script keeps its parameters in half precision ({own}), so there is no fp32 to compare with, and no rule "
        f"could bring a module back to it. {_advice(target)}; then tune it again: the plan casts, and `ampwise run "
        "--plan` trains by it, with a loss scale in fp16, on fp32 parameters"
    )


def _advice(target: Target) -> str:
    places = list(_places(target))
    if not places:
        return "Leave model and data in fp32"
    more = f" and {len(places) - _MOST} more" if len(places) > _MOST else ""
    return f"Take the casts out of the script, of the model and of its data: {', '.join(places[:_MOST])}{more}"


def _places(target: Target) -> Iterator[str]:
    """``train.py:9 (model.half())``, a line once."""
    try:
        text = Path(target.path or "").read_bytes()
        tree, lines = ast.parse(text), text.decode().splitlines()
    except (OSError, SyntaxError, ValueError):
        return
    name = Path(target.path or "").name
    for number in sorted({node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _casts(node)}):
        yield f"{name}:{number} ({inert_line(lines[number - 1].strip(), max_length=60)})"


def _casts(node: ast.Attribute) -> bool:
    is_torchs = isinstance(node.value, ast.Name) and node.value.id == "torch"
    return node.attr in (_DTYPES if is_torchs else _METHODS)
