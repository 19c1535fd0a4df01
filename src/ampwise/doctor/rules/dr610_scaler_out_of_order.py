"""DR610: the gradient scaler's methods were called in an order it refuses."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.crashes import crashed, finding, place_words
from ampwise.doctor.rule import Rule
from ampwise.records.crash_kind import CrashKind
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="DR610",
    name="scaler-out-of-order",
    severity=Severity.ERROR,
    why="A scaler goes through scale, backward, unscale_ (at most once an optimizer), step and update, once each "
    "a step.",
    remedy="Call `scaler.update()` once at the end of every step, `unscale_` once an optimizer between backward and "
    "step; with accumulation, only on the last micro-batch.",
    evidence="torch's own assertions (transformers issues 23935 and 24840, accelerate issue 641). `ampwise.GradScaler` "
    "and `ampwise.TrainStep` keep the order themselves.",
    bad=(
        Example(
            title="unscaled at every micro-batch",
            source="""
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for step in range(20):
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(4, 8)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
        ),
    ),
)

_MEANINGS = (
    (
        "unscale_() has already",
        "the gradients of this optimizer were unscaled twice in one step.",
        "Call unscale_ once an optimizer and step; with accumulation, on the last micro-batch only.",
    ),
    (
        "step() has already",
        "the scaler stepped this optimizer twice without an update between.",
        "Call scaler.update() once after the last scaler.step of every step.",
    ),
    (
        "No inf checks",
        "none of this optimizer's parameters had a gradient in this step.",
        "Step the optimizer only where its loss was computed; look for a detach() or a frozen part between.",
    ),
    (
        "_scale is None",
        "the scaler has scaled no loss yet.",
        "Call scaler.scale(loss).backward() in place of loss.backward().",
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Torch's refusal, with what it means."""
    failure = crashed(case, CrashKind.SCALER_ORDER)
    if failure is None:
        return
    what, remedy = next((one for words, *one in _MEANINGS if words in failure.message), (INFO.why, INFO.remedy))
    yield finding(case, INFO, f"{place_words(case)}: {what}", remedy=remedy)


RULE = Rule(info=INFO, check=check)
