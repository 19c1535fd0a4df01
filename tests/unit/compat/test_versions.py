import subprocess
import sys
import warnings

import pytest

from ampwise.compat.versions import TESTED, warn_of_untested
from ampwise.plan.operators import installed_torch_version

WITH_TORCH = """
from importlib import metadata
version = metadata.version
metadata.version = lambda name: "{torch}" if name == "torch" else version(name)
import ampwise.runtime
print("imported")
"""


def test_the_torch_that_is_tested_is_the_one_at_hand():
    assert installed_torch_version().startswith(TESTED)


@pytest.mark.parametrize("version", ["2.13.0", "2.13.1+cu130", None])
def test_a_tested_torch_is_not_warned_of(version):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_untested(version)


@pytest.mark.parametrize("version", ["2.14.0", "2.1.3", "3.0.0a0+git1"])
def test_another_torch_is_warned_of(version):
    with pytest.warns(UserWarning, match=f"tested with torch 2.13; this is {version.replace('+', '.')}"):
        warn_of_untested(version)


@pytest.mark.parametrize(
    ("options", "torch", "is_told"), [([], "2.99.0", True), (["-W", "error"], "2.99.0", False), ([], "2.13.0", False)]
)
def test_importing_the_runtime_warns_and_never_fails(options, torch, is_told):
    command = [sys.executable, *options, "-c", WITH_TORCH.format(torch=torch)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "imported\n"
    assert ("this is 2.99.0" in done.stderr) == is_told
