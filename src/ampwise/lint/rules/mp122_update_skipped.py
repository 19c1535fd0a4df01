"""MP122: a ``continue`` or ``return`` passes over the scaler's update after gradients were unscaled or stepped."""

import ast
from collections.abc import Iterator

from ampwise.lint.guards import ALL_FRAMEWORKS
from ampwise.lint.protocol import skipped_updates
from ampwise.lint.rule import Rule
from ampwise.lint.rules.snippets import after_loss
from ampwise.lint.source import SourceFile, fix
from ampwise.records.finding import Example, Finding, Fix, Fixable, RuleInfo, Severity


def _guarded(before_jump: str, *, where: str = "after") -> str:
    guard = f"""
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
if not torch.isfinite({"norm" if where == "after" else "loss"}):
{before_jump}    continue
"""
    return after_loss(f"""
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
{guard.strip()}
scaler.step(optimizer)
scaler.update()
""")


INFO = RuleInfo(
    id="MP122",
    name="update-skipped",
    severity=Severity.ERROR,
    why="After unscale_ or step the scaler waits for update(). If the iteration is left before it, the next unscale_ "
    "raises a RuntimeError; without unscale_, the next step uses gradients that are still scaled.",
    remedy="Drop the check, since scaler.step() skips infinite gradients itself; or call scaler.update() before the "
    "jump.",
    evidence="Measured with torch 2.13: RuntimeError 'unscale_() has already been called on this optimizer since the "
    "last update().' torch's GradScaler.step does not unscale an optimizer that it believes to be unscaled.",
    fixable=Fixable.UNSAFE,
    bad=(
        Example(
            source=_guarded("    optimizer.zero_grad()\n"),
            fixed=_guarded("    optimizer.zero_grad()\n    scaler.update()\n"),
        ),
    ),
    good=(
        Example(title="updated before the jump", source=_guarded("    scaler.update()\n")),
        Example(
            title="left before anything is unscaled",
            source=after_loss("""
if not torch.isfinite(loss):
    continue
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="the arm that unscales is another",
            source=after_loss("""
scaler.scale(loss).backward()
if use_amp:
    scaler.unscale_(optimizer)
else:
    continue
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="a jump in a loop within the iteration",
            source=after_loss("""
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
for p in model.parameters():
    if p.grad is None:
        continue
    p.grad.clamp_(-1, 1)
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="micro-batches that do not step",
            source=after_loss("""
scaler.scale(loss).backward()
if (i + 1) % 4 != 0:
    continue
scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()
"""),
        ),
        Example(
            title="a condition that already parted them",
            source=after_loss("""
scaler.scale(loss).backward()
if use_amp:
    scaler.unscale_(optimizer)
if not use_amp:
    continue
scaler.step(optimizer)
scaler.update()
"""),
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """Every jump over an update."""
    for skipped in skipped_updates(file):
        scaler, line = skipped.update.scaler, skipped.last.node.lineno
        word = "continue" if isinstance(skipped.jump, ast.Continue) else "return"
        message = f"this {word} skips {scaler}.update(), though line {line} has begun a step"
        yield file.finding(INFO, skipped.jump, message, fix=_fix(file, skipped.jump, scaler))


def _fix(file: SourceFile, jump: ast.Continue | ast.Return, scaler: str | None) -> Fix | None:
    if scaler is None:
        return None
    return fix(file.edit.insert_before(jump, f"{scaler}.update()"), safe=False)


RULE = Rule(info=INFO, check=check, words=("continue", "return"), off_under=ALL_FRAMEWORKS)
