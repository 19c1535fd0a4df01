"""Each obstacle that a CPU's own cast lists put up is a plain script; CUDA's lists and the remedies remove it."""

import warnings
from pathlib import Path

import pytest

from ampwise.observe.events import EventBus
from ampwise.runner.inject import inject
from ampwise.runner.spec import Lists
from ampwise.runtime.hardware.device import Choice
from warm import python

SCRIPTS = Path(__file__).parent / "scripts"
OBSTACLES = {
    "dtype_mismatch": (RuntimeError, "did not match|same scalar type|dtypes match"),
    "softmax_lists": (AssertionError, "attention weights are off"),
    "mean_loss": (AssertionError, "the loss says"),
    "bce_sigmoid": (AssertionError, "a logit of 8 costs"),
}


def run(name, lists):
    path = SCRIPTS / f"{name}.py"
    choice = Choice(precision="bf16", reason="asked for", slow_factor=None, device="cpu")
    with warnings.catch_warnings(), inject(choice=choice, lists=lists, bus=EventBus()) as injected:
        warnings.simplefilter("ignore")
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), {"__name__": "__main__"})
    return injected


@pytest.mark.parametrize("name", OBSTACLES)
def test_the_script_passes_with_cudas_lists(name):
    assert run(name, Lists.CUDA).num_steps == 3


@pytest.mark.parametrize("name", OBSTACLES)
def test_the_script_fails_with_the_devices_own(name):
    error, text = OBSTACLES[name]
    with pytest.raises(error, match=text):
        run(name, Lists.STOCK)


@pytest.mark.parametrize(("lists", "status"), [("cuda", 0), ("stock", 1)])
def test_the_command_chooses_the_lists(lists, status):
    done = python("-m", "ampwise", "run", "--precision", "bf16", "--lists", lists, SCRIPTS / "bce_sigmoid.py")
    assert done.returncode == status
    assert ("a logit of 8 costs" in done.stderr) == (lists == "stock")
