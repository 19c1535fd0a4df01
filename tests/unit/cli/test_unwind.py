"""A command that a signal ends cleans up, however many more signals come."""

import signal
import subprocess
import sys

import pytest

SOURCE = """
import os, signal, sys, time
from ampwise.cli.unwind import signals_unwind

first, *others = map(int, sys.argv[1:])
try:
    with signals_unwind():
        os.kill(os.getpid(), first)
        time.sleep(60)
finally:
    for number in others:
        os.kill(os.getpid(), number)
    time.sleep(0.05)
    print("cleaned")
"""


@pytest.mark.parametrize(
    "signals", [(signal.SIGTERM,), (signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGTERM)]
)
def test_the_first_signal_unwinds_and_the_next_disturb_nothing(signals):
    command = [sys.executable, "-c", SOURCE, *(str(int(one)) for one in signals)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("cleaned\n", 128 + signals[0])
