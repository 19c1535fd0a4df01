"""The examples, as a newcomer starts them: under ``ampwise run``, in plain python and in a comparison."""

import json
import os
import re
from pathlib import Path

import pytest

import warm

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = {
    "amp_recipe": "--batch 8 --width 16 --batches 2 --epochs 1 --precision bf16",
    "bert_classify": "--batch 8 --length 8 --width 64 --layers 1 --passages 80",
    "char_gpt": "--steps 9 --batch 2 --context 16 --width 32 --layers 1 --heads 2",
    "digits_cnn": "--epochs 1 --batch 128 --width 4",
    "overflow": "",
}
LAST_LINE = {
    "amp_recipe": r"mixed precision is \d+\.\d\dx as fast, in \d+\.\d\dx the memory",
    "bert_classify": r"epoch 0  test accuracy [01]\.\d+",
    "char_gpt": r"validation loss 4\.\d+",
    "digits_cnn": r"epoch 0  loss \d\.\d+  test accuracy [01]\.\d+",
    "overflow": r"step 40: loss 0\.\d+",
}
names = pytest.mark.parametrize("name", TINY)


def python(*arguments, cwd):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return warm.python(*arguments, cwd=cwd, env=environment)


def command(name):
    return [str(EXAMPLES / f"{name}.py"), *TINY[name].split()]


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TINY.keys()


@names
def test_an_example_runs_under_ampwise(name, tmp_path):
    done = python("-m", "ampwise", "run", "--precision", "bf16", *command(name), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(LAST_LINE[name], done.stdout.splitlines()[-1])
    own = "the script's own mixed precision was left to it: ampwise.TrainStep"
    assert done.stderr.startswith(f"ampwise: {own}" if name == "amp_recipe" else "ampwise: bf16 on cpu: asked for")
    assert re.search(r"^ampwise: [1-9]\d* steps; median", done.stderr, re.MULTILINE)
    if name == "amp_recipe":
        peaks = re.findall(r"(fp32|bf16) \((\w+)\): median [\d.]+ ms a step, peak memory ([\d.]+) MiB", done.stdout)
        assert [row[:2] for row in peaks] == [("fp32", "fp32"), ("bf16", "bf16")]


@pytest.mark.slow
@names
def test_an_example_runs_in_plain_python(name, tmp_path):
    done = python(*command(name), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(LAST_LINE[name], done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TINY if name != "amp_recipe"])
def test_an_example_is_compared(name, tmp_path):
    options = ["--precision", "fp32,bf16", "--steps", "8", "--repeat", "2", "--json"]
    done = python("-m", "ampwise", "compare", *options, *command(name), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    variants = json.loads(done.stdout)["variants"]
    assert [row["precision"] for row in variants] == ["fp32", "bf16"]
    assert all(row["error"] is None and row["step_ms_median"] > 0 and row["peak_tensor_bytes"] > 0 for row in variants)
    assert variants[1]["verdict"] in {"within noise", "drifting"}
