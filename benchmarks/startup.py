"""What importing ampwise and asking for its help cost, as whole processes less the bare interpreter's."""

import statistics
import subprocess
import sys
import time

from _common import Row, publish

COMMANDS = {
    "interpreter": [sys.executable, "-c", "pass"],
    "import ampwise": [sys.executable, "-c", "import ampwise"],
    "ampwise --help": [sys.executable, "-m", "ampwise", "--help"],
}
GOALS = {"import ampwise": "<= 50 ms over the interpreter", "ampwise --help": "<= 200 ms in all"}


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(21):
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times[name].append((time.perf_counter() - start) * 1000)
    base = statistics.median(times["interpreter"])
    rows = [
        Row(
            case="start-up",
            side=name,
            baseline="interpreter",
            ms=statistics.median(times[name]),
            baseline_ms=base,
            ratio=base / statistics.median(times[name]),
            ratio_min=base / max(times[name]),
            ratio_max=base / min(times[name]),
            runs=len(times[name]),
            goal=goal,
        )
        for name, goal in GOALS.items()
    ]
    publish("startup", rows)


if __name__ == "__main__":
    main()
