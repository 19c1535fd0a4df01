"""``ampwise tune`` as a user types it: known faults get the fix that is known, and every mistake its sentence."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ampwise._base.errors import CannotRunError
from ampwise.plan.file import load_plan, parse_plan
from ampwise.plan.plan import Plan, Rule
from ampwise.records.tuning import Outcome
from ampwise.runner.script import Target
from ampwise.tune.question import Question
from ampwise.tune.tune import Tuner
from forked_runs import run_forked
from known_answers import KNOWN_ANSWERS
from warm import python

HERE = Path(__file__).parent
HELPERS, EXAMPLES = HERE.parent / "helpers", HERE.parents[1] / "examples"
SCRIPT = """
import sys
import torch
from known_answers import KNOWN_ANSWERS, Training

Training._cast = lambda self, dtype: None  # those in half precision too are left in fp32
torch.set_num_threads(1)
(answer,) = [one for one in KNOWN_ANSWERS if one.name == sys.argv[1]]
training = answer.make(int(sys.argv[2])).in_fp32()
for group in training.optimizer.param_groups:
    group["lr"] = 1e-12  # what is tried is the forward pass, from one set of weights
for _ in range(12):
    training.step()
"""
TINY = """
import sys
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
class Wide(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) / 1.5e5

model = torch.nn.Sequential(torch.nn.Linear(8, 8), Wide(8, 8), torch.nn.Linear(8, 1))
with torch.no_grad():
    model[1].weight.mul_(1.5e5)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(12):
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save(model.state_dict(), "best.pt")
"""


def tune(*arguments, folder, script="train.py"):
    words = script if isinstance(script, tuple) else (script,)
    environment = {**os.environ, "PYTHONPATH": str(HELPERS), "OMP_NUM_THREADS": "1"}
    return python("-m", "ampwise", "tune", *arguments, *words, cwd=folder, env=environment)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(TINY)
    return tmp_path


def test_an_overflow_is_kept_in_fp32_and_nothing_else_of_the_users_changes(folder):
    done = tune("--steps", 8, "--json", "-o", "plan.toml", folder=folder)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["outcome"] == "found"
    assert [one["module"] for one in document["kept"]] == ["1"]
    assert document["noise"]["rerun"] == 0.0
    assert [(one["kept"], one["seed"]) for one in document["trials"]] == [
        (["1"], 0),
        (["linear in 1"], 0),
        (["linear in 1"], 1),
    ]
    assert all(one["error"] <= 1 for one in document["trials"])
    assert document["peak_tensor_bytes"] > 0
    plan = load_plan(folder / "plan.toml")
    assert [(rule.module, rule.op, rule.compute) for rule in plan.rules] == [("1", "linear", "fp32")]
    assert plan.rules[0].because.startswith("fp16 overflow in addmm, amax ")
    assert "(train.py:9)" in plan.rules[0].because
    assert sorted(path.name for path in folder.iterdir()) == ["plan.toml", "train.py"]
    assert "ampwise run --plan plan.toml --emulate fp16 train.py" in done.stderr
    assert any("best.pt" in note for note in document["notes"])


CONTRASTIVE = """
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
image, words = torch.nn.Linear(8, 16), torch.nn.Linear(6, 16)
optimizer = torch.optim.SGD([*image.parameters(), *words.parameters()], lr=1e-2)
for _ in range(12):
    a, b = image(torch.randn(16, 8)) * 600, words(torch.randn(16, 6)) * 600
    loss = torch.nn.functional.cross_entropy(a @ b.T / 2e5, torch.arange(16))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def test_an_operator_in_the_scripts_own_loss_is_kept_and_the_plan_trains_to_parity(tmp_path, monkeypatch):
    record = tuned(tmp_path, monkeypatch, CONTRASTIVE)
    assert record.outcome is Outcome.FOUND
    assert [(one.name, one.is_certain) for one in record.kept] == [("matmul outside of the modules", True)]
    (tmp_path / "plan.toml").write_text(record.plan)
    fp32, low, planned = (
        losses(tmp_path, *options)
        for options in (
            ("--precision", "fp32"),
            ("--emulate", "fp16"),
            ("--plan", "plan.toml", "--emulate", "fp16"),
        )
    )
    assert all(map(math.isnan, low))
    assert planned == pytest.approx(fp32, rel=0.05)  # the loss scale leaves the first step out
    assert len(planned) == 12


def losses(folder, *options):
    """What a script prints when it runs under ``ampwise run``."""
    done = python("-m", "ampwise", "run", *options, "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


PURE = {
    "longt5_residual": ("fp16", "add"),
    "rms_norm_square": ("fp16", "pow"),
    "mask_overflow": ("fp16", "add"),
    "saturated_log": ("bf16", "log1p"),
    "rope_positions": ("bf16", "mul"),
}
"""Faults of models that are in half precision throughout: the plan to begin with lowers the operator that fails."""
ONE_OF_SEVERAL = {"rms_norm_square": "pow", "mask_overflow": "add", "rope_positions": "mul", "saturated_log": "log1p"}
"""Where the module computes more than what fails, the operator stays, and not the module."""
OFTEN = ("t5_wo", "rms_norm_square", "mask_overflow", "rope_positions")
SELDOM = ("vae_conv", "fed_batch_norm", "longt5_residual", "saturated_log")


def tuned(folder, monkeypatch, source, *arguments, state=None, resume=False, run=run_forked, **question):
    """``ampwise tune`` whose runs are copies of this process."""
    (folder / "train.py").write_text(source)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(HELPERS)
    return Tuner(
        target=Target(path="train.py", argv=tuple(map(str, arguments))),
        question=Question(**{"num_steps": 12, "device": "cpu", **question}),
        state=state,
        resume=resume,
        saved=str(folder / "scratch" / "saved"),
        run=run,
    ).tune()


@pytest.mark.parametrize("name", [*OFTEN, *(pytest.param(one, marks=pytest.mark.slow) for one in SELDOM)])
def test_every_known_overflow_gets_the_known_fix(name, tmp_path, monkeypatch):
    answer = next(one for one in KNOWN_ANSWERS if one.name == name)
    low, op = PURE.get(name, ("fp16", None))
    base = None if op is None else Plan(default=low, rules=(Rule(op=op, compute=low, because="pure"),))
    seed = KNOWN_ANSWERS.index(answer) % 5
    record = tuned(tmp_path, monkeypatch, SCRIPT, name, seed, low=low, base=base)
    assert [one.module for one in record.kept] == [answer.module]
    if name == "fed_batch_norm":  # nothing else of it is computed in fp16 at all
        assert record.outcome is Outcome.ONLY_FP32
        assert "fc stays (fp16 overflow in mm, amax 1." in record.explanation
        return
    assert record.outcome is Outcome.FOUND
    kept = parse_plan(record.plan).rules[op is not None :]
    assert [(rule.module, rule.op, rule.compute) for rule in kept] == [
        (answer.module, ONE_OF_SEVERAL.get(name), "fp32")
    ]
    assert kept[0].because
    assert all(one.passes for one in record.trials if answer.module in one.kept)


def test_what_precision_cannot_fix_is_said(tmp_path, monkeypatch):
    record = tuned(tmp_path, monkeypatch, SCRIPT, "sinkhorn", 0)
    assert record.outcome is Outcome.FAULT_IN_FP32
    assert "so precision cannot fix this: aten.exp in sinkhorn" in record.explanation
    assert record.plan is None


@pytest.mark.slow
@pytest.mark.parametrize("low", ["fp16", "bf16", "fp8_e4m3"])
def test_the_example_with_an_overflow(low, tmp_path, monkeypatch):
    record = tuned(tmp_path, monkeypatch, (EXAMPLES / "overflow.py").read_text(), low=low, num_steps=16)
    assert record.outcome is Outcome.FOUND
    assert [one.module for one in record.kept] == (["layers.1.wo"] if low == "fp16" else [])


SMALL = {
    "char_gpt.py": ("--layers", 1, "--width", 32, "--heads", 2, "--context", 32, "--batch", 4),
    "bert_classify.py": ("--layers", 1, "--width", 64, "--length", 32, "--passages", 300),
}


@pytest.mark.slow
@pytest.mark.parametrize("low", ["fp16", "bf16", "fp8"])
@pytest.mark.parametrize("name", SMALL)
def test_an_example_is_tuned_and_trains_by_its_plan(name, low, tmp_path):
    script = (EXAMPLES / name, *SMALL[name])
    done = tune("--target", low, "--steps", 8, "--json", "-o", "plan.toml", folder=tmp_path, script=script)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["outcome"] == "found"
    assert document["kept"] == []
    assert document["peak_tensor_bytes"] < document["peak_tensor_bytes_fp32"]
    follow = done.stderr.strip().splitlines()[-1].partition("ampwise run ")[2].split()
    ran = python("-m", "ampwise", "run", *follow, *(("--steps", 1) if "gpt" in name else ()), cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


LARGER = """
import torch
from known_answers import FedBatchNorm, linear, randn

torch.set_num_threads(1)
model = torch.nn.Sequential(FedBatchNorm(0), linear(3, 4, 8), torch.nn.ReLU(), linear(4, 8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(12):
    loss = model(randn(step, 6, 4).abs() + 200).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_batch_norm_is_not_blamed_for_the_layer_that_feeds_it(tmp_path, monkeypatch):
    record = tuned(tmp_path, monkeypatch, LARGER)
    assert record.outcome is Outcome.FOUND
    assert [one.name for one in record.kept] == ["0.fc"]


VANISHING = """
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.whisper = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.body(x) + self.whisper(x) * 1e-6 * 1e-6

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(12):
    x = torch.randn(16, 8)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_gradient_that_vanishes_is_found_though_no_loss_shows_it(tmp_path, monkeypatch):
    record = tuned(tmp_path, monkeypatch, VANISHING)
    assert record.outcome is Outcome.FOUND
    assert [one.name for one in record.kept] == ["whisper"]
    assert "of the updates of whisper.weight are lost, for its gradient vanishes" in record.kept[0].because


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_and_comes_to_the_same(folder):
    options = ("--steps", 8, "--json", "-o", "plan.toml")
    straight = json.loads(tune(*options, folder=folder).stdout)
    (folder / "plan.toml").unlink()
    draw, state = random.Random(3), folder / "plan.toml.state"
    for _ in range(12):
        more = ("--resume",) if state.exists() else ()
        process = subprocess.Popen(
            [sys.executable, "-m", "ampwise", "tune", *map(str, (*options, *more)), "train.py"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            process.wait(timeout=draw.uniform(1, 15))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        else:
            break
    if not (folder / "plan.toml").exists():
        assert tune(*options, *(("--resume",) if state.exists() else ()), folder=folder).returncode == 0
    assert load_plan(folder / "plan.toml") == parse_plan(straight["plan"])
    assert not state.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_from_outside_it_leaves_the_best_plan_so_far(number, folder):
    state = folder / "plan.toml.state"
    process = subprocess.Popen(
        [sys.executable, "-m", "ampwise", "tune", "--steps", "8", "-o", "plan.toml", "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    while process.poll() is None and not (state.exists() and '"kept"' in state.read_text()):
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 128 + number
    assert "plan.toml has the best plan so far: all of the model but 1 module can be computed in fp16" in err
    assert "go on with --resume" in err
    assert [rule.module for rule in load_plan(folder / "plan.toml").rules] == ["1"]


@pytest.mark.slow
def test_interrupted_it_goes_on_and_comes_to_the_same(tmp_path, monkeypatch):
    state, runs = tmp_path / "plan.toml.state", []

    def four_runs(target, spec, *, on_step, output):
        if len(runs) == 4:
            raise KeyboardInterrupt
        runs.append(spec)
        return run_forked(target, spec, on_step=on_step, output=output)

    straight = tuned(tmp_path, monkeypatch, TINY)
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, monkeypatch, TINY, state=state, run=four_runs)
    assert state.exists()
    record = tuned(tmp_path, monkeypatch, TINY, state=state, resume=True)
    assert not state.exists()
    assert record.resumed == 1
    assert (record.plan, record.trials) == (straight.plan, straight.trials)


NO_LOSS = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    output = model(torch.ones(2, 4))
    output.backward(torch.ones_like(output))
    optimizer.step()
"""
OWN_AUTOCAST = TINY.replace("    loss = (", '    with torch.autocast("cpu", torch.float16):\n        loss = (')


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("print('no training')", "no training step"),
        (NO_LOSS, "12 steps were seen and no loss"),
        (
            TINY.replace("optimizer = ", "model.half(); optimizer = ").replace("randn(16, 8)", "randn(16, 8).half()"),
            "half",
        ),
        (TINY.replace("manual_seed(0)", "manual_seed(__import__('time').time_ns() % 2**62)"), "same seeds differ by"),
    ],
    ids=["no training", "no loss", "half", "other data each time"],
)
def test_scripts_that_no_plan_can_be_judged_on(tmp_path, monkeypatch, source, says):
    with pytest.raises(CannotRunError, match=says):
        tuned(tmp_path, monkeypatch, source, tolerance=0.001)


def test_a_script_that_raises_is_told_with_its_own_words(tmp_path, monkeypatch):
    record = tuned(tmp_path, monkeypatch, TINY.replace("x = torch", "raise OSError('disk full'); x = torch"))
    assert record.outcome is Outcome.FAULT_IN_FP32
    assert "disk full" in record.explanation


@pytest.mark.slow
def test_a_script_with_its_own_autocast_is_tried_within_it(tmp_path, monkeypatch):
    record = tuned(tmp_path, monkeypatch, OWN_AUTOCAST)
    assert record.outcome is Outcome.FOUND
    assert [one.module for one in record.kept] == ["1"]
    assert any("mixed precision of its own" in note for note in record.notes)
