"""Captured steps on a CUDA device: replay is the loop by hand, bit for bit."""

import pytest
import torch

from ampwise import TrainStep
from ampwise.runtime.scaling.loss_scale import DynamicLossScale

pytestmark = pytest.mark.gpu
INF = float("inf")


class Loop:
    def __init__(self, *, window, clip, precision, fused=None):
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1)
        ).cuda()
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01, fused=fused)
        self.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        self.step = TrainStep(
            optimizer,
            modules=self.net,
            schedulers=self.scheduler,
            precision=precision,
            clip_grad_norm=clip,
            accumulation_steps=window,
            loss_scale=DynamicLossScale(scale=1024.0, growth_interval=4) if precision == "fp16" else None,
            capture=True,
        )
        torch.cuda.manual_seed(1)

    def loss(self, x, y):
        return torch.nn.functional.mse_loss(self.net(x), y)

    def everything(self):
        state = [one for state in self.step.optimizers[0].state.values() for one in state.values()]
        return [*self.net.state_dict().values(), *state, torch.cuda.get_rng_state()]


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_replays_are_the_loop_by_hand_and_an_overflow_skips_the_update(precision, window, clip):
    generator = torch.Generator().manual_seed(2)
    data = [(torch.randn(32, 64, generator=generator), torch.randn(32, 1, generator=generator)) for _ in range(30)]
    if precision == "fp16":
        data[5 * window + 1] = (data[0][0] * INF, data[0][1])
    by_hand, captured = (Loop(window=window, clip=clip, precision=precision) for _ in range(2))
    losses = []
    torch.cuda.manual_seed(1)
    for x, y in data:
        with by_hand.step.autocast():
            loss = by_hand.loss(x.cuda(), y.cuda())
        losses.append((by_hand.step(loss), loss.detach()))
    torch.cuda.manual_seed(1)
    train = captured.step.capture(captured.loss)
    skipped = 0
    for (x, y), (expected, loss) in zip(data, losses, strict=True):
        result = train(x, y)
        assert torch.equal(result.loss_tensor.nan_to_num(), loss.float().nan_to_num())
        assert (result.stepped, result.scale) == (expected.stepped, expected.scale)
        skipped += result.skipped
    assert train.is_captured
    assert skipped == (precision == "fp16")
    for mine, other in zip(captured.everything(), by_hand.everything(), strict=True):
        assert torch.equal(mine, other)
    assert captured.step.scaler.history() == by_hand.step.scaler.history()


def test_a_function_that_waits_is_refused_with_advice():
    loop = Loop(window=1, clip=None, precision="bf16")
    train = loop.step.capture(lambda x: loop.net(x).mean() * float(x.max()))
    x = torch.ones(32, 64).cuda()
    for _ in range(3):
        train(x)
    with pytest.raises(RuntimeError) as error:
        train(x)
    assert "nothing may wait for the device" in error.value.__notes__[0]
