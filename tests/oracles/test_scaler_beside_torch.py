"""``GradScaler`` walks beside torch's: equal scales and equal parameters, bit for bit."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from ampwise import GradScaler

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
}
GRADIENTS = st.sampled_from(["finite", "inf", "nan", "tiny", "huge"])
VALUES = {"finite": 1.3, "inf": float("inf"), "nan": float("nan"), "tiny": 1e-42, "huge": 3e37}
STEPS = st.lists(st.tuples(GRADIENTS, GRADIENTS, st.booleans()), min_size=1, max_size=25)


class Walker:
    """Two optimizers of one kind under one scaler, fed gradients of chosen kinds."""

    def __init__(self, scaler_type, kind, **options):
        self.scaler = scaler_type("cpu", **options)
        self.params = [torch.nn.Parameter(torch.linspace(-1, 1, 5)) for _ in range(2)]
        self.optimizers = [OPTIMIZERS[kind]([param]) for param in self.params]

    def step(self, first, second, *, unscale):
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = sum((param * VALUES[kind]).sum() for param, kind in zip(self.params, (first, second), strict=True))
        self.scaler.scale(loss).backward()
        for optimizer in self.optimizers:
            if unscale:
                self.scaler.unscale_(optimizer)
            self.scaler.step(optimizer)
        self.scaler.update()

    def bits(self):
        return [param.detach().view(torch.int32).tolist() for param in self.params]


@pytest.mark.filterwarnings("ignore::ampwise.runtime.scaling.overflow.LossScaleWarning")
@pytest.mark.parametrize("kind", list(OPTIMIZERS))
@settings(max_examples=25)
@given(
    steps=STEPS,
    init_scale=st.sampled_from([1.0, 7.0, 65536.0, 2.0**40]),
    interval=st.integers(1, 4),
    growth=st.sampled_from([2.0, 1.7]),
    backoff=st.sampled_from([0.5, 0.3]),
)
def test_scales_and_parameters_are_torchs(kind, steps, init_scale, interval, growth, backoff):
    options = {
        "init_scale": init_scale,
        "growth_interval": interval,
        "growth_factor": growth,
        "backoff_factor": backoff,
    }
    ours, theirs = Walker(GradScaler, kind, **options), Walker(torch.amp.GradScaler, kind, **options)
    for first, second, unscale in steps:
        ours.step(first, second, unscale=unscale)
        theirs.step(first, second, unscale=unscale)
        assert ours.scaler.state_dict() == theirs.scaler.state_dict()
        if theirs.scaler.get_scale() >= 1.0:
            assert ours.bits() == theirs.bits()
        elif ours.bits() != theirs.bits():
            return  # below 1 torch lets finite scaled gradients become infinite on the way to the optimizer


def test_checkpoints_go_both_ways():
    ours, theirs = Walker(GradScaler, "adamw", growth_interval=3), Walker(torch.amp.GradScaler, "adamw")
    for kind in ("inf", "finite", "finite"):
        ours.step(kind, kind, unscale=False)
    theirs.scaler.load_state_dict(ours.scaler.state_dict())
    assert theirs.scaler.state_dict() == ours.scaler.state_dict()
    theirs.step("finite", "finite", unscale=False)
    fresh = GradScaler("cpu")
    fresh.load_state_dict(theirs.scaler.state_dict())
    assert fresh.state_dict() == theirs.scaler.state_dict()
    assert fresh.get_scale() == 65536.0
