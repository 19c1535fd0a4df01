import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampwise import DynamicLossScale, GradScaler, TrainStep
from ampwise.runtime.hardware import host
from ampwise.runtime.scaling.late_news import LateNews
from ampwise.runtime.scaling.overflow import HopelessOverflowError, LossScaleWarning


class Letter:
    """Arrives after so many questions."""

    def __init__(self, number, delay):
        self.number, self.delay = int(number), delay

    def read(self):
        self.delay -= 1
        return self.number if self.delay < 0 else None


def told(skips, *, delay=2, interval=4):
    news = LateNews(post=lambda number: Letter(number, delay), interval=interval)
    return [news.take(torch.tensor(float(skipped))) for skipped in skips]


def test_news_comes_late_and_once():
    assert told([1] * 12) == [None, None, None, None, None, None, 4, None, None, None, 8, None]


def test_a_step_that_was_taken_begins_the_count_anew():
    assert [one for one in told([1, 1, 0, 1] * 3, delay=0) if one is not None] == [1, 1]


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 5), st.integers(1, 6))
def test_what_is_told_was_true_before(skips, delay, interval):
    in_a_row, count = [], 0
    for skipped in skips:
        count = count + 1 if skipped else 0
        in_a_row.append(count)
    for step, known in enumerate(told(skips, delay=delay, interval=interval)):
        assert known is None or known in in_a_row[:step]


def test_nothing_is_read_of_the_device():
    meta = LateNews(post=lambda _: Letter(0, 0), interval=1)
    for _ in range(3):
        meta.take(torch.zeros((), device="meta"))  # reading one would raise


@pytest.fixture
def far_device(monkeypatch):
    """Looking at a number takes as long as on a GPU, so nobody does; news arrives at the next step."""
    monkeypatch.setattr(host, "reads_freely", lambda _: False)
    monkeypatch.setattr(LateNews.__init__, "__kwdefaults__", {"post": lambda number: Letter(number, 0), "interval": 4})


@pytest.fixture
def training():
    """A model, its fused optimizer, and the gradients' way to infinity."""
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, fused=True)


def bad_loss(model):
    return (model(torch.ones(1, 2)).float() * torch.finfo(torch.float32).max * 2).sum()


def train(step, model, *, num_steps):
    for _ in range(num_steps):
        with step.autocast():
            loss = bad_loss(model)
        step(loss)


def train_with(scaler, model, optimizer, *, num_steps):
    for _ in range(num_steps):
        scaler.scale(bad_loss(model)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def test_a_train_step_that_is_never_waited_for_still_gives_up(far_device, training):
    model, optimizer = training
    step = TrainStep(optimizer, modules=[model], precision="fp16", loss_scale=DynamicLossScale(min_scale=2.0**-100))
    with pytest.raises(HopelessOverflowError, match=r"steps in a row were skipped, and maybe more\. .*weight"):
        train(step, model, num_steps=80)


def test_the_drop_in_warns_once(far_device, training):
    scaler = GradScaler("cpu", min_scale=2.0**-100)
    with pytest.warns(LossScaleWarning, match="steps in a row were skipped") as warned:
        train_with(scaler, *training, num_steps=90)
    assert len(warned) == 1


@pytest.mark.gpu
def test_a_gpus_count_arrives():
    news = LateNews(interval=1)
    known = []
    for _ in range(50):
        known.append(news.take(torch.ones((), device="cuda")))
        torch.cuda.synchronize()
    assert max(one for one in known if one is not None) > 40
