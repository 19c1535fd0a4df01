"""Writes the READMEs of all languages from one set of commands, figures and code."""  # noqa: INP001 # Sphinx finds it beside conf.py

import tomllib
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

LANGUAGES: Final = {"en": "README.md", "zh": "README.zh-CN.md"}
_COLUMN: Final = 43
"""Where comments begin, behind commands that leave room for them."""
_HERE: Final = Path(__file__).parent / "readme"


def readmes() -> dict[str, str]:
    """Each README's file name and text."""
    facts = tomllib.loads((_HERE / "facts.toml").read_text(encoding="utf-8"))
    pages = Environment(
        loader=FileSystemLoader(_HERE),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Markdown, from our own files
    )
    figures = "\n".join(f"| {' | '.join(one['cells'])} |" for one in facts["figure"])
    code = {name: text.strip("\n") for name, text in facts["code"].items()}
    return {
        name: pages.get_template(f"{name}.j2").render(
            commands="\n".join(_line(one, language) for one in facts["command"]), figures=figures, code=code
        )
        for language, name in LANGUAGES.items()
    }


def write_readmes(root: Path) -> None:
    """Write the READMEs into ``root``, where they differ from what is there."""
    for name, text in readmes().items():
        target = root / name
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")


def _line(command: dict[str, Any], language: str) -> str:
    comment = command.get(language)
    return f"{command['run']:<{_COLUMN}}  # {comment}" if comment else command["run"]
