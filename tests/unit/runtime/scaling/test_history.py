"""What ``scaler.history()`` remembers, and how it is drawn."""

import math
import pickle

import pytest
import torch

from ampwise import GradScaler, TrainStep
from ampwise._base.errors import UsageError
from ampwise.runtime.hardware import host
from ampwise.runtime.scaling.history import NUM_KEPT, History, HistoryRing, HistoryRow
from ampwise.runtime.scaling.loss_scale import DynamicLossScale


def steps(scaler, factors, *, norms=(), num_optimizers=1):
    params = [torch.nn.Parameter(torch.ones(1)) for _ in range(num_optimizers)]
    optimizers = [torch.optim.SGD([param], lr=0.1) for param in params]
    for index, factor in enumerate(factors):
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(params[0].sum() + (params[-1] * factor).sum()).backward()
        if index in norms:
            scaler.unscale_(optimizers[0])
            scaler.note_grad_norm(torch.nn.utils.clip_grad_norm_(params, 1.0))
        for optimizer in optimizers:
            scaler.step(optimizer)
            scaler.update()
    return scaler


def test_it_holds_each_steps_scale_and_whether_it_was_skipped():
    scaler = steps(GradScaler("cpu", init_scale=8.0, growth_interval=2), [1.0, math.inf, 1.0, 1.0, 1.0])
    history = scaler.history()
    assert [row.scale for row in history.rows] == [8.0, 8.0, 4.0, 4.0, 8.0]
    assert [row.skipped for row in history.rows] == [False, True, False, False, False]
    assert [row.step for row in history.rows] == [0, 1, 2, 3, 4]
    assert {row.grad_norm for row in history.rows} == {None}
    assert history.num_skipped == 1


def test_a_norm_that_is_noted_is_that_steps():
    scaler = steps(GradScaler("cpu", init_scale=8.0), [2.0, 1.0], norms={0})
    assert [row.grad_norm for row in scaler.history().rows] == [3.0, None]


@pytest.mark.parametrize("reads_freely", [True, False])
def test_a_device_and_the_host_remember_the_same(monkeypatch, reads_freely):
    monkeypatch.setattr(host, "reads_freely", lambda _: reads_freely)
    ring = HistoryRing()
    ring.add_norm(torch.tensor(3.0))
    ring.add(scale=torch.tensor(8.0), found_inf=torch.tensor(0.0), grad_norm=None, shares=(torch.tensor(0.5),) * 2)
    ring.amend(torch.tensor(1.0))
    assert ring.read().rows == (
        HistoryRow(step=0, scale=1.0, skipped=False, grad_norm=3.0),
        HistoryRow(step=1, scale=8.0, skipped=True, zero_share=0.5, subnormal_share=0.5),
    )


def test_update_after_each_of_two_optimizers_is_one_row():
    rows = steps(GradScaler("cpu", init_scale=8.0), [1.0, math.inf, 1.0], num_optimizers=2).history().rows
    assert [(row.scale, row.skipped) for row in rows] == [(8.0, False), (8.0, True), (4.0, False)]


@pytest.mark.parametrize("reads_freely", [True, False])
def test_the_oldest_steps_are_forgotten(monkeypatch, reads_freely):
    monkeypatch.setattr(host, "reads_freely", lambda _: reads_freely)
    ring = HistoryRing()
    for number in range(NUM_KEPT + 5):
        ring.add(scale=torch.tensor(float(number + 1)), found_inf=torch.tensor(0.0), grad_norm=None)
    rows = ring.read().rows
    assert [row.step for row in rows] == list(range(5, NUM_KEPT + 5))
    assert all(row.scale == row.step + 1 for row in rows)


def test_nothing_is_waited_for_until_it_is_read():
    ring = HistoryRing()
    value = torch.ones((), device="meta")
    ring.add(scale=value, found_inf=value, grad_norm=value)
    ring.amend(value)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        ring.read()


@pytest.mark.parametrize(("precision", "scale"), [("bf16", 1.0), ("fp16", 4.0)])
def test_a_train_step_notes_its_norm_in_every_precision(precision, scale):
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    step = TrainStep(
        torch.optim.SGD([weight], lr=0.0),
        precision=precision,
        clip_grad_norm=1.0,
        loss_scale=DynamicLossScale(scale=4.0) if precision == "fp16" else None,
    )
    for _ in range(2):
        with step.autocast():
            loss = (3 * weight).sum()
        step(loss)
    assert [(row.scale, row.grad_norm) for row in step.scaler.history().rows] == [(scale, 3.0)] * 2


def test_it_is_no_part_of_what_is_saved():
    scaler = steps(GradScaler("cpu"), [1.0])
    assert set(scaler.state_dict()) == set(torch.amp.GradScaler("cpu").state_dict())
    assert pickle.loads(pickle.dumps(scaler)).history() == History()


# ------------------------------------------------------------------ the plot


def rows(*scales, skipped=()):
    return History(
        rows=tuple(HistoryRow(step=index, scale=one, skipped=index in skipped) for index, one in enumerate(scales))
    )


def test_the_plot_shows_the_scale_on_a_log_axis_and_the_skips():
    plot = rows(16.0, 16.0, 8.0, 4.0, skipped={1}).plot(height=3)
    assert plot.splitlines() == [
        "      2^4 .x",
        "      2^3   .",
        "      2^2    .",
        "          steps 0 to 3, 1 skipped (x)",
    ]


def test_where_there_is_room_every_power_of_two_is_a_line():
    plot = rows(16.0, 8.0, 4.0).plot(height=8)
    assert [line.split()[0] for line in plot.splitlines()[:3]] == ["2^4", "2^3", "2^2"]


def test_a_flat_scale_is_one_line_and_no_steps_say_so():
    assert rows(4.0, 4.0).plot().splitlines()[0] == "      2^2 .."
    assert GradScaler("cpu").plot() == "no steps yet"


def test_a_long_history_fits_and_hides_no_skip():
    plot = rows(*[2.0] * 500, skipped={250}).plot(width=20)
    assert plot.splitlines()[0].count("x") == 1
    assert len(plot.splitlines()[0].removeprefix("      2^1 ")) == 20


def test_the_way_down_in_the_first_steps_of_a_long_history_is_seen():
    plot = rows(64.0, 32.0, 16.0, *[8.0] * 100, skipped={0, 1, 2}).plot(width=10, height=8)
    assert plot.splitlines()[:4] == ["      2^6 x", "      2^5 x", "      2^4 x", "      2^3 .........."]


def test_a_scale_that_is_no_power_of_two_stands_at_the_nearest():
    assert rows(1000.0, 3000.0).plot().splitlines()[:3] == ["     2^12  .", "     2^11", "     2^10 ."]


@pytest.mark.parametrize("size", [{"width": 0}, {"height": 0}])
def test_no_room_is_refused(size):
    with pytest.raises(UsageError, match="at least 1"):
        rows(1.0).plot(**size)
