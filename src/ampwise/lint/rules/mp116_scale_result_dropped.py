"""MP116: the scaled loss is thrown away, and the plain one is differentiated."""

import ast
from collections.abc import Iterator

from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.kinds import Confidence, Kind
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import after_loss
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

INFO = RuleInfo(
    id="MP116",
    name="scale-result-dropped",
    severity=Severity.ERROR,
    why="scaler.scale(loss) returns the scaled loss and leaves its argument as it is. If the result is not used, the "
    "gradients are not scaled, yet scaler.step() divides them by the scale: the updates are thousands of times too "
    "small.",
    remedy="Differentiate the result: scaler.scale(loss).backward().",
    evidence="torch.amp's documentation of GradScaler.scale.",
    fixable=Fixable.SAFE,
    bad=(
        Example(
            source=after_loss("""
scaler.scale(loss)
loss.backward()
scaler.step(optimizer)
scaler.update()
"""),
            fixed=after_loss("""
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""),
        ),
    ),
    good=(
        Example(
            source=after_loss("""
loss = scaler.scale(loss)
loss.backward()
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="another kind of scaler, which works in place",
            source="""
def draw(scaler, image, loss):
    scaler.scale(image)
    loss.backward()
""",
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every statement that only calls a scaler's scale."""
    for statement in file.tree.nodes(ast.Expr):
        match statement.value:
            case ast.Call(func=ast.Attribute(attr="scale", value=scaler), args=[loss]) as call:
                if file.kinds.is_a(scaler, Kind.SCALER, at_least=Confidence.USE):
                    name, text = ast.unparse(scaler), ast.unparse(loss)
                    message = f"{name}.scale({text}) returns the scaled loss, which is dropped; {text} is not scaled"
                    yield file.finding(INFO, call, message, fix=_fix(file, statement, call, text))
            case _:
                continue


def _fix(file: SourceFile, statement: ast.Expr, call: ast.Call, loss: str) -> Fix | None:
    """Differentiate the result where the plain loss is differentiated in the next statement."""
    block = file.tree.block(statement)
    following = block[block.index(statement) + 1 :]
    match following[0] if following else None:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="backward", value=owner))) if ast.unparse(owner) == loss:
            scaled = file.edit.replace(owner, file.text.segment(call))
            return fix(file.edit.delete(statement), scaled, safe=True)
        case _:
            return None


RULE = Rule(info=INFO, check=check, words=(".scale(",), off_under=ALL_FRAMEWORKS)
