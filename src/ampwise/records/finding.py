"""What a rule is, and what it found: shared by lint, which reads source, and doctor, which reads recordings."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ampwise.records.checks import CHECKS
from ampwise.records.site import Site


class Severity(StrEnum):
    """How bad a finding is: a crash or wrong result, a likely mistake, or time and memory lost."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Confidence(StrEnum):
    """How sure a finding is of its cause."""

    CERTAIN = "certain"
    """It was seen to happen, or a run without it was seen to do well."""
    LIKELY = "likely"
    """What was measured has seldom another cause."""
    POSSIBLE = "possible"
    """What was measured fits, among other causes."""


class Fixable(StrEnum):
    """Whether a rule's findings can be put right by a program, and whether that may change behaviour."""

    NO = "no"
    SAFE = "safe"
    UNSAFE = "unsafe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A piece of source that shows a rule; tests and documentation are generated from it."""

    __pydantic_config__: ClassVar = CHECKS

    source: str
    title: str = ""
    """What it shows, where that is not plain from the source."""
    fixed: str | None = None
    """The source after every fix of this rule, safe and unsafe; None where none is offered."""
    num_findings: int = 1
    """How often the rule must be reported on a bad example."""
    target_torch: str | None = None
    """The oldest torch the source must run on, where that matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleInfo:
    """What a rule says about itself: all that `explain`, the tests and the documentation need."""

    __pydantic_config__: ClassVar = CHECKS

    id: str
    """``MP...`` of lint, ``DR...`` of doctor."""
    name: str
    """A few words joined by hyphens."""
    severity: Severity
    """The severity of most findings; one may carry another."""
    why: str
    """What goes wrong, in two or three sentences."""
    remedy: str
    """What to do instead, in one or two sentences."""
    evidence: str
    """Where this is known from: the measured fact, the documentation or an issue."""
    on_by_default: bool = True
    fixable: Fixable = Fixable.NO
    """The best kind of fix it has."""
    bad: tuple[Example, ...] = ()
    """Sources in which it must be found."""
    good: tuple[Example, ...] = ()
    """Sources on which it must be silent: each known risk of a false alarm is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A stretch of source text; lines and columns count from 1, columns in characters."""

    __pydantic_config__: ClassVar = CHECKS

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    """The column behind the last character."""
    cell: int | None = None
    """In a notebook: the cell, counted from 1 over all cells; lines then count within it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Bytes ``start`` up to ``end`` of a file's UTF-8 text give way to ``text``."""

    __pydantic_config__: ClassVar = CHECKS

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """Edits that put one finding right; all of them are made or none."""

    __pydantic_config__: ClassVar = CHECKS

    edits: tuple[Edit, ...]
    is_safe: bool
    """Whether what the program computes stays the same but for the mistake itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing a rule found: where, how bad, and what to do."""

    __pydantic_config__: ClassVar = CHECKS

    rule: str
    """The rule's id."""
    severity: Severity
    message: str
    """One sentence; it names the user's own variables."""
    place: Place | None = None
    remedy: str = ""
    evidence: str = ""
    """The figures that show it, where a recording has them."""
    fix: Fix | None = None
    confidence: Confidence = Confidence.CERTAIN
    site: Site | None = None
    """Of a recording: the pass, the module, the operator and the line; ``place`` is of a source text."""
    plan_rule: str | None = None
    """The remedy as a rule of a plan, in TOML, where one helps."""
    group: str | None = None
    """Findings of one rule and group may be shown to a person as one line: ``train()``."""
