"""A group whose products lose what they take in fp8 moves, alone, for as long as that lasts."""

import pytest
import torch
from torch import nn

from adapting import GROUPS, Blocks
from ampwise import PrecisionScheduler, RecordError, UnderflowShare, emulated


def train(model, scheduler, sizes):
    """One row of each batch is as large as that."""
    torch.manual_seed(2)
    for size in sizes:
        x = torch.randn(16, 4)
        x[0] *= size
        loss = model(x).square().mean()
        loss.backward()
        scheduler.step(loss)
        model.zero_grad()


@pytest.mark.parametrize(("name", "size"), [("fp8_e4m3", 1e6), ("fp8_e5m2", 1e11)])
def test_an_outlier_moves_the_group_that_takes_it_and_no_other(name, size):
    model = Blocks()
    with emulated(name), PrecisionScheduler(model, "bf16", quiet=4, cool_down=0) as scheduler:
        train(model, scheduler, [1.0] * 3 + [size] * 6 + [1.0] * 5)
        assert [(one.step, one.group, one.after) for one in scheduler.switches] == [
            (4, "inp", "fp32"),
            (13, "inp", "bf16"),
        ]
        assert scheduler.switches[0].cause.endswith("% of what a product takes is too small for fp8 beside the largest")


def test_outliers_from_the_first_step_on_are_seen_at_once():
    model = Blocks()
    with emulated("fp8_e4m3"), PrecisionScheduler(model, "bf16") as scheduler:
        train(model, scheduler, [1e6] * 30)
        assert [(one.step, one.group) for one in scheduler.switches] == [(1, "inp")]


def test_without_fp8_nothing_is_measured_and_with_it_all_products_are():
    def measured(**options):
        model = Blocks()
        with PrecisionScheduler(model, "bf16", **options) as scheduler:
            train(model, scheduler, [1e6] * 2)
            names = [name for name, one in model.named_modules() if getattr(one.forward, "intake", None) is not None]
            moved = [one.group for one in scheduler.switches]
        assert not any("forward" in vars(one) for one in model.modules())
        return names, moved

    products = ["inp", *(f"blocks.{place}.{name}" for place in (0, 1) for name in ("wi", "wo")), "head"]
    assert measured() == ([], [])
    with emulated("fp16"):
        assert measured() == ([], [])
    assert measured(triggers=[UnderflowShare(format="fp8_e4m3")]) == (products, ["inp"])
    with emulated("fp8_e5m2"):
        assert measured() == (products, [])
        assert measured(triggers=["nonfinite"]) == ([], [])


def test_an_attention_s_inputs_are_its_products_and_a_mask_is_none_of_them():
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.attention, self.head = nn.Linear(4, 8), nn.MultiheadAttention(8, 2), nn.Linear(8, 1)

        def forward(self, x, size=1.0):
            hidden = self.inp(x)
            hidden = torch.cat([hidden[:1] * size, hidden[1:]])
            mask = torch.full((16, 16), float("-inf")).triu(1)
            return self.head(torch.tanh(self.attention(hidden, hidden, hidden, attn_mask=mask)[0]))

    model = Attending()
    groups = ["inp", "attention", "head"]
    with PrecisionScheduler(model, "bf16", groups=groups, triggers=[UnderflowShare(format="fp8_e4m3")]) as scheduler:
        scheduler.step(model(torch.randn(16, 4)).sum())
        assert scheduler.switches == ()
        scheduler.step(model(torch.randn(16, 4), size=1e7).sum())
        assert [one.group for one in scheduler.switches] == ["attention"]


def test_a_state_of_an_emulation_goes_on_in_one():
    with emulated("fp8_e4m3"):
        model = Blocks()
        with PrecisionScheduler(model, "bf16", every=3) as scheduler:
            train(model, scheduler, [1e6] * 2)
            state = scheduler.state_dict()
        with PrecisionScheduler(Blocks(), "bf16", every=3) as scheduler:
            scheduler.load_state_dict(state)
            train(model, scheduler, [1.0])
            assert [(one.step, one.group) for one in scheduler.switches] == [(3, "inp")]
            assert dict(scheduler.groups) == {one: "fp32" if one == "inp" else "bf16" for one in GROUPS}
    with (
        PrecisionScheduler(Blocks(), "bf16", every=3) as scheduler,
        pytest.raises(RecordError, match="the same every=, and emulate the same format"),
    ):
        scheduler.load_state_dict(state)


@pytest.mark.parametrize(("others", "is_told"), [([], True), (["nonfinite"], False)])
def test_alone_and_without_fp8_it_says_that_nothing_will_move(others, is_told, caplog):
    with PrecisionScheduler(Blocks(), "bf16", triggers=["underflow-share", *others]):
        assert ("nothing will move" in caplog.text) is is_told
