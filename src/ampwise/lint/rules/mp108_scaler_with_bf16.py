"""MP108: losses are scaled although autocast computes in bfloat16, which needs no scaling."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act
from ampwise.lint.guards import TRAINERS
from ampwise.lint.names import Bound
from ampwise.lint.protocol import constructions
from ampwise.lint.regions import Region, argument
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import after_loss
from ampwise.lint.source import SourceFile, fix
from ampwise.lint.tree import dotted
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_BF16: Final = "torch.bfloat16"
_ABOUT_DTYPE: Final = re.compile(
    r"fp16|(?<!b)float16|half|dtype|precision|scaler|(not|!=).*(bf16|bfloat)", re.IGNORECASE
)
"""Of a condition that may well be false for bfloat16; ``use_bf16`` alone is not."""

_STEP: Final = """
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""
_EVALUATION: Final = re.compile(r"(?!.*(train|fit|step)).*(eval|valid|test|infer|sample|predict|generate)")


def _with(dtype: str, scaler: str, head: str = "") -> str:
    text = after_loss(_STEP).replace('autocast("cuda")', f'autocast("cuda", dtype={dtype})')
    return text.replace('    scaler = GradScaler("cuda")', f"{head}    scaler = GradScaler({scaler})")


_CHOICE: Final = "    dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16\n"
_ARMS: Final = """\
    if use_amp == "bf16":
        dtype = torch.bfloat16
    else:
        dtype = torch.float16
"""

INFO = RuleInfo(
    id="MP108",
    name="scaler-with-bf16",
    severity=Severity.WARNING,
    why="bfloat16 has the range of fp32, so that its gradients do not underflow: a loss scale gains nothing, costs a "
    "check for inf and a wait for the device at every step, and may skip steps.",
    remedy="Switch the scaler off for bfloat16: GradScaler(enabled=(dtype == torch.float16)).",
    evidence="torch.amp's documentation: gradient scaling is for float16 gradients, which underflow.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            source=_with("torch.bfloat16", '"cuda"'),
            fixed=_with("torch.bfloat16", '"cuda", enabled=False'),
        ),
        Example(
            title="where the dtype may turn out to be bfloat16",
            source=_with("dtype", '"cuda", enabled=use_amp', _CHOICE),
            fixed=_with("dtype", '"cuda", enabled=dtype == torch.float16', _CHOICE),
        ),
        Example(
            title="where the arms of an `if` choose the dtype",
            source=_with("dtype", '"cuda"', _ARMS),
            fixed=_with("dtype", '"cuda", enabled=dtype == torch.float16', _ARMS),
        ),
        Example(
            title="on for bfloat16 alone",
            source=_with("torch.bfloat16", '"cuda", enabled=use_bf16', "    use_bf16 = model.use_bf16\n"),
            fixed=_with("torch.bfloat16", '"cuda", enabled=False', "    use_bf16 = model.use_bf16\n"),
        ),
        Example(
            title="the wrong way round",
            source=_with("dtype", '"cuda", enabled=(kind == "bfloat16")', _CHOICE),
            fixed=_with("dtype", '"cuda", enabled=(kind == "float16")', _CHOICE),
        ),
    ),
    good=(
        Example(title="float16", source=_with("torch.float16", '"cuda"')),
        Example(
            title="on for float16 alone", source=_with("dtype", '"cuda", enabled=(dtype == torch.float16)', _CHOICE)
        ),
        Example(
            title="made for float16 alone",
            source=_with("dtype", '"cuda"', _CHOICE + "    if dtype is torch.float16:\n    ").replace(
                "        scaler = ", "        scaler = "
            ),
        ),
        Example(title="switched off for good", source=_with("torch.bfloat16", '"cuda", enabled=False')),
        Example(title="a dtype from elsewhere", source=_with("dtype_of_config()", '"cuda"')),
        Example(
            title="bfloat16 for the evaluation alone",
            source=after_loss(_STEP)
            + """
def evaluate(model, loader):
    with torch.no_grad(), autocast("cuda", dtype=torch.bfloat16):
        for x in loader:
            model(x)
""",
        ),
        Example(
            title="an arm for each",
            source=_with("torch.bfloat16", '"cuda"').replace(
                _STEP.strip("\n").replace("\n", "\n        "),
                "if use_fp16:\n            scaler.scale(loss).backward()\n            scaler.step(optimizer)\n"
                "            scaler.update()\n        else:\n            loss.backward()\n            optimizer.step()",
            ),
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """The scalers of a file whose training runs under autocast to bfloat16."""
    for call in constructions(file):
        if (dtype := _reversed_by(file, call)) is not None:
            message = "the scaler is on for bfloat16, which needs none, and off for float16, which does"
            text = file.text.segment(dtype).replace("bfloat16", "float16").replace("bf16", "fp16")
            yield file.finding(INFO, call, message, fix=fix(file.edit.replace(dtype, text), safe=False))
            return
    made = [call for call in constructions(file) if not _is_about_dtype(file, call)]
    if len(made) != 1 or not _is_scaling(file):
        return
    regions = _training_regions(file)
    dtypes = [_dtypes(file, region) for region in regions]
    if not dtypes or any(_BF16 not in found for found in dtypes):
        return
    is_always = all(found == {_BF16} for found in dtypes)
    message = "the scaler is on under autocast to bfloat16" if is_always else (
        "the scaler stays on when autocast's dtype is bfloat16")  # fmt: skip
    yield file.finding(INFO, made[0], message, fix=_fix(file, made[0], regions[0], is_always=is_always))


def _reversed_by(file: SourceFile, call: ast.Call) -> ast.expr | None:
    """The bfloat16 for which alone a scaler is on: ``enabled=(dtype == torch.bfloat16)``, the wrong way round."""
    match argument(call, "enabled", 99):
        case ast.Compare(ops=[ast.Eq() | ast.Is()], comparators=[dtype]) if _is_bf16(file, dtype):
            return dtype
        case _:
            return None


def _is_bf16(file: SourceFile, dtype: ast.expr) -> bool:
    if isinstance(dtype, ast.Constant):
        return dtype.value in {"bfloat16", "bf16", "torch.bfloat16"}
    return file.names.resolve(dtype) == _BF16


def _is_about_dtype(file: SourceFile, call: ast.Call) -> bool:
    """Whether the scaler is made, or switched on, by a condition that has to do with the dtype."""
    tests = [outer.test for outer in file.tree.ancestors(call) if isinstance(outer, ast.If | ast.IfExp)]
    enabled = next((keyword.value for keyword in call.keywords if keyword.arg in {"enabled", None}), None)
    return any(_ABOUT_DTYPE.search(_meaning(file, test)) for test in (*tests, enabled) if test is not None)


def _meaning(file: SourceFile, expression: ast.expr) -> str:
    """The text of an expression and of what its name stands for."""
    bound = file.names.latest(expression) if dotted(expression) else None
    behind = ast.unparse(bound.value) if bound is not None and bound.value is not None else ""
    return f"{ast.unparse(expression)} {behind}"


def _is_scaling(file: SourceFile) -> bool:
    """Whether a loss is scaled, whatever the precision."""
    for event in file.flow.events:
        if event.act is Act.BACKWARD and event.is_scaled:
            tests = [outer.test for outer in file.tree.ancestors(event.node) if isinstance(outer, ast.If)]
            if not any(_ABOUT_DTYPE.search(_meaning(file, test)) and not _is_about_fp32(test) for test in tests):
                return True
    return False


def _is_about_fp32(test: ast.expr) -> bool:
    """Whether a condition only parts fp32 from the rest: ``dtype == torch.float32``."""
    text = ast.unparse(test)
    return bool(re.search(r"float32|fp32", text)) and not re.search(r"16|half", text)


def _training_regions(file: SourceFile) -> list[Region]:
    """The autocast regions that are not switched off and not under no_grad."""
    return [
        region
        for region in file.regions.all()
        if region.enabled is not False
        and not file.kinds.is_under_no_grad(region.node)
        and not _is_no_grad(file, region)
    ]


def _is_no_grad(file: SourceFile, region: Region) -> bool:
    function = file.tree.function(region.node)
    in_evaluation = function is not None and _EVALUATION.match(function.name)
    return bool(in_evaluation) or any(file.kinds.is_under_no_grad(statement) for statement in region.node.body[:1])


def _dtypes(file: SourceFile, region: Region) -> set[str]:
    """The dtypes that a region may have; empty where that is not plain."""
    if region.dtype in {_BF16, "torch.float16"}:
        return {region.dtype}
    given = argument(region.call, "dtype", 1)
    bound = file.names.lookup(given) if given is not None else []
    values = [one.value for one in bound if one.how is Bound.ASSIGN] if bound else [given]
    if len(values) < len(bound):
        return set()
    arms = [
        arm for value in values for arm in ((value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,))
    ]
    found = {file.names.resolve(arm) or "" for arm in arms}
    return found if len(arms) > 1 and "" not in found else set()


def _fix(file: SourceFile, call: ast.Call, region: Region, *, is_always: bool) -> Fix | None:
    given = argument(region.call, "dtype", 1)
    if is_always:
        text = "False"
    elif given is not None and _is_known_at(file, given, call) and (torch := file.edit.import_module("torch", call)):
        text = f"{file.text.segment(given)} == {torch[0]}.float16"
    else:
        return None
    enabled = next((keyword.value for keyword in call.keywords if keyword.arg == "enabled"), None)
    if enabled is not None:
        return fix(file.edit.replace(enabled, text), safe=False)
    separator = ", " if call.args or call.keywords else ""
    return fix(file.edit.insert(file.text.end(call) - 1, f"{separator}enabled={text}"), safe=False)


def _is_known_at(file: SourceFile, dtype: ast.expr, call: ast.Call) -> bool:
    bound = file.names.latest(dtype)
    return (
        bound is not None and bound.position < (call.lineno, 0) and file.tree.scope(bound.node) is file.tree.scope(call)
    )


RULE = Rule(info=INFO, check=check, words=("bfloat16",), off_under=TRAINERS)
