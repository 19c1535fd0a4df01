"""MP121: gradients are filled with zeros instead of being dropped."""

import ast
from collections.abc import Iterator

from ampwise.lint.kinds import Confidence, Kind
from ampwise.lint.regions import argument
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import iteration
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity


def _step(zero: str, after: str = "") -> str:
    return iteration(f"""
{zero}
with autocast("cuda"):
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
{after}scaler.step(optimizer)
scaler.update()
""")


INFO = RuleInfo(
    id="MP121",
    name="zero-grad-to-zero",
    severity=Severity.INFO,
    why="With set_to_none=False all gradients stay allocated during the forward pass, are written once more, and are "
    "then read and added to by the backward pass.",
    remedy="Call zero_grad(): set_to_none=True is the default since torch 2.0.",
    evidence="torch's performance tuning guide, 'Use parameter.grad = None instead of model.zero_grad()'.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(source=_step("optimizer.zero_grad(set_to_none=False)"), fixed=_step("optimizer.zero_grad()")),
        Example(source=_step("optimizer.zero_grad(False)"), fixed=_step("optimizer.zero_grad()")),
    ),
    good=(
        Example(source=_step("optimizer.zero_grad()")),
        Example(source=_step("optimizer.zero_grad(set_to_none=True)")),
        Example(title="chosen elsewhere", source=_step("optimizer.zero_grad(set_to_none=use_amp)")),
        Example(
            title="a CUDA graph needs gradients that stay where they are",
            source=_step("optimizer.zero_grad(set_to_none=False)") + "\ngraph = torch.cuda.CUDAGraph()\n",
        ),
        Example(
            title="code that reads gradients which may never have been made",
            source=_step("optimizer.zero_grad(set_to_none=False)", "n = [p.grad.norm() for p in params]\n"),
        ),
        Example(
            title="an optimizer's own method",
            source="""
import torch
class Own(torch.optim.Optimizer):
    def reset(self):
        self.zero_grad(set_to_none=False)
""",
        ),
    ),
)  # fmt: skip


def check(file: SourceFile) -> Iterator[Finding]:
    """Every zero_grad that is told to keep the gradients, where nothing in the file needs them kept."""
    if any(word in file.text.text for word in ("CUDAGraph", "cuda.graph", "make_graphed", "cudagraph", ".grad.")):
        return
    for call in file.tree.nodes(ast.Call):
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "zero_grad":
            continue
        given = argument(call, "set_to_none", 0)
        if isinstance(given, ast.Constant) and given.value is False and _is_known(file, call.func.value):
            owner = ast.unparse(call.func.value)
            yield file.finding(INFO, call, f"{owner}.zero_grad() writes zeros where it could drop the gradients",
                               fix=_fix(file, call))  # fmt: skip


def _is_known(file: SourceFile, owner: ast.expr) -> bool:
    value = file.kinds.of(owner)
    return value.kind in {Kind.OPTIMIZER, Kind.MODULE} and value.confidence >= Confidence.NAME


def _fix(file: SourceFile, call: ast.Call) -> Fix | None:
    if len(call.args) + len(call.keywords) != 1 or not file.supports((2, 0)):
        return None
    return fix(file.edit.replace(call, f"{file.text.segment(call.func)}()"), safe=False)


RULE = Rule(info=INFO, check=check, words=("zero_grad(",))
