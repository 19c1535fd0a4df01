"""The scheduler in training loops: what moves, what is told of it, what stays, and how it is resumed and refused."""

import copy
import math
import pickle
import warnings

import numpy as np
import pytest
import torch

import ampwise
from adapting import GROUPS, Blocks
from ampwise import (
    AbsoluteLossCurvature,
    CannotRunError,
    GradNormSpike,
    LossSpike,
    NonFinite,
    OverflowShare,
    Plan,
    PlanError,
    PrecisionScheduler,
    RecordError,
    Rule,
    Schedule,
    TrainStep,
    UnderflowShare,
    UsageError,
    apply_plan,
    load_checkpoint,
    save_checkpoint,
    watch,
)

FIXED = Schedule(steps=[(2, 4)], groups=["blocks.1"])


class Loop:
    """Trains ``Blocks`` in emulated fp16 by a TrainStep; inputs are too large for fp16 in some steps."""

    def __init__(self, *, bad=(), size=3e5, model=None, capture=False, **options):
        self.model = model or Blocks()
        self.scheduler = PrecisionScheduler(self.model, "fp16", **{"quiet": 4, "cool_down": 0, **options})
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.step = TrainStep(
            optimizer, modules=[self.model], precision="fp32", loss_scale=self.scheduler.loss_scale, capture=capture
        )
        self.bad, self.size, self.num_steps, self.losses = bad, size, 0, []

    def train(self, num_steps):
        with ampwise.emulated("fp16"):
            for _ in range(num_steps):
                x = torch.randn(8, 4)
                x = x * self.size if self.num_steps in self.bad else x
                with self.step.autocast():
                    loss = torch.nn.functional.smooth_l1_loss(self.model(x), x.sum(1, keepdim=True))
                self.scheduler.step(loss, self.step(loss))
                self.losses.append(loss.item())
                self.num_steps += 1
        return self

    def moves(self):
        return [(one.step, one.group, one.after) for one in self.scheduler.switches]


@pytest.fixture
def closing():
    made = []
    yield lambda **options: made.append(Loop(**options)) or made[-1]
    for one in made:
        one.scheduler.close()


def test_a_group_that_overflows_goes_up_and_comes_back(closing):
    torch.manual_seed(1)
    loop = closing(bad=(3,), triggers=["nonfinite"]).train(12)
    assert loop.moves() == [(4, "inp", "fp32"), (8, "inp", "fp16")]
    assert [one.cause for one in loop.scheduler.switches] == ["its results are not finite", "quiet for 4 steps"]
    assert math.isnan(loop.losses[3])
    assert math.isfinite(loop.losses[4])
    assert dict(loop.scheduler.groups) == dict.fromkeys(GROUPS, "fp16")


def test_what_fails_in_the_safer_format_moves_all(closing):
    loop = closing(bad=(3, 4), size=math.inf, triggers=["nonfinite"]).train(6)
    assert loop.moves()[0] == (4, "inp", "fp32")
    assert {one.group for one in loop.scheduler.switches if one.step == 5} == {*GROUPS} - {"inp"}
    assert loop.scheduler.switches[-1].cause == "its results are not finite, in the safer format too"


def test_results_near_the_limit_move_a_group_before_numbers_are_lost(closing):
    torch.manual_seed(1)
    loop = closing(bad=(3, 4), size=1.2e4, triggers=[OverflowShare(headroom=8.0)]).train(12)
    stream = ("inp", "blocks.0", "blocks.1")  # a residual one: what is large stays so
    assert loop.moves() == [*((4, one, "fp32") for one in stream), *((9, one, "fp16") for one in stream)]
    assert all(map(math.isfinite, loop.losses))
    assert "of its results beyond the format, the largest " in loop.scheduler.switches[0].cause


def test_a_schedule_moves_its_groups_at_its_steps(closing):
    loop = closing(triggers=[FIXED, Schedule(steps=[(0, 1)])]).train(6)
    assert [one for one in loop.moves() if one[1] == "blocks.1"] == [
        (0, "blocks.1", "fp32"),
        (1, "blocks.1", "fp16"),
        (2, "blocks.1", "fp32"),
        (4, "blocks.1", "fp16"),
    ]
    assert loop.scheduler.switches[-1].cause == "the schedule's end"
    weights = [sum(p.numel() for p in part.parameters()) for part in (loop.model, loop.model.blocks[1])]
    assert loop.scheduler.low_share == pytest.approx(1 - (weights[0] + 2 * weights[1]) / (6 * weights[0]))


def test_a_plain_loop_with_a_scaler_of_ampwise_or_torch_or_none():
    def moves(make):
        model, scaler = Blocks(), make and make()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        torch.manual_seed(1)
        with ampwise.emulated("fp16"), PrecisionScheduler(model, "fp16", triggers=[NonFinite(), GradNormSpike()]) as it:
            for index in range(8):
                x = torch.randn(8, 4) * (3e5 if index == 3 else 1.0)
                loss = model(x).square().mean()
                (loss if scaler is None else scaler.scale(loss)).backward()
                if scaler is None:
                    it.step(loss)
                    if loss.isfinite():
                        optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()
                    it.step(loss, scaler)
                optimizer.zero_grad()
            norms = it._state.triggers[1].octaves
        return [(one.step, one.group) for one in it.switches], norms

    plain, norms = moves(None)
    assert plain == [(4, "inp")]
    for make in (lambda: ampwise.GradScaler("cpu"), lambda: torch.amp.GradScaler("cpu")):
        scaled, same = moves(make)
        assert scaled == plain
        # the loss scale is out of the norms: 2^16 would be 16 octaves
        assert all(
            abs(a - b) < 1.5 for one, two in zip(norms, same, strict=True) for a, b in zip(one, two, strict=False)
        )


def test_a_window_of_accumulation_is_one_step_with_the_mean_of_its_losses():
    model = Blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with PrecisionScheduler(model, "bf16", triggers=[AbsoluteLossCurvature()]) as scheduler:
        step = TrainStep(optimizer, modules=[model], precision="fp32", accumulation_steps=2)
        for value in (1.0, 3.0, 5.0, 7.0):
            with step.autocast():
                loss = model(torch.ones(1, 4)).sum() * 0.0 + value
            scheduler.step(loss, step(loss))
        assert scheduler._state.triggers[0].losses == (2.0, 6.0)


def test_a_frozen_or_unused_parameter_is_no_obstacle(closing):
    model = Blocks()
    model.inp.requires_grad_(False)
    model.spare = torch.nn.Linear(2, 2)
    loop = closing(model=model, triggers=["nonfinite", "grad-norm-spike"]).train(3)
    assert loop.moves() == []


def test_gradients_taken_aside_are_no_obstacle_and_not_measured():
    model = Blocks()
    with PrecisionScheduler(model, "bf16", triggers=["grad-norm-spike"]) as scheduler:
        for _ in range(2):
            out = model(torch.ones(2, 4, requires_grad=True)).square().mean()
            aside = torch.autograd.grad(out, list(model.parameters()), retain_graph=True, create_graph=True)
            assert len(aside) == len(list(model.parameters()))
            out.backward()
            scheduler.step(out)
            model.zero_grad()
        norm = torch.stack(
            [one.norm() for name, one in zip(dict(model.named_parameters()), aside, strict=True) if "inp" in name]
        ).norm()
        assert 2.0 ** scheduler._state.triggers[0].octaves[0][-1] == pytest.approx(norm.item(), rel=1e-2)


def test_each_switch_is_in_the_recording_of_a_loop_that_is_watched(closing):
    torch.manual_seed(1)
    loop = closing(bad=(3,), triggers=["nonfinite"])
    with watch(loop.model, instruments=()) as seen:
        loop.train(10)
    (run,) = seen.recording.runs
    assert run.switches == loop.scheduler.switches
    assert [step.loss for step in run.steps if step.index in {3, 4}] == pytest.approx(loop.losses[3:5], nan_ok=True)


def test_a_run_that_went_on_from_a_checkpoint_is_the_one_that_never_stopped(tmp_path, closing):
    options = {
        "bad": (3, 9, 10),
        "triggers": ["nonfinite", LossSpike(min_history=3, in_a_row=1), GradNormSpike(min_history=3)],
    }
    torch.manual_seed(1)
    whole = closing(**options).train(16)
    assert len(whole.moves()) > 2
    expected = [one.tolist() for one in whole.model.state_dict().values()]
    for at in (0, 4, 6, 11):
        torch.manual_seed(1)
        first = closing(**options).train(at)
        extra = {"scheduler": first.scheduler.state_dict()}
        save_checkpoint(tmp_path / "it.pt", step=first.step, model=first.model, extra=extra)
        second = closing(**options)
        torch.manual_seed(9)
        found = load_checkpoint(tmp_path / "it.pt", step=second.step, model=second.model)
        second.scheduler.load_state_dict(found["scheduler"])
        second.num_steps = at
        second.train(16 - at)
        assert first.losses + second.losses == pytest.approx(whole.losses, rel=0, abs=0, nan_ok=True)
        assert [one.tolist() for one in second.model.state_dict().values()] == expected
        assert first.moves() + second.moves() == whole.moves()
        assert second.scheduler.low_share == whole.scheduler.low_share


def test_rows_that_were_not_read_are_saved_too(closing):
    torch.manual_seed(1)
    whole = closing(bad=(3,), triggers=["nonfinite"], every=5).train(12)
    assert whole.moves()[0] == (5, "inp", "fp32")
    torch.manual_seed(1)
    first = closing(bad=(3,), triggers=["nonfinite"], every=5).train(4)
    second = closing(bad=(3,), triggers=["nonfinite"], every=5)
    second.scheduler.load_state_dict(first.scheduler.state_dict())
    second.num_steps = 4
    assert second.train(8).moves()[0] == whole.moves()[0]


def test_a_state_that_does_not_fit_changes_nothing(closing):
    loop = closing(triggers=["nonfinite"])
    before = repr(loop.scheduler.state_dict())
    others = [
        (closing(groups=["blocks.*"]), "of the groups blocks.*, this PrecisionScheduler has inp, blocks.0"),
        (closing(triggers=["loss-spike"]), "of the triggers LossSpike, this PrecisionScheduler has NonFinite"),
    ]
    for other, words in others:
        with pytest.raises(RecordError) as refused:
            loop.scheduler.load_state_dict(other.scheduler.state_dict())
        assert words in str(refused.value)
    with pytest.raises(RecordError, match="no state_dict"):
        loop.scheduler.load_state_dict({})
    with pytest.raises(RecordError, match="no state_dict"):
        loop.scheduler.load_state_dict({**loop.scheduler.state_dict(), "policy": {"quite": 3}})
    whole = loop.scheduler.state_dict()
    damages = [
        {"num_steps": "x"},
        {"num_low": []},
        {"groups_by_name": None},
        {"scale": "x"},
        {"scale": torch.ones(2)},
        {"groups": [{**one, "is_raised": "perhaps"} for one in whole["groups"]]},
        {"groups": whole["groups"][:-1]},
        {"triggers": [{**whole["triggers"][0], "num_in_a_row": "many"}]},
        {"triggers": [{"kind": "loss-spike", "losses": "abc"}]},
        {"triggers": [{"kind": "grad-norm-spike", "octaves": ((1.0,),)}]},
        {"combinations": {**whole["combinations"], "current": (7,)}},
    ]
    for damage in damages:
        with pytest.raises(RecordError, match="no state_dict"):
            loop.scheduler.load_state_dict({**loop.scheduler.state_dict(), **damage})
    assert repr(loop.scheduler.state_dict()) == before


def attributes(model):
    return [(name, sorted(vars(one)), len(one._forward_hooks)) for name, one in model.named_modules()]


def hooks(model):
    return sum(len(one._post_accumulate_grad_hooks or ()) for one in model.parameters())


def test_close_leaves_the_model_as_it_was_and_may_be_called_again():
    model = Blocks()
    before = attributes(model)
    scheduler = PrecisionScheduler(model, "bf16")
    assert attributes(model) != before
    assert hooks(model) > 0
    for _ in range(2):
        scheduler.close()
    assert (attributes(model), hooks(model)) == (before, 0)
    with pytest.raises(UsageError, match="this PrecisionScheduler is closed; make another one"):
        scheduler.step(1.0)
    with pytest.raises(ValueError, match="mine"), PrecisionScheduler(model, "bf16"):
        raise ValueError("mine")
    assert attributes(model) == before


NO_W0 = Plan(default="fp16", rules=(Rule(module="*.w0", compute="fp32"), Rule(module="nothing", compute="fp32")))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"plan": NO_W0},
            PlanError,
            'rules[0].module: "*.w0" matches no module; did you mean "*.wo"?\nrules[1].module',
        ),
        ({"plan": "fp61"}, PlanError, '"fp61" is neither a plan file nor a preset'),
        ({"plan": "fp32"}, CannotRunError, "nothing below fp32 in the model, so there is nothing to move"),
        ({"plan": "bf16", "safer": "bf16"}, CannotRunError, 'give a plan such as "fp16"'),
        ({"plan": "bf16-pure"}, CannotRunError, "moves what is computed, never what is kept"),
        ({"triggers": []}, UsageError, "triggers is [], so that nothing would ever move; give some of"),
        (
            {"triggers": [UnderflowShare(format="fp8_e4m3"), UnderflowShare(format="fp8_e5m2")]},
            UsageError,
            "several UnderflowShare with another format each, and a step is measured by one",
        ),
        (
            {"triggers": [OverflowShare(), OverflowShare(headroom=4.0)]},
            UsageError,
            "several OverflowShare with another format or headroom each",
        ),
        ({"triggers": ["nonfinit"]}, UsageError, '"nonfinit" is not a trigger; did you mean "nonfinite"?'),
        ({"triggers": 3}, UsageError, 'a trigger is 3; give "loss-curvature"'),
        ({"triggers": LossSpike}, UsageError, "a trigger is <class 'ampwise.adapt.triggers.LossSpike'>; give"),
        ({"groups": 3}, UsageError, "groups is 3; give globs over module paths such as"),
        ({"groups": [3]}, UsageError, "groups: 3 is no text"),
        ({"groups": {"": "inp"}}, UsageError, "groups: a name or glob is empty"),
        ({"groups": {"a": []}}, UsageError, "groups: '' is empty"),
        ({"groups": ["blocks.7"]}, UsageError, "'blocks.7' matches no module"),
        (
            {"plan": Plan(default="fp16", rules=(Rule(module="head", compute="fp32"),)), "groups": ["head"]},
            CannotRunError,
            "nothing below fp32 in these groups",
        ),
        (
            {"plan": Plan(default="fp16", rules=(Rule(module="head", compute="fp32"),)), "groups": ["inp", "head"]},
            UsageError,
            'the plan computes nothing below fp32 in "head"; leave it out',
        ),
        ({"safer": "fp23"}, UsageError, '"fp23" is not a format to move to; did you mean'),
        ({"quiet": 0}, UsageError, "PrecisionScheduler: quiet is 0; it must be at least 1"),
        ({"quiet": "x"}, UsageError, "PrecisionScheduler: quiet is 'x'; it must be a whole number, at least 1"),
        ({"hysteresis": None}, UsageError, "hysteresis is None; it must be a number, above 0, and at most 1"),
        ({"max_switches": True}, UsageError, "max_switches is True; it must be a whole number, at least 1"),
        (
            {"every": 1.5, "max_combinations": "2"},
            UsageError,
            "every is 1.5; it must be a whole number, at least 1, or",
        ),
        ({"max_combinations": 1}, UsageError, "max_combinations is 1; it must be at least 2"),
        ({"every": 0}, UsageError, "every is 0; it must be at least 1"),
        (
            {"triggers": [Schedule(steps=[(0, 1)], groups=["blok.0"])]},
            UsageError,
            'Schedule(groups=...): "blok.0" is not a group; did you mean "blocks.0"?',
        ),
        (
            {"model": torch.relu},
            UsageError,
            "PrecisionScheduler was given a builtin_function_or_method; give the model",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_and_leaves_the_model_as_it_was(options, error, words):
    model = Blocks()
    before = attributes(model)
    with pytest.raises(error) as refused:
        PrecisionScheduler(**{"model": model, "plan": "fp16", **options})
    assert words in str(refused.value)
    assert (attributes(model), hooks(model)) == (before, 0)


def test_all_that_cannot_be_meant_is_said_at_once_with_the_names_that_were_meant():
    wrong = {
        "plan": NO_W0,
        "quiet": 0,
        "every": "x",
        "triggers": ["nonfinit", Schedule(steps=[(0, 1)], groups=["blok.0"])],
        "groups": ["blocks.*", "heat"],
        "safer": "fp23",
    }
    with pytest.raises(UsageError) as refused:
        PrecisionScheduler(Blocks(), **wrong)
    words = ["quiet is 0", "every is 'x'", '"nonfinite"?', '"fp32"?', 'did you mean "*.wo"?', 'did you mean "head"?']
    assert [word for word in words if word not in str(refused.value)] == []
    with pytest.raises(UsageError, match=r'did you mean "blocks\.0"'):
        PrecisionScheduler(Blocks(), "bf16", triggers=Schedule(steps=[(0, 1)], groups=["blok.0"]))


def test_formats_and_numbers_are_taken_as_users_write_them():
    with PrecisionScheduler(Blocks(), "fp16", safer=torch.bfloat16, quiet=np.int64(3), triggers="nonfinite") as one:
        assert one._setup.safer == "bf16"
        assert type(one.state_dict()["policy"]["quiet"]) is int


def test_names_that_a_terminal_would_obey_are_shown_inert(caplog):
    model = torch.nn.Sequential()
    model.add_module("red\x1b[31m", Blocks())
    model.add_module("\x1b]0;title\x07", torch.nn.Linear(1, 1))
    with caplog.at_level("INFO", logger="ampwise"), PrecisionScheduler(model, "bf16", triggers="nonfinite") as one:
        one.step(math.nan)
    assert len(caplog.messages) == len(one.groups)
    with pytest.raises(UsageError) as refused:
        PrecisionScheduler(model, "bf16", groups=["*red*", "*red*.inp", "nothing\x1b[2J"])
    assert not any("\x1b" in text for text in (*caplog.messages, str(refused.value)))


def test_a_model_with_a_plan_is_refused_and_keeps_it():
    model, x = Blocks(), torch.randn(2, 4)
    undo = apply_plan(model, "bf16")
    low = model(x)
    with pytest.raises(CannotRunError, match=r"a plan is in effect on this model already \(at \"the model itself\"\)"):
        PrecisionScheduler(model, "fp16")
    assert torch.equal(model(x), low)
    undo()
    with PrecisionScheduler(model, "bf16"):
        with pytest.raises(CannotRunError, match="or the other scheduler's close"):
            PrecisionScheduler(model, "fp16")
        with pytest.raises(CannotRunError, match="a plan is in effect"):
            apply_plan(model, "fp16")


def test_a_loss_beyond_fp32_is_taken_for_infinite():
    with PrecisionScheduler(Blocks(), "bf16", triggers=["loss-spike"]) as scheduler:
        assert "loss is inf" in scheduler.step(1e300)[0].cause


@pytest.mark.parametrize(
    ("loss", "result", "words"),
    [
        (torch.ones(3), None, r"was given a tensor of shape \(3,\); give the loss, a scalar"),
        ("1.0", None, "was given a str; give the loss"),
        (None, None, "was given None; give the loss"),
        (True, None, "was given a bool; give the loss"),
        (torch.tensor(1j), None, "was given a tensor of shape"),
        (1.0, True, "was given a bool; give what TrainStep returned, or the GradScaler"),
    ],
)
def test_what_is_no_loss_or_no_result(loss, result, words):
    with PrecisionScheduler(Blocks(), "bf16") as scheduler, pytest.raises(UsageError, match=words):
        scheduler.step(loss, result)


def test_a_captured_step_is_as_any_where_nothing_is_captured():
    loop = Loop(capture=True, triggers=[FIXED])
    train = loop.step.capture(lambda x: loop.model(x).square().mean())
    for _ in range(5):
        result = train(torch.randn(8, 4))
        loop.scheduler.step(result.loss, result)
    assert [one.step for one in loop.scheduler.switches] == [2, 4]
    loop.scheduler.close()


def test_a_wrapped_model_and_one_on_which_presets_rules_mean_nothing():
    model = Blocks()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a CPU without GPUs
        wrapped = torch.nn.DataParallel(model)
    with PrecisionScheduler(wrapped, "fp16-safe", triggers=["nonfinite"]) as scheduler:
        assert tuple(scheduler.groups) == GROUPS
        wrapped(torch.randn(2, 4))


def test_copies_and_pickles_of_the_model_compute_as_it_does():
    model, x = Blocks(), torch.randn(3, 4)
    with PrecisionScheduler(
        model, "bf16", triggers=[Schedule(steps=[(0, 1)], groups=["inp"]), "nonfinite"]
    ) as scheduler:
        expected = model(x)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        assert all(torch.equal(one(x), expected) for one in copies)
        scheduler.step(1.0)
        assert not torch.equal(model(x), expected)
        assert all(torch.equal(one(x), expected) for one in copies)  # they stay where they were


def test_a_backward_pass_that_fails_costs_its_own_numbers_alone():
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, __):
            raise RuntimeError("mine")

    model = Blocks()
    with PrecisionScheduler(model, "bf16", triggers=["grad-norm-spike"]) as scheduler:
        x = Failing.apply(torch.ones(2, 4, requires_grad=True))
        with pytest.raises(RuntimeError, match="mine"):
            model(x).sum().backward()
        scheduler.step(1.0)
        model(torch.ones(2, 4)).sum().backward()
        scheduler.step(1.0)
        assert [len(one) for one in scheduler._state.triggers[0].octaves] == [1] * 4
