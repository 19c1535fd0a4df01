"""DR602: an operator was given tensors on two devices."""

from collections.abc import Iterator

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.crashes import crashed, finding, place_words
from ampwise.doctor.rule import Rule
from ampwise.records.crash_kind import CrashKind
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="DR602",
    name="tensors-on-two-devices",
    severity=Severity.ERROR,
    why="An operator takes tensors of one device. `x.to(device)` leaves x where it is and returns another tensor, "
    "unlike `model.to(device)`, so a result that is dropped moves nothing.",
    remedy="Move the tensor that stayed behind, and keep the result: `x = x.to(device)`.",
    evidence="torch's own message, raised by its operators in this project's tests; the statement that drops its "
    "result is read in the script's source.",
    bad=(
        Example(
            title="the moved labels are dropped",
            source="""
import torch

device = torch.device("meta")
model = torch.nn.Linear(8, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    x, y = torch.randn(4, 8), torch.zeros(4, dtype=torch.long)
    x = x.to(device)
    y.to(device)
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """A crash whose words are about devices, with the tensors and the statement that moved nothing."""
    if crashed(case, CrashKind.DEVICES) is None:
        return
    crash = case.run.crash
    tensors = crash.tensors if crash is not None else ()
    names = [f"{inert_line(one.name, max_length=40)} on {one.device}" for one in tensors]
    has_two = len({one.device for one in tensors}) > 1
    given = " and ".join(names) if has_two else "tensors on different devices"
    yield finding(case, INFO, f"{place_words(case)} was given {given}.{_dropped(case)}", remedy=_remedy(case))


def _dropped(case: Case) -> str:
    crash = case.run.crash
    if crash is None or not crash.dropped:
        return ""
    first = crash.dropped[0]
    return f" `{inert_line(first.source)}` at {inert_line(first.where)} moves nothing: its result is dropped."


def _remedy(case: Case) -> str:
    crash = case.run.crash
    if crash is None or not crash.dropped:
        return INFO.remedy
    first = crash.dropped[0]
    return f"Write `{inert_line(first.name)} = {inert_line(first.source)}` at {inert_line(first.where)}."


RULE = Rule(info=INFO, check=check)
