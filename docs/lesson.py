"""Prints the code of a lesson as one file, to run and to change: ``python docs/lesson.py formats > formats.py``."""  # noqa: INP001 # a script

import re
import sys
from pathlib import Path

_LESSONS = Path(__file__).parent / "learn"
_ANSWER = re.compile(r"^<details>.*?^</details>$", re.MULTILINE | re.DOTALL)
_PART = re.compile(r"^## (?P<title>[^\n]*)$|^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def code_of(lesson: str) -> str:
    """The blocks of a page under its headings; the answers to its exercises are left to the reader."""
    parts = (part["code"] or f"# --- {part['title']}\n" for part in _PART.finditer(_ANSWER.sub("", lesson)))
    return "\n".join(parts)


def _lessons() -> list[str]:
    return sorted(page.stem for page in _LESSONS.glob("*.md") if "```python" in page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1] in _lessons():
        sys.stdout.write(code_of((_LESSONS / f"{sys.argv[1]}.md").read_text(encoding="utf-8")))
    else:
        sys.exit(f"usage: python docs/lesson.py LESSON, one of: {', '.join(_lessons())}")
