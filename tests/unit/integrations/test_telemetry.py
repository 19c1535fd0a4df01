"""A foreign loop's telemetry: figures without waits, a recording at the end, and nothing left attached."""

import pytest
import torch
from torch import nn

from ampwise._base.errors import UsageError
from ampwise.integrations.telemetry import Telemetry
from ampwise.interpose.seam import intercepted
from ampwise.records.files import load_recording
from ampwise.records.run import RunEnd

SCALE = 2.0**10


def make(make_optimizer=torch.optim.SGD, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    return model, make_optimizer(model.parameters(), lr=0.01, **options)


def train(model, optimizer, scaler, steps, *, bad=()):
    for step in range(steps):
        x = torch.ones(2, 4) * (float("inf") if step in bad else 1.0)
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def scaler_of(*, enabled=True):
    return torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=enabled)


@pytest.fixture
def said():
    return []


def telemetry_of(said, **options):
    return Telemetry(**{"instruments": ("usage",), "every": 1, "show": said.append, **options})


@pytest.mark.parametrize("options", [{}, {"fused": True}])
def test_the_gradients_norm_is_without_the_scale(said, options):
    model, optimizer = make(**options)
    telemetry = telemetry_of(said)
    telemetry.start(model, optimizer)
    train(model, optimizer, scaler_of(), 1)
    figures = telemetry.scalars()
    telemetry.finish()
    twin, _ = make()
    twin(torch.ones(2, 4)).square().mean().backward()
    norm = torch.nn.utils.get_total_norm([one.grad for one in twin.parameters()])
    assert figures["gradient_norm"] == pytest.approx(float(norm))
    assert figures["loss_scale"] == SCALE
    assert figures["skipped_steps"] == 0
    assert 0 <= figures["underflow_share"] < 0.5


def test_skipped_steps_are_counted(said):
    model, optimizer = make()
    telemetry = telemetry_of(said)
    telemetry.start(model, optimizer)
    train(model, optimizer, scaler_of(), 5, bad=(1, 3))
    assert telemetry.scalars()["skipped_steps"] == 2
    assert telemetry.scalars()["loss_scale"] == SCALE / 4
    run = telemetry.finish().runs[0]
    assert [step.skipped for step in run.steps] == [False, True, False, True, False]


@pytest.mark.parametrize(("factor", "share"), [(1.0, 0.0), (1e-5, 0.0), (1e-12, 1.0)])
def test_gradients_too_small_for_fp16_are_told(said, factor, share):
    model, optimizer = make()
    telemetry = telemetry_of(said)
    telemetry.start(model, optimizer)
    scaler = scaler_of()
    scaler.scale(model(torch.ones(2, 4)).sum() * factor).backward()
    scaler.step(optimizer)
    assert telemetry.scalars()["underflow_share"] == share
    telemetry.close()


def test_without_a_loss_scale_there_is_only_the_norm(said):
    model, optimizer = make()
    telemetry = telemetry_of(said)
    assert telemetry.scalars() == {}
    telemetry.start(model, optimizer)
    train(model, optimizer, scaler_of(enabled=False), 2)
    assert set(telemetry.scalars()) == {"gradient_norm"}
    telemetry.close()


def test_only_some_steps_are_measured_and_none_waits(said, monkeypatch):
    model, optimizer = make()
    telemetry = telemetry_of(said, instruments=(), every=3)
    telemetry.start(model, optimizer)
    norms = []
    for _ in range(7):
        train(model, optimizer, scaler_of(enabled=False), 1)
        norms.append(telemetry.figures["gradient_norm"])
    assert [one is norms[0] for one in norms] == [True, True, True, False, False, False, False]
    assert norms[3] is norms[5]
    assert all(isinstance(one, torch.Tensor) for one in norms)
    telemetry.close()


def test_the_instruments_leave_after_the_first_steps(said):
    model, optimizer = make()
    telemetry = telemetry_of(said, instruments=("numerics", "memory"), steps=2)
    telemetry.start(model, optimizer)
    train(model, optimizer, scaler_of(), 1)
    during = len(intercepted())
    train(model, optimizer, scaler_of(), 30)
    assert len(intercepted()) < during
    run = telemetry.finish().runs[0]
    assert len(run.steps) == 31
    assert (run.numerics.num_steps, len(run.numerics.steps)) == (2, 1)


def test_the_end_saves_and_tells(said, tmp_path):
    model, optimizer = make()
    telemetry = telemetry_of(said, save=tmp_path / "run.json", instruments=("nonfinite",))
    telemetry.start(model, optimizer)
    assert telemetry.is_running
    train(model, optimizer, scaler_of(), 3)
    recording = telemetry.finish()
    assert load_recording(tmp_path / "run.json") == recording
    (text,) = said
    assert "3 steps seen" in text
    assert "run.json" in text
    assert str(telemetry.diagnosis) in text
    assert not telemetry.is_running
    assert telemetry.finish() is None


def test_a_rank_that_is_not_to_speak_says_and_saves_nothing(said, tmp_path):
    telemetry = telemetry_of(said, save=tmp_path / "run.json")
    telemetry.start(*make())
    assert telemetry.finish(tells=False) is not None
    assert said == []
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize(("error", "end"), [(ValueError("no"), RunEnd.FAILED), (KeyboardInterrupt(), RunEnd.KILLED)])
def test_what_ended_it_is_evidence(said, error, end):
    telemetry = telemetry_of(said)
    telemetry.start(*make())
    run = telemetry.finish(error).runs[0]
    assert (run.end, run.failure.kind) == (end, type(error).__name__)


def test_a_second_training_starts_anew(said):
    model, optimizer = make()
    telemetry = telemetry_of(said)
    telemetry.start(model, optimizer)
    train(model, optimizer, scaler_of(), 2, bad=(0,))
    telemetry.start(model, optimizer)
    assert telemetry.scalars() == {}
    train(model, optimizer, scaler_of(), 1)
    assert len(telemetry.finish().runs[0].steps) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every=0"),
        ({"steps": -1}, "steps=-1"),
        ({"instruments": ["memroy"]}, 'did you mean "memory"'),
        ({"save": "no/such/folder/run.json"}, "there is no such folder"),
    ],
)
def test_mistakes_are_told_before_the_training(options, words):
    with pytest.raises(UsageError, match=words):
        Telemetry(**options)
