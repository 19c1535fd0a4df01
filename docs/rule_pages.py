"""Writes a page for lint's rules and one for the doctor's, from what the rules say of themselves."""  # noqa: INP001 # Sphinx finds it beside conf.py

import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from ampwise.doctor.rule import all_rules as doctors_rules
from ampwise.lint.rule import all_rules as lints_rules
from ampwise.records.finding import Example, RuleInfo

_HEADS = {
    "DR1": "Infinities and NaN",
    "DR2": "The loss scale",
    "DR3": "Errors without a sign",
    "DR4": "Speed",
    "DR5": "Memory",
    "DR6": "Crashes",
    "DR7": "Usage",
    "MP1": "The order of calls",
    "MP2": "In and out of autocast",
    "MP3": "Constants and formats",
    "MP4": "Speed and memory",
}
_INTROS = {
    "lint": ("Rules of lint", "What `ampwise lint` looks for in source text; see [](../linting.md)."),
    "doctor": (
        "Rules of the doctor",
        "What `ampwise doctor` looks for in a training that it ran; see [](../doctor.md). Bad examples are scripts.",
    ),
}


def write_rule_pages(folder: Path) -> None:
    """Write ``lint.md`` and ``doctor.md`` into ``folder``, where they differ from what is there."""
    folder.mkdir(exist_ok=True)
    infos = {
        "lint": [rule.info for rule in lints_rules()],
        "doctor": [rule.info for rule in doctors_rules()],
    }
    for name, rules in infos.items():
        path, text = folder / f"{name}.md", page(name, rules)
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # an equal page is not built again
            path.write_text(text, encoding="utf-8")


def page(name: str, infos: Iterable[RuleInfo]) -> str:
    """The page of one group, in Markdown."""
    title, intro = _INTROS[name]
    return "\n".join([f"# {title}", "", intro, *_sections(infos)]) + "\n"


def _sections(infos: Iterable[RuleInfo]) -> Iterator[str]:
    for head, rules in groupby(sorted(infos, key=lambda info: info.id), key=lambda info: info.id[:3]):
        yield from ("", f"## {_HEADS.get(head, head)} ({head}xx)")
        for info in rules:
            yield from _rule(info)


def _rule(info: RuleInfo) -> Iterator[str]:
    yield from ("", f"### {info.id}: {info.name}", "", f"*{info.severity.value}.* {_inert(info.why)}", "")
    yield from (f"**Do:** {_inert(info.remedy)}", "", f"**Known from:** {_inert(info.evidence)}")
    for label, examples in (("Bad", info.bad), ("Good", info.good)):
        for example in examples[:1]:
            yield from _example(label, example)


def _example(label: str, example: Example) -> Iterator[str]:
    title = f" ({_inert(example.title)})" if example.title else ""
    yield from ("", f"{label}{title}:", "", "````python", textwrap.dedent(example.source).strip("\n"), "````")


def _inert(text: str) -> str:
    """Prose in which no character but the backtick is Markdown's."""
    parts = text.split("`")
    escaped = [part if index % 2 else _escaped(part) for index, part in enumerate(parts)]
    return "`".join(escaped)


def _escaped(text: str) -> str:
    return "".join(f"\\{character}" if character in "*_[]<>#|~$" else character for character in text)
