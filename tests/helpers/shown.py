"""What ``--show-code`` makes of a script's text, in the forms tests compare."""

import ast
from pathlib import Path
from textwrap import dedent

from ampwise.runner.show_code import show_code

SCRIPTS = Path(__file__).parents[1] / "e2e" / "scripts" / "show_code"
BF16 = 'with torch.autocast("cpu", dtype=torch.bfloat16):'
FP16 = 'with torch.autocast("cpu", dtype=torch.float16):'
PRECISIONS = ("bf16", "fp16")
LOOP = """
    import torch
    import torch.nn.functional as F
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        {body}
"""


def loop(*body):
    return dedent(LOOP).format(body="\n    ".join(body))


def show(text, precision="bf16", device_type="cpu"):
    shown = show_code(text, filename="train.py", precision=precision, device_type=device_type)
    ast.parse(shown.patched)
    return shown


def changed(text, precision="bf16", device_type="cpu"):
    """The diff's added and removed lines, without the white space around them."""
    shown = show(dedent(text), precision, device_type)
    lines = [line for line in shown.diff.splitlines() if line[:1] in "+-" and line[:3] not in {"+++", "---"}]
    return [f"{line[0]} {line[1:].strip()}" for line in lines if line[1:].strip()]


def added(text, precision="bf16", device_type="cpu"):
    return [line[2:] for line in changed(text, precision, device_type) if line[0] == "+"]


def note(text, precision="bf16", device_type="cpu"):
    shown = show(dedent(text), precision, device_type)
    assert shown.diff == ""
    assert shown.patched == dedent(text)
    assert len(shown.notes) == 1
    return shown.notes[0]
