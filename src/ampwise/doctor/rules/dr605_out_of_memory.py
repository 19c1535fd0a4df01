"""DR605: a request for memory could not be served, and the allocator's figures are not known."""

import re
from collections.abc import Iterator

from ampwise._base.units import format_bytes, parse_bytes
from ampwise.doctor.case import Case
from ampwise.doctor.crashes import crashed, finding, place_words
from ampwise.doctor.memory import failed_request
from ampwise.doctor.rule import Rule
from ampwise.records.crash_kind import CrashKind
from ampwise.records.finding import Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="DR605",
    name="out-of-memory",
    severity=Severity.ERROR,
    why="The memory for one tensor could not be had. The message alone does not say whether the device is too "
    "small or its free memory lies in pieces.",
    remedy="Halve the batch and accumulate gradients over two, or recompute blocks with `torch.utils.checkpoint`. "
    "`ampwise estimate` says what a step takes, without a GPU.",
    evidence="the figures in torch's own message.",
    bad=(
        Example(
            title="more than any machine has",
            source="""
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 3:
        torch.empty(2**50)
""",
        ),
    ),
)

_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ ?[KMGT]?i?B|\d+ bytes)")
_FREE = re.compile(r"of which ([\d.]+ ?[KMGT]?i?B) is free")


def check(case: Case) -> Iterator[Finding]:
    """A crash for lack of memory that the rules on the allocator's figures cannot speak of."""
    failure = crashed(case, CrashKind.OUT_OF_MEMORY)
    if failure is None or failed_request(case) is not None:
        return
    asked, free = _bytes(_ASKED, failure.message), _bytes(_FREE, failure.message)
    message = (
        f"{place_words(case)} asked for {format_bytes(asked)}" if asked else f"{place_words(case)} ran out of memory"
    )
    short = f": {format_bytes(asked - free)} more than is free" if asked and free is not None and asked > free else ""
    yield finding(case, INFO, f"{message}{short}.")


def _bytes(pattern: "re.Pattern[str]", text: str) -> int | None:
    found = pattern.search(text)
    if found is None:
        return None
    number, _, unit = found[1].partition(" ")
    return int(number) if unit == "bytes" else parse_bytes(found[1])


RULE = Rule(info=INFO, check=check)
