"""What a search for a plan says to a person: the answer first, what stays and why, what it was measured against."""

import io
import json

import pytest
from rich.console import Console

from ampwise.report.tuning import render_tuning, tuning_json
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
        "verified: in the mean of the last 8 of 16 steps the loss is 0.00078 % above fp32's; with another seed" in text
    )
    assert (
        "tolerated are 1.00% of the loss: in fp32 the same seeds give the same losses, another seed one 0.31% off"
        in text
    )
    assert "steps 1 and 4 ranked the 2 modules; their losses are not in that mean" in text
    assert "2 trials of 16 steps, beside 3 in fp32, in 50 s" in text
    assert "the tensors of a step hold 700 B at most, in fp32 1000 B" in text
    assert "how fast it is was not measured: fp16 was emulated on a CPU" in text


def test_the_lines_fit_a_terminal(script):
    assert all(len(line) <= 80 for line in rendered(tuner(script).tune(), width=80).splitlines())


def test_no_plan_is_told_without_a_table(script):
    script.nan_in_fp32 = True
    text = rendered(tuner(script).tune())
    assert "precision cannot fix this" in " ".join(text.split())
    assert "stays" not in text
    assert "verified" not in text


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
