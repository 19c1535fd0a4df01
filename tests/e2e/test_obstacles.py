"""Each obstacle is a plain script. It runs by itself and under ampwise, and not without the row that removes it."""

import warnings
from pathlib import Path

import pytest
import torch

from ampwise.interpose import gradient_views, own_amp, seam
from ampwise.observe.events import EventBus
from ampwise.runner.inject import inject
from ampwise.runtime.hardware.device import Choice
from rows import all_rows

SCRIPTS = Path(__file__).parent / "scripts"
UNDER_FP16 = {row.name for row in (*gradient_views.ROWS, own_amp.SCALER)}


ROWS = [row for row in all_rows() if row.obstacle is not None]


def run(name):
    path = SCRIPTS / f"{name}.py"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), {"__name__": "__main__"})


def injected(precision):
    choice = Choice(precision=precision, reason="asked for", slow_factor=None, device="cpu")
    return inject(choice=choice, bus=EventBus())


def leave_out(monkeypatch, row):
    """Let the row's replacement pass everything through."""
    set_interceptors = seam._Seam.set_interceptors

    def except_row(self, interceptors):
        set_interceptors(self, () if self.row.name == row.name else interceptors)

    monkeypatch.setattr(seam._Seam, "set_interceptors", except_row)


@pytest.mark.parametrize("name", sorted(path.stem for path in SCRIPTS.glob("*.py")))
def test_the_script_runs_by_itself(name):
    run(name)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", sorted(path.stem for path in SCRIPTS.glob("*.py")))
def test_the_script_runs_under_ampwise(name, precision):
    with injected(precision):
        run(name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_script_fails_without_its_row(row, monkeypatch):
    leave_out(monkeypatch, row)
    precision = "fp16" if row.name in UNDER_FP16 else "bf16"
    errors = (AssertionError, RuntimeError, TypeError, torch.jit.TracingCheckError)
    with pytest.raises(errors), injected(precision):
        run(row.obstacle)


def test_weights_changed_by_hand_are_not_seen_by_the_naive_way():
    with pytest.raises(AssertionError, match="had no effect"), torch.autocast("cpu", torch.bfloat16):
        run("stale_cache")
