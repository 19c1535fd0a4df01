"""DR609: the script cannot be run as it is."""

from collections.abc import Iterator

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.crashes import crashed, finding
from ampwise.doctor.rule import Rule
from ampwise.records.crash_kind import CrashKind
from ampwise.records.finding import Example, Finding, RuleInfo, Severity
from ampwise.records.run import Failure

INFO = RuleInfo(
    id="DR609",
    name="did-not-start",
    severity=Severity.ERROR,
    why="A syntax error, a missing file or package, or a device that this machine lacks: the script ends before "
    "any training.",
    remedy="Put right what the message names; it has nothing to do with precision.",
    evidence="Python's own exception.",
    bad=(
        Example(
            title="a file that is not there",
            source="""
import torch

model = torch.nn.Linear(8, 1)
data = open("no-such-folder/train.bin", "rb").read()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """A crash of the script's text, files or surroundings."""
    failure = crashed(case, CrashKind.NOT_STARTED)
    if failure is None:
        return
    said = inert_line(failure.message.strip().partition("\n")[0], max_length=300)  # the evidence has the rest
    yield finding(
        case, INFO, f"The script does not get to train: {inert_line(failure.kind)}: {said}", remedy=_remedy(failure)
    )


def _remedy(failure: Failure) -> str:
    match failure.kind:
        case "SyntaxError" | "IndentationError" | "TabError":
            return "Mend the source at that line."
        case "ModuleNotFoundError" | "ImportError":
            return "Install the package in the environment that ampwise runs in, or run from the folder it lies in."
        case "FileNotFoundError":
            return (
                "Run from the folder that the script expects, or give it the path; ampwise leaves the folder as it is."
            )
        case _:
            return f"{INFO.remedy} `ampwise estimate` says without the device what a step takes on it."


RULE = Rule(info=INFO, check=check)
