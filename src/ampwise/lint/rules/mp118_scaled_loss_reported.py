"""MP118: the loss that is logged or summed is the scaled one."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.kinds import Confidence, Kind
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import after_loss
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity

_REPORTS: Final = frozenset(
    "print append log info debug write add_scalar set_postfix log_metric update float str".split()
)
_TO_NUMBER: Final = frozenset("item detach tolist cpu numpy".split())


def _report(name: str) -> str:
    return after_loss(f"""
scaled = scaler.scale(loss)
scaled.backward()
scaler.step(optimizer)
scaler.update()
print({name}.item())
""")


INFO = RuleInfo(
    id="MP118",
    name="scaled-loss-reported",
    severity=Severity.WARNING,
    why="scaler.scale(loss) is the loss times the loss scale, 65536 at first, and the scale changes: curves and sums "
    "of it show the scale, not the loss.",
    remedy="Report the loss itself, from before scaler.scale().",
    evidence="torch.amp's documentation of GradScaler.scale: 'Multiplies (scales) a tensor ... by the scale factor.'",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(source=_report("scaled"), fixed=_report("loss")),
        Example(
            title="under the loss's own name",
            source=after_loss("""
loss = scaler.scale(loss)
loss.backward()
scaler.step(optimizer)
scaler.update()
model.total += loss.item()
"""),
        ),
    ),
    good=(
        Example(source=_report("loss")),
        Example(
            title="reported before it is scaled",
            source=after_loss("""
value = loss.item()
loss = scaler.scale(loss)
loss.backward()
scaler.step(optimizer)
scaler.update()
print(value)
"""),
        ),
        Example(
            title="divided by the scale again",
            source=after_loss("""
scaled = scaler.scale(loss)
scaled.backward()
print(scaled.item() / scaler.get_scale())
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="summed to be differentiated",
            source=after_loss("""
total = scaler.scale(loss)
total = total + scaler.scale(model.penalty())
total.backward()
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="another kind of scaler",
            source="""
def normalise(scaler, x):
    x = scaler.scale(x)
    print(x.item())
""",
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every report of a name whose value is the result of scale()."""
    for statement in file.tree.nodes(ast.Assign):
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Attribute(attr="scale", value=scaler), args=[loss]),
            ) if file.kinds.is_a(scaler, Kind.SCALER, at_least=Confidence.USE):
                for use in _reports(file, statement, name):
                    message = f"{name} is multiplied by the loss scale of {ast.unparse(scaler)}"
                    yield file.finding(INFO, use, message, fix=_fix(file, use, loss))
            case _:
                continue


def _reports(file: SourceFile, statement: ast.Assign, name: str) -> Iterator[ast.Name]:
    """The uses of ``name`` that this assignment reaches and that report its value."""
    scope = file.tree.scope(statement)
    for use in file.tree.nodes(ast.Name):
        if use.id != name or not isinstance(use.ctx, ast.Load) or file.tree.scope(use) is not scope:
            continue
        bound = file.names.latest(use)
        is_later = use.lineno > (statement.end_lineno or statement.lineno)
        if is_later and bound is not None and bound.node is statement and _is_reported(file, use):
            yield use


def _is_reported(file: SourceFile, use: ast.Name) -> bool:
    """Whether the value leaves as a number, and is not divided by the scale on its way."""
    node: ast.AST = use
    is_number = False
    for outer in file.tree.ancestors(use):
        match outer:
            case ast.Attribute(attr=attr):
                is_number = is_number or attr in _TO_NUMBER
                if attr not in _TO_NUMBER | {"data", "mean", "sum"}:
                    return False
            case ast.Call(func=func) if node is func:
                pass
            case ast.Call(func=ast.Name(id=word) | ast.Attribute(attr=word)):
                return word in _REPORTS and not file.kinds.is_a(use, Kind.NUMBER)
            case ast.FormattedValue():
                return True
            case ast.BinOp():
                return False
            case ast.stmt():
                return is_number
            case _:
                pass
        node = outer
    return False


def _fix(file: SourceFile, use: ast.Name, loss: ast.expr) -> Fix | None:
    """Report the loss by its own name, if it has another that is not bound again."""
    if not isinstance(loss, ast.Name) or loss.id == use.id:
        return None
    before, after = file.names.latest(loss), file.names.visible(loss.id, use)
    is_same = before is not None and bool(after) and all(one.position <= (use.lineno, 0) for one in after)
    return fix(file.edit.replace(use, loss.id), safe=False) if is_same and after[-1] is before else None


RULE = Rule(info=INFO, check=check, words=(".scale(",), off_under=ALL_FRAMEWORKS)
