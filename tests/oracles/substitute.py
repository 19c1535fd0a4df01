"""Runs a copy of PyTorch's own AMP tests twice, with torch's names and with ampwise's in their place.

    python tests/oracles/substitute.py PATH [pytest arguments]

PATH is a test file of PyTorch's, as in pytorch/test/test_torch.py; it is others' code and no part of this
repository. Every test must end as it does with torch's own ``GradScaler`` and ``autocast``; a test that fails both
times says something of the copy, not of ampwise. Without ``-k`` only tests that are about AMP are chosen.
``--record FILE`` adds the names and outcomes to a JSON file.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ABOUT_AMP = "grad_scal or gradscaler or autocast or invalidated_between_unscale"
SIDES = ("torch", "ampwise")


def substitute():
    """Put ampwise's GradScaler and autocast wherever torch offers its own, in this process, for good."""
    import torch

    import ampwise

    theirs = torch.amp.GradScaler
    for module in (torch, torch.amp, torch.amp.grad_scaler):
        if getattr(module, "GradScaler", None) is theirs:
            module.GradScaler = ampwise.GradScaler
    torch.autocast = torch.amp.autocast = torch.amp.autocast_mode.autocast = ampwise.autocast
    for device in ("cuda", "cpu"):
        package = importlib.import_module(f"torch.{device}.amp")
        home = importlib.import_module(f"torch.{device}.amp.grad_scaler")
        home.GradScaler = package.GradScaler = _with_old_signature(home.GradScaler, device)


def _with_old_signature(theirs, device):
    """Ours as ``torch.cuda.amp.GradScaler`` was: without the device, and deprecated."""
    import warnings

    import ampwise

    class GradScaler(ampwise.GradScaler):
        def __init__(self, *args, **kwargs):
            text = f"`torch.{device}.amp.GradScaler(args...)` is deprecated. Please use "
            warnings.warn(f"{text}`torch.amp.GradScaler('{device}', args...)` instead.", FutureWarning, stacklevel=2)
            super().__init__(device, *args, **kwargs)

    GradScaler.__module__, GradScaler.__qualname__ = theirs.__module__, theirs.__qualname__
    return GradScaler


class Outcomes:
    """A pytest plugin that keeps how each test ended."""

    def __init__(self):
        self.by_test = {}

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("::", 1)[-1].replace("::", ".")
        if report.when == "call" or report.outcome != "passed":
            self.by_test[name] = report.outcome


def run_here(side, path, report, arguments):
    """Run the tests in this process and write how they ended; the status is pytest's."""
    import pytest

    if side == "ampwise":
        substitute()
    outcomes = Outcomes()
    chosen = [] if "-k" in arguments else ["-k", ABOUT_AMP]
    alone = [
        "-c",
        os.devnull,
        "--rootdir",
        str(path.parent),
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    status = pytest.main([str(path), "-q", "-W", "default", *alone, *chosen, *arguments], plugins=[outcomes])
    Path(report).write_text(json.dumps(outcomes.by_test))
    return int(status)


def run_apart(side, path, arguments):
    """How each test ends in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "outcomes.json"
        command = [sys.executable, __file__, "--side", side, "--report", report, path, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if not report.exists():
            sys.exit(f"the tests could not be run with {side}'s names:\n{done.stdout}{done.stderr}")
        outcomes = json.loads(report.read_text())
    if not outcomes:
        sys.exit(f"no test was chosen from {path}:\n{done.stdout}{done.stderr}")
    return outcomes, done.stdout


def differences(outcomes):
    """The tests that end differently, each with how."""
    names = sorted(set().union(*outcomes.values()))
    rows = {name: [outcomes[side].get(name, "missing") for side in SIDES] for name in names}
    return {name: row for name, row in rows.items() if len(set(row)) > 1}


def record(file, path, version, outcomes):
    """Add how this copy's tests end, with torch's names and with ampwise's, to what the file holds of others."""
    import torch

    document = json.loads(file.read_text()) if file.exists() else {"files": {}}
    names = sorted(set().union(*outcomes.values()))
    document["torch"] = torch.__version__
    document["files"][path.name] = {
        "version": version,
        "outcomes": {name: {side: outcomes[side].get(name, "missing") for side in SIDES} for name in names},
    }
    file.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--version", default="unknown", help="PyTorch's version that the copy is of")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--report", help=argparse.SUPPRESS)
    given, rest = parser.parse_known_args(arguments)
    path = given.path.resolve()
    if not path.is_file():
        parser.error(f"{given.path} is no file; give a copy of PyTorch's test file, as in pytorch/test/test_torch.py")
    if given.side:
        return run_here(given.side, path, given.report, rest)
    outcomes, said = {}, {}
    for side in SIDES:
        outcomes[side], said[side] = run_apart(side, path, rest)
        say(f"{side}: " + ", ".join(f"{n} {kind}" for kind, n in sorted(Counter(outcomes[side].values()).items())))
    if given.record:
        record(given.record, path, given.version, outcomes)
    different = differences(outcomes)
    for name, (theirs, ours) in different.items():
        say(f"{name}: {theirs} with torch's names, {ours} with ampwise's")
    if different:
        say(said["ampwise"])
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
