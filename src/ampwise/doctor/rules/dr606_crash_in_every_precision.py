"""DR606: the script crashes in fp32 too."""

from collections.abc import Iterator

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.crashes import crashed, finding, in_fp32, is_in_fp32_already, place_words
from ampwise.doctor.rule import Rule
from ampwise.records.crash_kind import CrashKind
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.run import UNTOLD, Failure

INFO = RuleInfo(
    id="DR606",
    name="crash-in-every-precision",
    severity=Severity.ERROR,
    why="The script crashes for a reason that precision has no part in.",
    remedy="Look at the line named here; no other precision helps.",
    evidence="the script itself, run in fp32 with autocast and the loss scale switched off.",
    bad=(
        Example(
            title="shapes that do not fit",
            source="""
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    loss = model(torch.randn(4, 8 if step < 3 else 9)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """A crash of no known kind, unless the run in fp32 did without it."""
    failure = crashed(case, CrashKind.OTHER)
    if failure is None or failure.kind == "KeyboardInterrupt" or in_fp32(case) is False:
        return
    same = in_fp32(case) or is_in_fp32_already(case)
    yield finding(
        case,
        INFO,
        f"{_what(case, failure)}, and precision has no part in it." if same else f"{_what(case, failure)}.",
        confidence=Confidence.CERTAIN if same else Confidence.POSSIBLE,
        remedy=_remedy(case, failure),
    )


def _what(case: Case, failure: Failure) -> str:
    if failure.kind.startswith("exit status"):
        return f"The script ended itself with {failure.kind}"
    if failure.kind.startswith("signal"):
        return f"The script's process was ended by {failure.kind}"
    return f"The script raises {inert_line(failure.kind)} in {place_words(case)}"


def _remedy(case: Case, failure: Failure) -> str:
    if failure.kind == "signal 9":
        return "Look with `dmesg` whether the system ran out of memory; give the script less data or fewer workers."
    if failure.kind.startswith("signal"):
        return "Run it with `python -X faulthandler` to see where it was."
    if failure.kind.startswith("exit status"):
        # `sys.exit` would have left a record
        call = "`os._exit`, or for a library that ends it" if case.run.reason == UNTOLD else "`sys.exit` or `exit`"
        return f"Look for its {call}, and at what it printed before; no other precision helps."
    if failure.kind == "EOFError":
        return "While the doctor looks nothing can be typed: give the script what it asks for as an argument."
    return INFO.remedy


RULE = Rule(info=INFO, check=check)
