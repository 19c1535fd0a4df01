"""``TrainStep`` beside the loop written by hand with torch.amp: the same parameters, bit for bit."""

import contextlib

import pytest
import torch

from ampwise import TrainStep
from ampwise.runtime.scaling.loss_scale import DynamicLossScale

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
OPTIMIZERS = {
    "sgd": lambda params, **fused: torch.optim.SGD(params, lr=0.05, momentum=0.9, **fused),
    "adam": lambda params, **fused: torch.optim.Adam(params, lr=0.01, amsgrad=True, weight_decay=0.1, **fused),
    "adamw": lambda params, **fused: torch.optim.AdamW(params, lr=0.01, **fused),
    "foreach": lambda params, **_: torch.optim.AdamW(params, lr=0.01, foreach=True),
    "rmsprop": lambda params, **_: torch.optim.RMSprop(params, lr=0.01),
}


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def batches(count):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(6, 4, generator=generator), torch.randn(6, 2, generator=generator) * (1e6 if index == 4 else 1))
        for index in range(count)
    ]


def by_hand(precision, optimizer_name, data, *, clip, accumulation):
    """The loop of torch's documentation, with the fused kernel where there is one and nothing else was chosen."""
    net = model()
    optimizer = OPTIMIZERS[optimizer_name](net.parameters(), fused=True)
    dtype = DTYPES[precision]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4, enabled=precision == "fp16")
    scales = []
    for index, (x, y) in enumerate(data):
        cast = torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext()
        with cast:
            loss = torch.nn.functional.mse_loss(net(x), y) / accumulation
        scaler.scale(loss).backward()
        if (index + 1) % accumulation == 0:
            if clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
    return net, scales


def by_step(precision, optimizer_name, data, *, clip, accumulation):
    net = model()
    step = TrainStep(
        OPTIMIZERS[optimizer_name](net.parameters()),
        precision=precision,
        clip_grad_norm=clip,
        accumulation_steps=accumulation,
        loss_scale=DynamicLossScale(scale=1024.0, growth_interval=4) if precision == "fp16" else None,
    )
    scales, skipped = [], 0
    for x, y in data:
        with step.autocast():
            loss = torch.nn.functional.mse_loss(net(x), y)
        result = step(loss)
        if result.is_update:
            scales.append(step.scaler.get_scale())
            skipped += result.skipped
    return net, scales, skipped


@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("optimizer_name", list(OPTIMIZERS))
@pytest.mark.parametrize("precision", list(DTYPES))
def test_the_parameters_are_those_of_the_loop_by_hand(precision, optimizer_name, clip, accumulation):
    data = batches(18)
    theirs, their_scales = by_hand(precision, optimizer_name, data, clip=clip, accumulation=accumulation)
    ours, our_scales, skipped = by_step(precision, optimizer_name, data, clip=clip, accumulation=accumulation)
    assert our_scales == their_scales
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert (skipped > 0) == (precision == "fp16")
    moved = torch.equal(next(ours.parameters()), next(model().parameters()))
    assert not moved
