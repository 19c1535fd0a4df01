"""A whole search over made-up runs: what it finds, what it answers instead, where it stops and goes on."""

import math
from dataclasses import replace

import pytest

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.plan.file import parse_plan
from ampwise.plan.plan import Plan, Rule
from ampwise.records.files import from_json, load, to_json
from ampwise.records.run import OWN_REFUSAL, Failure
from ampwise.records.sensitivity import OutsideSensitivity
from ampwise.records.tuning import Outcome, TuningRecord, TuningState
from ampwise.runner.spec import Amp
from ampwise.tune.question import format_called
from ampwise.tune.tune import Tuner
from made_up_runs import Script, module, overflow, tuner


@pytest.fixture
def stack():
    """Eight layers below a model: the third overflows, the sixth is merely bad."""
    modules = [module(f"layers.{i}", score=i * 1e-9) for i in range(8)]
    modules[2] = module("layers.2", score=float("inf"), fault=overflow())
    modules[5] = module("layers.5", score=1e-3)
    modules.append(module("", calls_modules=True, relative=0.0))
    harm = {one.module: 1e-4 for one in modules[:-1]} | {"layers.5": 0.5, "layers.2": float("inf")}
    return Script(harm=harm, modules=modules)


def kept(record):
    return [one.module for one in record.kept]


def test_what_overflows_and_what_spoils_the_loss_stays(stack):
    record = tuner(stack).tune()
    assert record.outcome is Outcome.FOUND
    assert kept(record) == ["layers.2", "layers.5"]
    plan = parse_plan(record.plan)
    assert [(rule.module, rule.compute) for rule in plan.rules] == [("layers.2", "fp32"), ("layers.5", "fp32")]
    assert plan.default == "fp16"
    assert plan.torch is not None
    assert plan.rules[0].because.startswith("fp16 overflow in mm, amax 8.1e+04 at step 3")
    assert "with it in fp16 the loss is 3" in plan.rules[1].because
    assert [one.is_certain for one in record.kept] == [True, False]


def test_the_runs_are_three_in_fp32_then_trials_then_another_seed(stack):
    record = tuner(stack, seed=4).tune()
    fp32, trials = stack.runs[:3], stack.runs[3:]
    assert [(spec.precision, spec.amp, spec.repeat) for spec in fp32] == [
        ("fp32", Amp.OFF, 4),
        ("fp32", Amp.OFF, 4),
        ("fp32", Amp.OFF, 5),
    ]
    assert [spec.rehearse is not None for spec in fp32] == [True, False, False]
    assert {spec.emulate for spec in trials} == {"fp16"}
    assert [spec.repeat for spec in trials] == [4] * (len(trials) - 1) + [5]
    assert [one.seed for one in record.trials] == [spec.repeat for spec in trials]
    assert all(spec.rules_stay for spec in trials)
    watched = [("nonfinite",), ("numerics",), (), *[("numerics",)] * (len(trials) - 1), ()]
    assert [spec.instruments for spec in stack.runs] == watched
    # an instrument's own tensors would be counted
    assert [spec.memory_step is not None for spec in stack.runs] == [not one for one in watched]


def test_the_record_says_what_was_verified(stack):
    record = tuner(stack).tune()
    assert record.noise.rerun == 0.0
    assert record.noise.seeds == pytest.approx(0.004, rel=0.01)
    assert record.noise.tolerance == pytest.approx(0.01)
    assert record.noise.num_steps == 8
    assert record.ranked_steps == (0, 3)
    assert (record.peak_tensor_bytes, record.peak_tensor_bytes_fp32) == (700, 1000)
    assert record.ratio_time is None  # emulated
    assert record.num_modules == 9
    assert [one.module for one in record.modules[:2]] == ["layers.2", "layers.5"]
    assert to_json(from_json(to_json(record), TuningRecord)) == to_json(record)


def test_nothing_has_to_stay_in_a_healthy_training():
    script = Script(modules=[module("fc"), module("", relative=0.0)], harm={"fc": 1e-5})
    record = tuner(script).tune()
    assert record.outcome is Outcome.FOUND
    assert record.kept == ()
    assert parse_plan(record.plan).rules == ()
    assert "all of the model can be" in record.explanation
    assert len(record.trials) == 2


@pytest.mark.parametrize(
    "script", [Script(nan_in_fp32=True), Script(fails_in_fp32=Failure(kind="E", message="a\nboom", where="m.py:3"))]
)
def test_a_fault_in_fp32_cannot_be_fixed_by_precision(script):
    record = tuner(script).tune()
    assert record.outcome is Outcome.FAULT_IN_FP32
    assert "precision cannot fix this" in record.explanation
    assert "ampwise doctor train.py" in record.explanation
    assert record.plan is None
    assert len(script.runs) == 1
    told = "fails in its first step or before it (E: boom at m.py:3)"
    assert (told in record.explanation) == (script.fails_in_fp32 is not None)


def test_an_exit_without_a_word_is_told_by_its_status():
    script = Script(fails_in_fp32=Failure(kind="exit status 3", message=""))
    told = "the script fails in its first step or before it (exit status 3) in fp32 too"
    assert told in tuner(script).tune().explanation


def test_a_script_that_lacks_its_arguments_is_not_said_to_have_a_fault_of_precision():
    script = Script(
        fails_in_fp32=Failure(kind="exit status 2", message="usage: ...\ntrain.py: error: --lr is required")
    )
    record = tuner(script).tune()
    assert record.outcome is Outcome.FAULT_IN_FP32
    assert record.explanation == (
        "the script fails in its first step or before it (exit status 2: train.py: error: --lr is required): its own "
        "arguments stand behind its name"
    )


def test_a_fault_outside_of_all_modules_is_told(stack):
    stack.outside = 0.5
    record = tuner(stack).tune()
    assert record.outcome is Outcome.OUTSIDE
    assert record.plan is None
    assert "outside of its modules" in record.explanation
    assert "39 % above fp32's" in record.explanation


def test_a_tolerance_that_no_plan_meets_names_what_limits():
    script = Script(modules=[module("a", score=9.0), module("b", score=1.0)], harm={"a": 0.5, "b": 0.03})
    record = tuner(script, tolerance=1e-3).tune()
    assert record.outcome is Outcome.ONLY_FP32
    assert record.plan is None
    assert "with b in fp16 the loss is 2.3 % above fp32's, 23" in record.explanation


def test_what_limits_is_named_as_it_was_tried():
    script = products(1, harm={"blocks.0": 0.01, "head": 0.02})
    record = tuner(script, tolerance=1e-3).tune()
    assert record.outcome is Outcome.ONLY_FP32
    assert "with blocks.0 but its matmul in fp16 the loss is " in record.explanation
    script = Script(modules=[module("a", score=9.0)], harm={"a": 0.5}, op_harm={(None, "mul"): 0.03})
    script.beyond = [OutsideSensitivity(op="mul", num_calls=2, score=1.0, relative=1e-3)]
    record = tuner(script, tolerance=1e-3).tune()
    assert record.outcome is Outcome.ONLY_FP32
    assert "with mul outside of the modules in fp16 the loss is " in record.explanation


def test_losses_that_do_not_repeat_are_refused_with_their_noise(stack):
    stack.rerun_noise = 0.1
    with pytest.raises(
        CannotRunError, match=r"same seeds differ by 0\.1 .*\(7\.\d+%\).*tolerance, 0\.0012.*\(0\.10%\)"
    ):
        tuner(stack, tolerance=1e-3).tune()


def test_losses_that_seeds_do_not_decide_are_refused_though_other_seeds_differ_as_much(stack):
    stack.rerun_noise, stack.seed_noise = 2.0, 5.0
    with pytest.raises(CannotRunError, match=r"same seeds differ by 2 .* more than the loss itself, 1\.\d+: nothing"):
        tuner(stack).tune()
    assert tuner(replace(stack, runs=[]), tolerance=9.0).tune().outcome is Outcome.FOUND


def test_losses_that_hardly_differ_are_told(stack):
    stack.rerun_noise = 0.001
    record = tuner(stack).tune()
    assert record.outcome is Outcome.FOUND
    assert any("same seeds differ by 0.08%" in note for note in record.notes)


def test_a_script_without_a_loss_is_refused(stack):
    stack.no_loss = True
    with pytest.raises(CannotRunError, match="16 steps were seen and no loss"):
        tuner(stack).tune()


def test_a_script_may_end_before_the_steps_that_were_asked_for(stack):
    stack.num_losses = 12
    record = tuner(stack, num_steps=30).tune()
    assert (record.num_steps, record.noise.num_steps) == (12, 6)


def test_steps_that_were_skipped_are_told_with_what_they_may_account_for(stack):
    stack.num_skipped = 2
    record = tuner(stack, tolerance=0.0).tune()
    assert record.outcome is Outcome.FOUND
    words = record.trials[-1].reason
    assert words.startswith("the loss is ")
    assert words.endswith("above fp32's, for which 2 skipped steps may account by 9.8 %")


def test_too_few_losses_are_refused(stack):
    stack.num_losses = 5
    with pytest.raises(CannotRunError, match=r"5 losses were seen in fp32, .* at least 8"):
        tuner(stack).tune()
    stack.num_losses = 1
    with pytest.raises(CannotRunError, match=r"1 loss was seen in fp32, .* at least 8"):
        tuner(stack).tune()


def test_half_precision_parameters_are_refused(stack):
    stack.left_alone = "SGD given float16 parameters at train.py:3"
    with pytest.raises(CannotRunError, match="Leave model and data in fp32; then tune it again"):
        tuner(stack).tune()


def test_of_half_precision_the_lines_are_named_that_ask_for_it(stack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ["import torch", "model = make().half()", "half = 1", "x = data.to(torch.float16)", "y = x.float()"]
    (tmp_path / "train.py").write_text("\n".join(lines))
    stack.left_alone = "SGD given float16 parameters at train.py:3"
    with pytest.raises(CannotRunError, match="half precision") as refused:
        tuner(stack).tune()
    told = str(refused.value)
    assert "of its data: train.py:2 (model = make().half()), train.py:4 (x = data.to(torch.float16)); then" in told
    (tmp_path / "train.py").write_text("\n".join(["model.bfloat16()"] * 9))
    with pytest.raises(CannotRunError, match=r"train.py:4 \(model.bfloat16\(\)\) and 5 more; then"):
        tuner(stack).tune()


def test_the_scripts_own_autocast_is_told(stack):
    stack.left_alone = "autocast at train.py:3"
    record = tuner(stack).tune()
    assert any("ampwise.apply_plan" in note for note in record.notes)


def test_a_script_without_modules_is_refused(stack):
    stack.modules = []
    with pytest.raises(CannotRunError, match=r"no torch\.nn\.Module"):
        tuner(stack).tune()


def test_what_a_run_refuses_is_raised(stack):
    stack.fails_in_fp32 = Failure(kind=OWN_REFUSAL, message="no such device")
    with pytest.raises(CannotRunError, match="no such device"):
        tuner(stack).tune()


def test_a_plan_that_another_seed_refutes_is_given_up(stack):
    stack.unlucky = {1: 0.4}
    record = tuner(stack).tune()
    refuted = [one for one in record.trials if one.seed == 1 and not one.passes]
    assert refuted
    assert record.outcome is Outcome.ONLY_FP32


def test_the_plan_to_begin_with_stands_in_front(stack):
    base = Plan(default="fp16", rules=(Rule(op="softmax", compute="fp16"),))
    record = tuner(stack, base=base).tune()
    rules = parse_plan(record.plan).rules
    assert rules[0].op == "softmax"
    assert [rule.module for rule in rules[1:]] == ["layers.2", "layers.5"]


def test_a_plan_that_names_modules_the_model_lacks_is_refused(stack):
    base = Plan(default="fp16", rules=(Rule(module="layer.1", compute="fp32"),))
    with pytest.raises(UsageError, match=r'"layer\.1" matches no module; did you mean "layers'):
        tuner(stack, base=base).tune()
    assert len(stack.runs) == 3


def test_a_presets_rules_for_other_models_pass(stack):
    base = Plan(default="fp16", rules=(Rule(module="*rotary*", compute="fp32"),))
    record = tuner(stack, base=base).tune()
    assert record.outcome is Outcome.FOUND
    assert record.notes[0].startswith('the plan to begin with: rules on "*rotary*": no module is called so')


def test_fp8_is_told_by_rules_on_linear_layers(stack):
    record = tuner(stack, low="fp8_e4m3").tune()
    plan = parse_plan(record.plan)
    assert plan.default == "bf16"
    assert (plan.rules[0].op, plan.rules[0].compute, plan.rules[0].grad) == ("linear", "fp8_e4m3", "fp8_e5m2")
    assert [rule.module for rule in plan.rules[1:]] == ["layers.2", "layers.5"]
    assert {spec.emulate for spec in stack.runs[3:]} == {"fp8_e4m3"}


@pytest.mark.parametrize("minutes", [0.0, 0.4, 0.6, 0.8, 1.0, 1.2, 1.5])
def test_at_the_end_of_its_time_the_best_plan_so_far_is_given(stack, minutes, tmp_path):
    state = tmp_path / "plan.toml.state"
    record = tuner(stack, budget_min=minutes, state=state).tune()
    assert stack.now <= minutes * 60
    if record.outcome is Outcome.FOUND:
        assert not state.exists()
        return
    assert record.outcome in {Outcome.NOTHING_YET, Outcome.OUT_OF_TIME}
    assert (record.plan is not None) == (record.outcome is Outcome.OUT_OF_TIME)
    assert state.exists() == bool(stack.runs)
    if record.plan is not None:
        assert any(trial.passes and set(trial.kept) == set(kept(record)) for trial in record.trials)


def test_resumed_it_makes_no_run_again_and_comes_to_the_same(stack, tmp_path):
    state, fresh = tmp_path / "state", replace(stack, runs=[], now=0.0)
    straight = tuner(fresh).tune()
    for minutes in (0.3, 0.4, 0.5):
        stack.now = 0.0
        record = tuner(stack, budget_min=minutes, state=state, resume=state.exists()).tune()
        assert record.outcome in {Outcome.NOTHING_YET, Outcome.OUT_OF_TIME}
    record = tuner(stack, state=state, resume=True).tune()
    assert (record.plan, record.trials) == (straight.plan, straight.trials)
    assert len(stack.runs) == len(fresh.runs)
    assert record.resumed > 0
    assert not state.exists()


def test_every_run_is_in_the_state_as_soon_as_it_ended(stack, tmp_path):
    state = tmp_path / "state"
    seen = []

    def run(target, spec, *, on_step, output):
        before = load(state, TuningState) if state.exists() else None
        seen.append(0 if before is None else len(before.fp32) + len(before.trials))
        if len(seen) == 6:
            raise KeyboardInterrupt
        return stack(target, spec, on_step=on_step, output=output)

    with pytest.raises(KeyboardInterrupt):
        replace_run(tuner(stack, state=state), run).tune()
    assert seen == [0, 1, 2, 3, 4, 5]


def replace_run(tuner, run):
    return Tuner(
        target=tuner.target,
        question=tuner.question,
        state=tuner.state,
        run=run,
        describe=tuner.describe,
        clock=tuner.clock,
    )


def test_another_question_does_not_go_on(stack, tmp_path):
    state = tmp_path / "state"
    tuner(stack, state=state, budget_min=0.7).tune()
    with pytest.raises(UsageError, match="begun with another tolerance"):
        tuner(stack, state=state, resume=True, tolerance=0.5).tune()
    with pytest.raises(UsageError, match="begun with another seed"):
        tuner(stack, state=state, resume=True, seed=3).tune()


def test_there_must_be_something_to_resume(stack, tmp_path):
    with pytest.raises(UsageError, match="nothing to resume"):
        tuner(stack, state=tmp_path / "state", resume=True).tune()


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({"low": "fp32"}, "looked for in one of fp16"),
        ({"low": "bf16", "high": "bf16"}, "keep modules in fp32"),
        ({"low": "fp8_e4m3", "high": "bf16"}, "keep modules in fp32"),
        ({"num_steps": 7}, "7 steps are too few"),
        ({"tolerance": -0.1}, "share of the loss"),
        ({"tolerance": math.nan}, "share of the loss"),
        ({"budget_min": math.nan}, "number of minutes"),
        ({"budget_min": -1.0}, "number of minutes"),
        ({"seed": -1}, "from 0 to"),
        ({"seed": 2**32 - 1}, "from 0 to 4294967294; 4294967295 is none"),
        ({"base": Plan(default="bf16")}, 'default = "bf16".*default is fp16'),
        ({"base": Plan(default="fp16", parameters="bf16")}, "keeps parameters in bf16"),
        (
            {"low": "fp8_e4m3", "base": Plan(default="bf16", rules=(Rule(op="linear", compute="fp8_e4m3"),))},
            r"rules\[0\]",
        ),
    ],
)
def test_a_question_without_sense_is_refused(stack, question, says):
    with pytest.raises(UsageError, match=says):
        tuner(stack, **question)


def test_where_all_that_computes_overflows_only_fp32_is_left():
    script = Script(modules=[module("fc", fault=overflow())], harm={"fc": 1e-5})
    assert tuner(script).tune().outcome is Outcome.ONLY_FP32


def products(num, *, op_harm=0.5, harm=None):
    """Blocks that multiply and add; their products leave the range."""
    modules = [
        module(f"blocks.{i}", score=math.inf, fault=overflow(), operators=("matmul", "add"), at_fault=("matmul",))
        for i in range(num)
    ]
    modules.append(module("head", score=1e-9, operators=("linear",)))
    ops = {(f"blocks.{i}", "matmul"): op_harm for i in range(num)}
    return Script(harm=harm or {}, op_harm=ops, modules=modules)


def test_of_a_module_the_operator_at_fault_stays_alone():
    record = tuner(products(1)).tune()
    assert record.outcome is Outcome.FOUND
    assert [(one.name, one.module, one.operators, one.is_certain) for one in record.kept] == [
        ("matmul in blocks.0", "blocks.0", ("matmul",), True)
    ]
    rules = parse_plan(record.plan).rules
    assert [(rule.module, rule.op, rule.compute) for rule in rules] == [("blocks.0", "matmul", "fp32")]
    assert rules[0].because.startswith("fp16 overflow in mm, amax 8.1e+04")
    assert "all of the model but 1 operator in its modules can be computed in fp16" in record.explanation
    assert [(one.kept, one.seed) for one in record.trials] == [
        (("blocks.0",), 0),
        (("matmul in blocks.0",), 0),
        (("matmul in blocks.0",), 1),
    ]


def test_where_the_operator_alone_is_not_enough_the_module_stays():
    script = products(2, harm={"blocks.1": 0.3})
    record = tuner(script).tune()
    assert {one.name for one in record.kept} == {"matmul in blocks.0", "blocks.1"}
    assert "all of the model but 1 module and 1 operator of others can be" in record.explanation
    rules = parse_plan(record.plan).rules
    assert {(rule.module, rule.op) for rule in rules} == {("blocks.0", "matmul"), ("blocks.1", None)}
    assert "with it in fp16" not in rules[0].because


def test_one_operator_in_every_module_takes_one_rule():
    record = tuner(products(4)).tune()
    assert [(rule.module, rule.op) for rule in parse_plan(record.plan).rules] == [(None, "matmul")]
    assert "so in 4 modules, such as blocks.0" in parse_plan(record.plan).rules[0].because
    assert len(record.trials) == 3


def test_an_operator_outside_of_the_modules_is_kept_where_it_is_at_fault(stack):
    stack.beyond = [
        OutsideSensitivity(op="mul", num_calls=2, score=1e-12, relative=1e-4),
        OutsideSensitivity(op="matmul", num_calls=2, score=math.nan, relative=math.inf, fault=overflow()),
        OutsideSensitivity(op="exp", num_calls=2, score=None, relative=0.0),
    ]
    stack.op_harm = {(None, "matmul"): 0.7}
    record = tuner(stack).tune()
    assert [(one.name, one.module) for one in record.kept if one.operators] == [("matmul outside of the modules", None)]
    assert [(rule.module, rule.op) for rule in parse_plan(record.plan).rules] == [
        (None, "matmul"),
        ("layers.2", None),
        ("layers.5", None),
    ]
    assert record.explanation.endswith("can be computed in fp16, 1 operator outside of it has to stay")
    assert [one.op for one in record.outside] == ["mul", "matmul", "exp"]


def test_what_stays_in_bf16_stays_in_the_modules_alone(stack):
    stack.beyond = [OutsideSensitivity(op="matmul", num_calls=2, score=9.0, relative=math.inf, fault=overflow())]
    record = tuner(stack, high="bf16").tune()
    assert all(one.module is not None for one in record.kept)


@pytest.mark.parametrize(
    ("fields", "is_first"),
    [
        ({"fell_together": True}, True),
        ({"num_decisions": 100, "num_other_decisions": 10}, True),
        ({"num_decisions": 100, "num_other_decisions": 4}, False),
    ],
)
def test_silent_faults_are_kept_first(fields, is_first):
    modules = [module(f"layers.{i}", score=1.0 + i) for i in range(6)]
    modules.append(module("silent", score=0.0, **fields))
    record = tuner(Script(modules=modules, harm={"silent": 0.5, "layers.5": 1e-5})).tune()
    assert kept(record) == ["silent"]
    assert (record.trials[0].kept == ("silent",)) == is_first
    if "num_decisions" in fields:
        assert f"{fields['num_other_decisions']}.0% of its decisions come out otherwise in fp16" in record.plan


def test_rows_that_fall_together_stay_though_no_loss_shows_it():
    modules = [module("rotary", score=0.0, relative=1.4, fell_together=True), module("fc")]
    record = tuner(Script(modules=modules)).tune()
    assert kept(record) == ["rotary"]
    assert record.kept[0].is_certain


def test_what_a_plan_takes_is_known_of_a_trial_that_was_made_before(stack):
    record = tuner(stack).tune()
    assert record.trials[-1].peak_tensor_bytes == record.peak_tensor_bytes == 700
    assert record.trials[0].peak_tensor_bytes is None


def interrupted(stack, state, *, after):
    """A search that Ctrl-C ends in the run behind ``after`` others."""

    def run(target, spec, *, on_step, output):
        if len(stack.runs) == after:
            raise KeyboardInterrupt
        return stack(target, spec, on_step=on_step, output=output)

    search = replace_run(tuner(stack, state=state), run)
    with pytest.raises(KeyboardInterrupt):
        search.tune()
    return search


@pytest.mark.parametrize("after", range(10))
def test_interrupted_it_has_the_best_plan_that_passed(stack, tmp_path, after):
    total = len(tuner(replace(stack, runs=[])).tune().trials) + 3
    if after >= total:
        return
    state = tmp_path / "state"
    record = interrupted(stack, state, after=after).best_so_far()
    assert len(stack.runs) == after
    if after == 0:
        assert record is None
        return
    passing = [one for one in record.trials if one.passes and one.seed == 0]
    assert (record.plan is not None) == bool(passing)
    assert state.exists()
    assert "time was over" not in record.explanation
    assert "the search was interrupted " in record.explanation
    if passing:
        assert set(kept(record)) == set(min((one.kept for one in passing), key=len))


def test_what_another_search_had_kept_is_no_plan_of_this_one(stack, tmp_path):
    state = tmp_path / "state"
    interrupted(stack, state, after=5)
    other = tuner(stack, state=state, tolerance=0.3)
    assert other.best_so_far() is None
    assert state.exists()


def test_a_search_that_is_refused_keeps_nothing(stack, tmp_path):
    stack.no_loss = True
    with pytest.raises(CannotRunError, match="no loss"):
        tuner(stack, state=tmp_path / "state").tune()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", [None, 16, "fp33"])
def test_a_format_that_is_none_is_refused(target):
    with pytest.raises(UsageError, match="format to find a plan in"):
        format_called(target)
