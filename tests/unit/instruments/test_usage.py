"""What a script does with autocast and its scalers, right and wrong."""

import pytest
import torch

from ampwise.instruments.usage import UsageWatch
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher
from ampwise.records.site import Phase
from ampwise.records.usage import Misuse

FP16 = torch.float16


class Loop:
    """A weight, its optimizer and its scaler."""

    def __init__(self, **options):
        self.weight = torch.nn.Parameter(torch.ones(2, 2))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, **options)

    def loss(self, dtype=FP16):
        with torch.autocast("cpu", dtype=dtype):
            return (self.weight @ self.weight).float().sum()

    def finish(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


@pytest.fixture
def watch():
    bus = EventBus()
    with LoopWatcher(bus), UsageWatch(bus) as watch:
        yield watch


def kinds(watch):
    return [place.kind for place in watch.record().misuses]


def clip(loop):
    torch.nn.utils.clip_grad_norm_(loop.weight, 1.0)


def test_the_recommended_order_is_no_misuse(watch):
    loop = Loop()
    for _ in range(3):
        loop.scaler.scale(loop.loss()).backward()
        loop.scaler.unscale_(loop.optimizer)
        clip(loop)
        loop.finish()
    record = watch.record()
    assert record.misuses == ()
    assert (record.num_steps, record.num_backwards, record.num_scaled, record.has_scaler) == (3, 3, 3, True)
    assert [(made.count, made.num_in_loop) for made in record.scalers] == [(1, 0)]


def test_backward_under_autocast(watch):
    loop = Loop(enabled=False)
    with torch.autocast("cpu", dtype=FP16):
        (loop.weight @ loop.weight).float().sum().backward()
    loop.loss().backward()
    (place,) = watch.record().places(Misuse.BACKWARD_UNDER_AUTOCAST)
    assert (place.count, place.site.phase, place.site.file) == (
        1,
        Phase.BACKWARD,
        "tests/unit/instruments/test_usage.py",
    )
    assert place.site.line is not None


def test_a_step_under_autocast(watch):
    loop = Loop(enabled=False)
    loop.loss().backward()
    with torch.autocast("cpu", dtype=FP16):
        loop.optimizer.step()
    (place,) = watch.record().misuses
    assert (place.kind, place.what, place.site.phase) == (Misuse.STEP_UNDER_AUTOCAST, "SGD", Phase.OPTIMIZER)


def test_clipping_before_unscaling_is_told_once_the_scaler_steps(watch):
    loop = Loop()
    for _ in range(2):
        loop.scaler.scale(loop.loss()).backward()
        clip(loop)
        loop.finish()
    (place,) = watch.record().misuses
    assert (place.kind, place.count, place.what, place.scale) == (Misuse.CLIPPED_SCALED, 2, "clip_grad_norm_", 64.0)


def test_clipping_what_another_optimizer_owns_is_none(watch):
    loop, other = Loop(), Loop(enabled=False)
    loop.scaler.scale(loop.loss()).backward()
    other.loss().backward()
    clip(other)
    other.optimizer.step()
    loop.finish()
    assert kinds(watch) == []


def test_a_step_past_the_scaler(watch):
    loop = Loop()
    loop.scaler.scale(loop.loss()).backward()
    loop.optimizer.step()
    assert kinds(watch) == [Misuse.STEPPED_SCALED]


def test_a_step_by_hand_after_unscaling_is_none(watch):
    loop = Loop()
    loop.scaler.scale(loop.loss()).backward()
    loop.scaler.unscale_(loop.optimizer)
    loop.optimizer.step()
    assert kinds(watch) == []


def test_a_scaler_with_bf16(watch):
    loop = Loop()
    loop.scaler.scale(loop.loss(torch.bfloat16)).backward()
    loop.finish()
    assert kinds(watch) == [Misuse.SCALED_BF16]


def test_a_disabled_scaler_scales_nothing(watch):
    loop = Loop(enabled=False)
    loop.scaler.scale(loop.loss(torch.bfloat16)).backward()
    clip(loop)
    loop.finish()
    record = watch.record()
    assert (record.misuses, record.scalers, record.has_scaler) == ((), (), False)


def test_scalers_made_in_the_loop_are_counted(watch):
    loop = Loop()
    for _ in range(3):
        loop.scaler = torch.amp.GradScaler("cpu")
        loop.scaler.scale(loop.loss()).backward()
        loop.finish()
    assert sorted((made.count, made.num_in_loop) for made in watch.record().scalers) == [(1, 0), (3, 2)]


def test_what_is_saved_of_the_state(watch, tmp_path):
    loop = Loop()
    file = tmp_path / "state.pt"
    states = [
        {"model": loop.weight},
        {"optimizer": loop.optimizer.state_dict()},
        {"all": [loop.optimizer.state_dict(), loop.scaler.state_dict()]},
    ]
    for state in states:
        torch.save(state, file)
    assert sorted((save.count, save.has_scaler) for save in watch.record().saves) == [(1, False), (1, True)]


def test_parameters_given_as_an_iterator_are_clipped(watch):
    loop = Loop(enabled=False)
    loop.loss().backward()
    torch.nn.utils.clip_grad_norm_(parameters=iter([loop.weight]), max_norm=0.5)
    assert loop.weight.grad.norm() == pytest.approx(0.5)
