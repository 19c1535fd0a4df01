"""On an accelerator nothing waits for the device. The meta device stands for one: it has no value to read."""

from types import SimpleNamespace

import pytest
import torch

from ampwise import GradScaler, TrainStep
from ampwise.runtime.scaling.buffers import BufferGuard
from ampwise.runtime.step.regime import Regime
from reads import Reads

DEVICE = "meta"


class Fused(torch.optim.Optimizer):
    """Speaks the fused optimizers' protocol, which torch's own do not on this device."""

    _step_supports_amp_scaling = True

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                grad = param.grad if self.grad_scale is None else param.grad / self.grad_scale
                param.sub_(torch.where(self.found_inf != 0, 0.0, grad * group["lr"]))


def walk(scaler, optimizer_type, *, clip):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to(DEVICE)
    optimizer = optimizer_type(model.parameters(), lr=0.1)
    guard = BufferGuard([model])
    for _ in range(3):
        guard.save()
        scaler.scale(model(torch.ones(2, 4, device=DEVICE)).pow(2).mean()).backward()
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        guard.restore(scaler.last_step.found_inf)
        optimizer.zero_grad()
    return scaler.last_step


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("options", [{}, {"hysteresis": 2}, {"init_scale": 0.25}, {"loss_scale": "headroom"}])
def test_a_step_with_a_fused_optimizer_reads_nothing(clip, options):
    result = walk(GradScaler(DEVICE, **options), Fused, clip=clip)
    with pytest.raises(RuntimeError, match="meta"):
        _ = result.stepped


def test_a_step_with_another_optimizer_reads_the_finding(monkeypatch):
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        walk(GradScaler(DEVICE), torch.optim.SGD, clip=True)
    reads = []
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: reads.append(tensor.shape) or [0.0, 65536.0])
    walk(GradScaler(DEVICE), torch.optim.SGD, clip=True)
    assert len(reads) == 3


def test_update_after_each_of_two_optimizers_reads_nothing():
    scaler = GradScaler(DEVICE)
    params = [torch.nn.Parameter(torch.ones(2, device=DEVICE)) for _ in range(2)]
    optimizers = [Fused([one], lr=1.0) for one in params]
    for _ in range(2):
        scaler.scale(sum(one.sum() for one in params)).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            scaler.update()


def test_named_losses_read_nothing():
    scaler = GradScaler(DEVICE, loss_scale={"a": "headroom", "b": "rl"})
    weight = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer = Fused([weight], lr=1.0)
    for _ in range(2):
        for name in ("a", "b"):
            scaler.scale(weight.sum(), name).backward()
        scaler.step(optimizer)
        scaler.update()
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        scaler.get_scale("a")


def test_protecting_buffers_and_remembering_steps_reads_nothing():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to(DEVICE)
    optimizer, scaler = Fused(model.parameters(), lr=0.1), GradScaler(DEVICE)
    scaler.protect(model)
    for _ in range(2):
        scaler.scale(model(torch.ones(2, 4, device=DEVICE)).pow(2).mean()).backward()
        scaler.unscale_(optimizer)
        scaler.note_grad_norm(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        scaler.step(optimizer)
        scaler.update()
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        scaler.history()


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_a_train_step_on_an_accelerator_reads_nothing(monkeypatch, clip, accumulation_steps):
    monkeypatch.setattr(
        "ampwise.runtime.step.regime.choose_precision", lambda *_, **__: SimpleNamespace(precision="fp16")
    )
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to(DEVICE)
    step = TrainStep(
        Fused(model.parameters(), lr=0.1), modules=model, clip_grad_norm=clip, accumulation_steps=accumulation_steps
    )
    step._regime = Regime(precision="fp16", device_type="cpu")  # torch has no autocast for this device
    with Reads() as reads:
        for _ in range(4):
            with step.autocast():
                loss = model(torch.ones(2, 4, device=DEVICE)).float().pow(2).mean()
            result = step(loss)
    assert reads.num == 0
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        _ = result.stepped
