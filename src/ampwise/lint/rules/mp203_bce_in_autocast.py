"""MP203: binary cross entropy of probabilities is computed under autocast, which CUDA refuses."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.kinds import Kind
from ampwise.lint.regions import Region
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_HEAD: Final = """
import torch
import torch.nn.functional as F

def loss_of(model, x, y):
    with torch.autocast("cuda"):
        p = model(x)
"""

INFO = RuleInfo(
    id="MP203",
    name="bce-in-autocast",
    severity=Severity.ERROR,
    why="binary_cross_entropy and BCELoss take probabilities, whose gradient float16 cannot hold. Under CUDA autocast "
    "they raise RuntimeError.",
    remedy="Use binary_cross_entropy_with_logits or BCEWithLogitsLoss on the values before the sigmoid.",
    evidence="PyTorch's autocast op reference, 'Prefer binary_cross_entropy_with_logits over binary_cross_entropy'; "
    "binary_cross_entropy_banned in ATen/autocast_mode.cpp. CPU autocast allows it.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            source=_HEAD
            + """
        return F.binary_cross_entropy(torch.sigmoid(p), y)
""",
            fixed=_HEAD
            + """
        return F.binary_cross_entropy_with_logits(p, y)
""",
        ),
        Example(
            source=_HEAD
            + """
        return torch.nn.BCELoss()(p, y)
""",
        ),
        Example(
            title="made elsewhere",
            source="""
import torch

criterion = torch.nn.BCELoss()

def loss_of(model, x, y):
    with torch.autocast("cuda"):
        return criterion(model(x), y)
""",
        ),
    ),
    good=(
        Example(
            source=_HEAD
            + """
        return F.binary_cross_entropy_with_logits(p, y)
""",
        ),
        Example(
            title="autocast switched off, the probabilities cast",
            source=_HEAD
            + """
        with torch.autocast("cuda", enabled=False):
            return F.binary_cross_entropy(p.float(), y)
""",
        ),
        Example(
            title="autocast of the CPU",
            source="""
import torch
import torch.nn.functional as F

def loss_of(model, x, y):
    with torch.autocast("cpu"):
        return F.binary_cross_entropy(model(x), y)
""",
        ),
        Example(
            title="outside",
            source=_HEAD
            + """
    return F.binary_cross_entropy(p.float(), y)
""",
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every such loss in an autocast region that is not the CPU's."""
    for call in file.tree.nodes(ast.Call):
        if not _is_bce(file, call):
            continue
        region = file.regions.autocast(call)
        if region is None or (region.device_type or "").startswith("cpu"):
            continue
        message = f"{ast.unparse(call.func)}() raises RuntimeError under {region.name}"
        yield file.finding(INFO, call, message, severity=_severity(region), fix=_fix(file, call))


def _is_bce(file: SourceFile, call: ast.Call) -> bool:
    if file.names.resolve(call.func) == "torch.nn.functional.binary_cross_entropy":
        return True
    value = file.kinds.of(call.func)
    return value.kind is Kind.LOSS_FUNCTION and value.origin == "torch.nn.BCELoss"


def _severity(region: Region) -> Severity:
    """The device may be the CPU where it is not written down."""
    return Severity.ERROR if region.device_type is not None else Severity.WARNING


def _fix(file: SourceFile, call: ast.Call) -> Fix | None:
    """Take the logits where the sigmoid stands in the call itself."""
    if not isinstance(call.func, ast.Attribute) or not call.args:
        return None
    match call.args[0]:
        case ast.Call(func=func, args=[logits]) if file.names.resolve(func) in _SIGMOIDS:
            pass
        case ast.Call(func=ast.Attribute(value=logits, attr="sigmoid"), args=[]):
            pass
        case _:
            return None
    name = f"{file.text.segment(call.func.value)}.binary_cross_entropy_with_logits"
    if file.names.resolve(call.func) != "torch.nn.functional.binary_cross_entropy":
        return None
    return fix(
        file.edit.replace(call.func, name), file.edit.replace(call.args[0], file.text.segment(logits)), safe=False
    )


_SIGMOIDS: Final = frozenset({"torch.sigmoid", "torch.nn.functional.sigmoid", "torch.special.expit"})

RULE = Rule(info=INFO, check=check, words=("binary_cross_entropy", "BCELoss"))
