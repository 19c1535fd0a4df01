"""What a shell offers after Tab: it runs no script, imports no torch and never ends in a traceback."""

import os
import subprocess
import sys

import pytest


def offered(*words):
    """What bash is told of a line that ends in the last word."""
    environment = {
        **os.environ,
        "COMP_WORDS": " ".join(("ampwise", *words)),
        "COMP_CWORD": str(len(words)),
        "_AMPWISE_COMPLETE": "bash_complete",
    }
    code = """
import sys
from ampwise.cli.main import main
try:
    main([])
finally:
    assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment)
    assert "Traceback" not in done.stderr, done.stderr
    return [tuple(line.split(",", 1)) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "kind", "wanted"),
    [
        (("r",), "plain", {"run", "report"}),
        (("run", "--pr"), "plain", {"--precision"}),
        (("run", "--precision", "bf"), "plain", {"bf16", "bf16-pure"}),
        (("compare", "--precision", "fp32,bf16,a"), "plain", {"fp32,bf16,auto"}),
        (("estimate", "--device", "h"), "plain", {"h100-80gb", "h200"}),
        (("explain", "MP10"), "plain", {f"MP10{digit}" for digit in range(1, 10)}),
        (("run", "--plan", "fp16"), "plain", {"fp16", "fp16-safe"}),
        (("run", "--plan", "mine"), "file", {"mine"}),
        (("plan", "show", "bf"), "plain", {"bf16", "bf16-pure"}),
        (("plan", "diff", "bf16", "mine"), "file", {"mine"}),
        (("doctor", "tra"), "file", {"tra"}),
        (("run", "--precision", "bf16", "tra"), "file", {"tra"}),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else None,
)
def test_a_word_is_completed(words, kind, wanted):
    found = offered(*words)
    assert {one[0] for one in found} == {kind}
    assert {one[1] for one in found} >= wanted
