"""Faults that people really hit, each found by ``ampwise doctor`` at its module and operator; healthy ones at none."""

import json
import os
from pathlib import Path

import pytest

from known_answers import KNOWN_ANSWERS
from warm import python

HERE = Path(__file__).parent
HELPERS, EXAMPLES = HERE.parent / "helpers", HERE.parents[1] / "examples"
SCRIPT = """
import sys
import torch
from known_answers import KNOWN_ANSWERS

torch.set_num_threads(1)
(answer,) = [one for one in KNOWN_ANSWERS if one.name == sys.argv[1]]
training = answer.make(int(sys.argv[2]))
for _ in range(12):
    training.step()
"""
RULES = {
    "t5_wo": "DR101",
    "longt5_residual": "DR101",
    "rms_norm_square": "DR106",
    "mask_overflow": "DR103",
    "vae_conv": "DR101",
    "saturated_log": "DR102",
    "adam_eps": "DR105",
    "gradient_underflow": "DR205",
    "rope_positions": "DR304",
    "sinkhorn": "DR109",
    "fed_batch_norm": "DR101",
}
pytestmark = pytest.mark.slow


def diagnosed(*arguments, folder):
    environment = {**os.environ, "PYTHONPATH": str(HELPERS), "OMP_NUM_THREADS": "1"}
    done = python("-m", "ampwise", "doctor", "--json", *arguments, cwd=folder, env=environment)
    assert done.returncode in {0, 1}, done.stderr
    return json.loads(done.stdout)["findings"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("answer", KNOWN_ANSWERS, ids=lambda answer: answer.name)
def test_the_fault_is_found_at_its_module_and_operator_and_at_no_other(answer, seed, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    findings = diagnosed("--steps", 12, "train.py", answer.name, seed, folder=tmp_path)
    errors = [one for one in findings if one["severity"] == "error"]
    assert RULES[answer.name] in {one["rule"] for one in errors}
    assert {(one["module"], one["op"]) for one in errors} == {(answer.module, answer.op)}
    assert all(one["evidence"] for one in errors)
    has_rule = any(one["plan_rule"] for one in errors)
    assert has_rule == (answer.name not in {"sinkhorn", "adam_eps", "gradient_underflow"} and not answer.make(0).pure)
    if answer.fails_in_fp32:
        assert "precision cannot fix it" in errors[0]["message"]


@pytest.mark.parametrize("precision", [("--precision", "bf16"), ("--emulate", "fp16")], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", ["bert_classify", "digits_cnn", "char_gpt"])
def test_a_healthy_example_has_no_fault_of_its_numbers(name, precision, tmp_path):
    findings = diagnosed(*precision, "--steps", 12, EXAMPLES / f"{name}.py", folder=tmp_path)
    assert [one for one in findings if one["severity"] == "error"] == []
    assert [one["rule"] for one in findings if one["rule"] < "DR4"] == []


def test_every_known_answer_has_its_rule():
    assert RULES.keys() == {answer.name for answer in KNOWN_ANSWERS}
