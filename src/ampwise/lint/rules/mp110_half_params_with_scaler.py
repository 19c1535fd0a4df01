"""MP110: the parameters that a scaler's optimizer trains are themselves float16."""

import ast
from collections.abc import Iterator

from ampwise.lint.events import Act
from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.names import position
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile
from ampwise.lint.tree import dotted
from ampwise.records.finding import Example, Finding, RuleInfo, Severity


def _training(cast: str) -> str:
    return f"""
import torch
def train(make_model, loader, ema):
    model = torch.nn.Linear(4, 4)
    {cast}
    optimizer = torch.optim.AdamW(model.parameters(), eps=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


INFO = RuleInfo(
    id="MP110",
    name="half-params-with-scaler",
    severity=Severity.ERROR,
    why="GradScaler unscales fp32 gradients only: with float16 parameters, unscale_ and step raise a ValueError. "
    "Autocast wants fp32 parameters and makes its float16 copies itself.",
    remedy="Leave the trained parameters in fp32: no .half(), no torch_dtype=torch.float16 for what the optimizer "
    "trains.",
    evidence="Measured with torch 2.13: ValueError 'Attempting to unscale FP16 gradients.' Reported in many issues of "
    "peft and diffusers.",
    bad=(
        Example(source=_training("model.half()")),
        Example(source=_training("model = model.to(torch.float16)")),
        Example(source=_training("model = Model.from_pretrained('x', torch_dtype=torch.float16)")),
    ),
    good=(
        Example(source=_training("model.cuda()")),
        Example(title="a copy for evaluation", source=_training("ema = copy.deepcopy(model).half()")),
        Example(title="bfloat16 raises no error", source=_training("model = model.to(torch.bfloat16)")),
        Example(title="adapters in fp32", source=_training("model = get_peft_model(make_model().half(), ema)")),
        Example(title="back in fp32", source=_training("model.half()\n    model.float()")),
        Example(
            title="trained parameters back in fp32",
            source=_training("model.half()\n    for p in model.parameters():\n        p.data = p.data.float()"),
        ),
        Example(title="only for inference", source=_training("if not loader:\n        model.half()")),
        Example(
            title="after the training",
            source=_training("model.train()") + "    model.half()\n    torch.save(model.state_dict(), 'half.pt')\n",
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every cast to float16 of a module whose parameters go to an optimizer that a scaler steps."""
    stepped = {event.optimizer for event in file.flow.events if event.act is Act.STEP and event.scaler is not None}
    if not stepped:
        return
    for model, taken in _trained(file, stepped):
        cast = _last_cast(file, model, taken)
        if cast is not None and _is_half(file, cast) and not _is_conditional(file, cast, taken):
            message = f"{dotted(model)} is float16 here, and its parameters go to the optimizer that the scaler steps"
            yield file.finding(INFO, cast, message)


def _trained(file: SourceFile, stepped: set[str | None]) -> Iterator[tuple[ast.expr, ast.Call]]:
    """Modules whose ``parameters()`` are handed to an optimizer that a scaler steps, each with that call."""
    for statement in file.tree.nodes(ast.Assign):
        if not isinstance(statement.value, ast.Call) or dotted(statement.targets[0]) not in stepped:
            continue
        for call in file.tree.inside(statement.value, ast.Call):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "parameters" and dotted(call.func.value):
                yield call.func.value, call


def _last_cast(file: SourceFile, model: ast.expr, taken: ast.Call) -> ast.Call | None:
    """The last call before ``taken`` that gives the module a dtype or makes it anew."""
    place, found = dotted(model), None
    for call in file.tree.nodes(ast.Call):
        if position(call) >= position(taken) or file.tree.scope(call) is not file.tree.scope(taken):
            continue
        statement = file.tree.statement(call)
        is_statement = isinstance(statement, ast.Expr) and statement.value is call and _owner(call) == place
        is_assigned = (
            isinstance(statement, ast.Assign) and dotted(statement.targets[0]) == place and statement.value is call
        )
        if is_assigned or (is_statement and _gives_dtype(file, call) is not None):
            found = call
    return None if _casts_parameters(file, taken) else found


def _owner(call: ast.Call) -> str | None:
    return dotted(call.func.value) if isinstance(call.func, ast.Attribute) else None


def _gives_dtype(file: SourceFile, call: ast.Call) -> bool | None:
    """Whether a method of a module makes it float16; None where it leaves the dtype."""
    if not isinstance(call.func, ast.Attribute):
        return None
    match call.func.attr:
        case "half":
            return True
        case "float" | "double" | "bfloat16":
            return False
        case "to" | "from_pretrained":
            names = {"dtype", "torch_dtype"}
            given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg in names)]
            answers = [answer for one in given if (answer := file.kinds.is_half_dtype(one)) is not None]
            return answers[0] if answers else None
        case _:
            return None


def _is_half(file: SourceFile, call: ast.Call) -> bool:
    """Whether the module is float16 after ``call``, looking through a chain of ``.cuda().train()``."""
    current: ast.expr = call
    while isinstance(current, ast.Call) and isinstance(current.func, ast.Attribute):
        answer = _gives_dtype(file, current)
        if answer is not None:
            return answer
        if current.func.attr not in {"to", "cuda", "train", "eval", "requires_grad_"}:
            return False
        current = current.func.value
    return False


def _casts_parameters(file: SourceFile, taken: ast.Call) -> bool:
    """Whether single parameters are cast to fp32 in the function."""
    root = file.tree.function(taken) or file.tree.root
    names = {"float", "to", "cast_training_params", "upcast"}
    for statement in file.tree.inside(root, ast.Assign):
        is_data = isinstance(statement.targets[0], ast.Attribute) and statement.targets[0].attr == "data"
        if is_data and any(name in ast.unparse(statement.value) for name in names):
            return True
    return any(name in file.text.text for name in ("cast_training_params", "prepare_model_for"))


def _is_conditional(file: SourceFile, cast: ast.Call, taken: ast.Call) -> bool:
    around = set(file.tree.ancestors(taken))
    outer = file.tree.ancestors(cast)
    return any(isinstance(one, ast.If | ast.IfExp | ast.Try) and one not in around for one in outer)


RULE = Rule(info=INFO, check=check, words=("half", "float16"), off_under=ALL_FRAMEWORKS)
