"""Reads a script's own source, and the modules of its own that it imports, for how it takes its arguments.

Nothing is imported or run. Where the source does not tell, `Reading` says so.
"""

import ast
import re
import sys
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ampwise.runner.script import Target

_MOST_FILES = 300
_READS = re.compile(r"argv|parse_known_args|argparse|optparse|getopt")
_REFUSES_OR_KNOWS = re.compile(  # parsers that end the script at an option which it does not have
    r"parse_args\b|\b(import|from)\s+(click|typer|fire|absl|docopt|optparse|getopt|tyro|plac|cyclopts|simple_parsing)\b"
)
_TAKES_OPTIONS_OF_OTHERS = re.compile(  # whose options stand in no source of the script's own
    r"HfArgumentParser|TrlParser|LightningCLI|jsonargparse|configargparse|from_cli"
    r"|\b(import|from)\s+(hydra|sacred|gin|subprocess|pyrallis|draccus|chz|defopt|clize|argh|torchtune)\b"
    r"|\bexec\(|\brunpy\b|\bimportlib\b|__import__|\bos\.(exec|spawn|system)|\bimport[^\n]*\b(main|cli)\b|\.(main|cli)\("
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a script's own source says of its arguments."""

    text: str = ""
    is_certain: bool = False
    """Whether an option that the source does not know is one that nobody reads."""

    @property
    def reads_arguments(self) -> bool:
        """Whether anything in it looks at the command line."""
        return _READS.search(self.text) is not None

    def mentions(self, option: str) -> bool:
        """Whether the option, or the variable that it would be read into, is named: ``--lr-max``, ``lr_max``."""
        words = re.escape(option.removeprefix("--")).replace(r"\-", "[-_]")
        return re.search(rf"(?<![A-Za-z0-9_]){words}(?![A-Za-z0-9_])", self.text) is not None


def reading_of(target: Target) -> Reading:
    """What the source of the script, and of its own modules that it imports, says of its arguments."""
    roots = _roots(target)
    start = _script_file(target, roots)
    if start is None:
        return Reading()
    texts: dict[Path, str | None] = {}
    waiting = [start]
    while waiting and len(texts) < _MOST_FILES:
        path = waiting.pop()
        if path not in texts:
            texts[path] = _text_of(path)
            waiting += _imported(texts[path] or "", path, roots)
    text = "\n".join(one or "" for one in texts.values())
    is_whole = not waiting and None not in texts.values()
    is_told = not _REFUSES_OR_KNOWS.search(text) and not _TAKES_OPTIONS_OF_OTHERS.search(text)
    return Reading(text=text, is_certain=is_whole and is_told)


def _roots(target: Target) -> list[Path]:
    """Where the script's own modules lie: its folder, and what was put on the path, without what is installed."""
    first = Path.cwd() if target.path is None else Path(target.path).resolve().parent
    if target.path is not None and Path(target.path).is_dir():
        first = Path(target.path).resolve()
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    own = [
        path
        for path in (Path(entry).resolve() for entry in sys.path if entry)
        if path.is_dir() and not any(path.is_relative_to(one) for one in installed)
    ]
    return list(dict.fromkeys([first, *own]))


def _script_file(target: Target, roots: list[Path]) -> Path | None:
    if target.path is None:
        files = list(_files_of((target.module or "").split("."), roots))
        if not files:
            return None
        last = files[-1]
        return last.with_name("__main__.py") if last.name == "__init__.py" else last
    path = Path(target.path).resolve()
    return path / "__main__.py" if path.is_dir() else path


def _text_of(path: Path) -> str | None:
    """The source; None where it cannot be read."""
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def _imported(text: str, path: Path, roots: list[Path]) -> Iterator[Path]:
    """The files of the script's own that a source imports."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for one in names:
                    yield from _files_of(one.name.split("."), roots)
            case ast.ImportFrom(module=module, names=names, level=level):
                within = roots if not level else [path.parents[level - 1]] if level <= len(path.parents) else []
                parts = module.split(".") if module else []
                for one in names:
                    yield from _files_of([*parts, one.name], within)
            case _:
                pass


def _files_of(parts: list[str], roots: Iterable[Path]) -> Iterator[Path]:
    """The packages' files and the module's that an import of ``parts`` runs, from the first root that has it."""
    for root in roots:
        found = False
        for length in range(1, len(parts) + 1):
            place = root.joinpath(*parts[:length])
            for file in (place / "__init__.py", place.with_suffix(".py")):
                if file.is_file():
                    found = True
                    yield file
                    break
        if found:
            return
