"""What a search for a plan says to a person: the answer first, what stays and why, what it was measured against."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from ampwise.report.tuning import facts, render_tuning, tuning_json, verified
from made_up_runs import Script, module, overflow, tuner


def rendered(record, *, width=100):
    stream = io.StringIO()
    render_tuning(record, Console(file=stream, width=width))
    return stream.getvalue()


def said(record):
    return " ".join(rendered(record).split())


@pytest.fixture
def script():
    modules = [module("fc1", score=1.0), module("fc2", score=float("inf"), fault=overflow(file="net.py", line=7))]
    return Script(harm={"fc1": 1e-5, "fc2": float("inf")}, modules=modules)


def test_a_plan_is_told_with_its_reasons_and_what_was_verified(script):
    text = said(tuner(script).tune())
    assert text.startswith("all of the model but 1 module can be computed in fp16.")
    assert "fc2 fp16 overflow in mm, amax 8.1e+04 at step 3 (net.py:7)" in text
    assert (
        "loss parity: in the mean of the last 8 of 16 steps the loss is 0.00078 % above fp32's; with another seed"
        in text
    )
    assert "noise of fp32: the same seeds give the same losses, another seed one 0.31% off; tolerated are 1.00%" in text
    assert "held out: steps 1 and 4 ranked the 2 modules; their losses are in no comparison" in text
    assert "2 trials of 16 steps, beside 3 in fp32, in 50 s" in text
    assert "predicted memory: the tensors of a step hold 700 B at most, in fp32 1000 B" in text
    assert "speed: not measured, for fp16 was emulated on a CPU" in text


def test_the_lines_fit_a_terminal(script):
    assert all(len(line) <= 80 for line in rendered(tuner(script).tune(), width=80).splitlines())


def test_no_plan_is_told_without_a_table(script):
    script.nan_in_fp32 = True
    text = rendered(tuner(script).tune())
    assert "precision cannot fix this" in " ".join(text.split())
    assert "stays" not in text
    assert "parity" not in text


def test_out_of_time_is_told(script):
    text = said(tuner(script, budget_min=0.75).tune())
    assert "by the first seed alone; time was over before another seed confirmed it" in text
    assert "1 trial of 16 steps" in text


def test_names_are_inert(script):
    script.modules[1] = module("fc\x1b[31m2", fault=overflow())
    script.harm = {"fc1": 0.0}
    assert "\x1b" not in rendered(tuner(script).tune())


def test_a_machine_gets_all_of_it(script):
    document = json.loads(json.dumps(tuning_json(tuner(script).tune()), allow_nan=False))
    assert document["outcome"] == "found"
    assert [one["module"] for one in document["modules"]] == ["fc2", "fc1"]
    assert document["modules"][0]["score"] == {"float": "inf"}
    assert document["trials"][0]["kept"] == ["fc2"]


WHAT_IS_VERIFIED = ("loss parity: ", "noise of fp32: ", "held out: ", "predicted memory: ", "speed: ")


def test_what_was_verified_stands_at_the_terminal_in_the_json_and_in_the_plan(script):
    record = tuner(script).tune()
    terminal, plan = said(record), list(facts(record))
    document = tuning_json(record)["verified"]
    assert plan[0].startswith("found by ampwise 0 tune on 20")
    assert plan[0].endswith(": train.py")
    for beginning in WHAT_IS_VERIFIED:
        assert beginning in terminal
        assert len([line for line in document if line.startswith(beginning)]) == 1
        assert len([line for line in plan if line.startswith(beginning)]) == 1


def test_where_the_device_has_the_format_its_speed_is_told(script):
    measured = replace(tuner(script).tune(), emulated=False, ratio_time=1.6)
    assert [line for line in verified(measured) if line.startswith("speed")] == [
        "speed: a step takes 0.62 times as long as in fp32"
    ]
