"""Between two readings nothing waits for the device. The meta device stands for one: it has no value to read."""

import pytest
import torch

from adapting import Blocks
from ampwise import (
    GradNormSpike,
    LossSpike,
    NonFinite,
    OverflowShare,
    PrecisionScheduler,
    Schedule,
    UnderflowShare,
)
from ampwise.adapt.scheduler import EVERY
from ampwise.runtime.scaling.result import StepResult
from reads import Reads

TRIGGERS = [NonFinite(), LossSpike(), GradNormSpike(), OverflowShare(), UnderflowShare(format="fp8_e4m3")]


def walk(scheduler, model, num_steps):
    for _ in range(num_steps):
        loss = model(torch.ones(2, 4, device="meta")).float().square().mean()
        loss.backward()
        found, scale = torch.zeros((), device="meta"), torch.ones((), device="meta")
        scheduler.step(loss, StepResult(found_inf=found, scale_tensor=scale))


def test_until_the_reading_nothing_is_read_and_then_all_rows_at_once(monkeypatch):
    model = Blocks().to("meta")
    with PrecisionScheduler(model, "bf16", triggers=TRIGGERS) as scheduler, Reads() as reads:
        walk(scheduler, model, EVERY - 1)
        assert reads.num == 0
        with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
            walk(scheduler, model, 1)
        read = []
        width = scheduler._telemetry._rows.shape[1]
        monkeypatch.setattr(
            torch.Tensor, "tolist", lambda one: read.append(tuple(one.shape)) or [[1.0] * width] * EVERY
        )
        scheduler._telemetry.num_rows = 0
        walk(scheduler, model, 2 * EVERY)
        assert read == [(EVERY, width)] * 2


def test_a_schedule_is_kept_to_the_step_without_a_reading():
    model = Blocks().to("meta")
    schedule = Schedule(steps=[(3, 5)])
    with PrecisionScheduler(model, "bf16", triggers=[schedule, *TRIGGERS]) as scheduler:
        walk(scheduler, model, EVERY - 1)
        assert {one.step for one in scheduler.switches} == {3, 5}


def test_a_captured_step_on_a_device_is_refused():
    with PrecisionScheduler(Blocks(), "bf16") as scheduler:
        result = StepResult(loss_tensor=torch.ones((), device="meta"))
        with pytest.raises(RuntimeError, match="a captured step replays the formats it was recorded in"):
            scheduler.step(1.0, result)
