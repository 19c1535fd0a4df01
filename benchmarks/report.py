"""How large the record of a long examination is, and how fast a browser opens its report.

1,000 steps of a model of 100 modules. The time is the page's own, from the start of its loading until every chart that
can be seen is drawn, and the browser's whole run beside it.
"""

import json
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _common import OUT, ROOT

_SCRIPT = ROOT / "benchmarks" / "workloads" / "deep.py"
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
_GOALS = {"record_mb": "<= 5 MB", "page_ms": "<= 3000 ms"}


def main() -> None:
    steps = "100" if "--quick" in sys.argv else "1000"
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium found; install Debian's package chromium")
    with tempfile.TemporaryDirectory() as folder:
        record, page = Path(folder, "deep.json"), Path(folder, "deep.html")
        doctor = ["doctor", "--precision", "bf16", "--steps", steps, "--record", str(record), "--report", str(page)]
        subprocess.run([sys.executable, "-m", "ampwise", *doctor, str(_SCRIPT)], capture_output=True, check=False)
        opened = [_open(browser, page, folder) for _ in range(5)]
        figures = {
            "steps": int(steps),
            "record_mb": record.stat().st_size / 1e6,
            "html_mb": page.stat().st_size / 1e6,
            "page_ms": statistics.median(drawn for drawn, _ in opened),
            "browser_cpu_ms": statistics.median(cpu for _, cpu in opened),
            "goals": _GOALS,
        }
    for name, value in figures.items():
        print(f"{name:15} {value:.2f}" if isinstance(value, float) else f"{name:15} {value}")
    OUT.mkdir(exist_ok=True)
    (OUT / "report.json").write_text(json.dumps(figures, indent=1) + "\n")


def _open(browser: str, page: Path, folder: str) -> tuple[float, float]:
    """Milliseconds until the page had drawn what can be seen, and of CPU time of the browser's whole run."""
    before = _children_ms()
    command = [browser, *_FLAGS, f"--user-data-dir={folder}/profile", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    drawn = re.search(r'data-drawn-ms="(\d+)"', done.stdout)
    if drawn is None:
        sys.exit("the browser left before the charts were drawn")
    return float(drawn[1]), _children_ms() - before


def _children_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1000


if __name__ == "__main__":
    main()
