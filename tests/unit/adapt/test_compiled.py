"""Compiled: one more graph for each combination of groups that go up, the same numbers, the same telemetry."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from adapting import Blocks
from ampwise import (
    GradNormSpike,
    NonFinite,
    OverflowShare,
    PrecisionScheduler,
    Schedule,
    TrainStep,
    UnderflowShare,
    emulated,
    load_checkpoint,
    save_checkpoint,
)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(model, call, schedules, num_steps, *, measures_products=False, **options):
    """Losses, gradients and what was measured of a few steps."""
    torch.manual_seed(3)
    triggers = [*schedules, NonFinite(), GradNormSpike(), OverflowShare()]
    triggers += [UnderflowShare(format="fp8_e4m3")] if measures_products else []
    with PrecisionScheduler(model, "bf16", triggers=triggers, **options) as scheduler:
        seen = []
        for _ in range(num_steps):
            loss = call(torch.randn(8, 4)).square().mean()
            loss.backward()
            scheduler.step(loss)
            rows = scheduler._telemetry._rows[0].tolist()
            seen.append([rows, *(one.grad.tolist() for one in model.parameters())])
            model.zero_grad()
        return seen, [(one.step, one.group) for one in scheduler.switches]


def schedules(*groups):
    """Each group up for a step, in turn, then all."""
    each = [
        Schedule(steps=[(2 * place + 1, 2 * place + 2), (2 * place + 13, 2 * place + 14)], groups=[group])
        for place, group in enumerate(groups)
    ]
    return [*each, Schedule(steps=[(10, 11), (24, 25)])]


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_a_compiled_model_is_compiled_once_for_each_combination_and_computes_the_same(backend):
    counter = CompileCounterWithBackend(backend)
    model = Blocks()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    moves = schedules("blocks.0", "blocks.1")
    options = {"max_combinations": 3, "measures_products": backend == "aot_eager"}
    seen, switches = train(model, compiled, moves, 26, **options)
    plain, same = train(other := Blocks(), other, moves, 26, **options)
    assert counter.frame_count == 3  # of four combinations that were wanted
    assert switches == same
    assert seen == plain


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo's own
def test_compiled_blocks_are_two_graphs_each_whatever_moves():
    counter = CompileCounterWithBackend("eager")
    model = Blocks()
    for place in (0, 1):
        model.blocks[place] = torch.compile(model.blocks[place], backend=counter, fullgraph=True)
    # one graph for both blocks' code below, and one for both above, or two of each
    seen, _ = train(model, model, schedules("blocks.0", "blocks.1"), 26)
    plain, _ = train(other := Blocks(), other, schedules("blocks.0", "blocks.1"), 26)
    assert counter.frame_count <= 4
    assert [one[0][0] for one in seen] == [one[0][0] for one in plain]


@pytest.mark.slow
@pytest.mark.parametrize("is_in_place", [False, True])
def test_a_compiled_run_that_went_on_from_a_checkpoint_is_the_one_that_never_stopped(tmp_path, is_in_place):
    def run(steps, *, loads):
        torch._dynamo.reset()
        model = called = Blocks()
        with PrecisionScheduler(model, "fp16", triggers=["nonfinite"], quiet=3, cool_down=0) as scheduler:
            if is_in_place:
                model.compile(backend="aot_eager")
            else:
                called = torch.compile(model, backend="aot_eager")
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            step = TrainStep(optimizer, modules=[model], precision="fp32", loss_scale=scheduler.loss_scale)
            torch.manual_seed(1)
            if loads:
                found = load_checkpoint(tmp_path / "it.pt", step=step, model=model)
                scheduler.load_state_dict(found["scheduler"])
            losses = []
            with emulated("fp16"):
                for index in steps:
                    x = torch.randn(8, 4) * (3e5 if index in (3, 8) else 1.0)
                    with step.autocast():
                        loss = torch.nn.functional.smooth_l1_loss(called(x), x.sum(1, keepdim=True))
                    scheduler.step(loss, step(loss))
                    losses.append(repr(loss.item()))
            extra = {"scheduler": scheduler.state_dict()}
            save_checkpoint(tmp_path / "it.pt", step=step, model=model, extra=extra)
            moves = [(one.step, one.group, one.after) for one in scheduler.switches]
        return losses, moves, [one.tolist() for one in model.parameters()]

    whole = run(range(12), loads=False)
    assert len(whole[1]) == 3
    first, second = run(range(6), loads=False), run(range(6, 12), loads=True)
    assert first[0] + second[0] == whole[0]
    assert first[1] + second[1] == whole[1]
    assert second[2] == whole[2]
