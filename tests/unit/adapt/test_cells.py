"""A switch is what a rule behind the plan's others would be, bit for bit, and touches nothing of the model's own."""

from itertools import chain, combinations

import pytest
import torch

from adapting import Block, Blocks
from ampwise import CannotRunError, Plan, Rule, UsageError, apply_plan
from ampwise.adapt.cells import Cells, movable
from ampwise.adapt.groups import groups_of
from ampwise.interpose.own_amp import switch_off_own_amp
from ampwise.runtime.casts.casting import cast_forward_of
from ampwise.runtime.casts.op_rules import Formats

PLANS = {
    "bf16": Plan(default="bf16"),
    "fp32 within": Plan(default="bf16", rules=(Rule(module="*.wo", compute="fp32"),)),
    "operators": Plan(default="fp32", rules=(Rule(op="linear", compute="bf16"), Rule(op="softmax", compute="bf16"))),
    "a region": Plan(default="fp32", rules=(Rule(module="blocks.*", compute="bf16"),)),
    "operators in places": Plan(
        default="bf16",
        rules=(Rule(op="relu", module="blocks.1", compute="fp32"), Rule(module="blocks.1.wi", compute="fp32")),
    ),
}


def subsets(num):
    return chain.from_iterable(combinations(range(num), size) for size in range(num + 1))


def outcome(model, x):
    model.zero_grad()
    out = model(x)
    out.float().square().sum().backward()
    return [out, *(one.grad for one in model.parameters())]


@pytest.mark.filterwarnings("ignore:plan. rules.* never decides")  # where the added rules overrule the plan's own
@pytest.mark.parametrize("name", PLANS)
def test_any_groups_up_are_what_rules_for_them_would_be(name):
    plan, x = PLANS[name], torch.randn(5, 4)
    model = Blocks()
    groups = groups_of(model, None)
    groups = tuple(one for one, moves in zip(groups, movable(model, plan, groups, safer="fp32"), strict=True) if moves)
    assert len(groups) >= 2
    cells = Cells(model, plan, groups, safer="fp32", has_rest=False)
    seen = set()
    for raised in subsets(len(groups)):
        cells.switch(raised)
        tops = [top for place in raised for top in groups[place].tops]
        rules = tuple(Rule(module=top, compute="fp32") for top in tops)
        undo = apply_plan(other := Blocks(), Plan(default=plan.default, rules=(*plan.rules, *rules)))
        mine, theirs = outcome(model, x), outcome(other, x)
        undo()
        assert all(torch.equal(one, two) for one, two in zip(mine, theirs, strict=True)), tops
        seen.add(mine[0].sum().item())
    assert len(seen) > 1
    cells.close()


@pytest.mark.parametrize("name", PLANS)
def test_with_all_up_the_whole_model_is_in_fp32(name):
    x, model = torch.randn(5, 4), Blocks()
    plain = outcome(Blocks(), x)
    groups = groups_of(model, None)
    groups = tuple(
        one for one, moves in zip(groups, movable(model, PLANS[name], groups, safer="fp32"), strict=True) if moves
    )
    cells = Cells(model, PLANS[name], groups, safer="fp32", has_rest=True)
    low = outcome(model, x)
    cells.switch(range(len(groups)))
    assert all(torch.equal(one, two) for one, two in zip(outcome(model, x), plain, strict=True))
    cells.switch(())
    again = outcome(model, x)
    assert all(torch.equal(one, two) for one, two in zip(again, low, strict=True))
    assert not all(torch.equal(one, two) for one, two in zip(again, plain, strict=True))
    cells.close()


def test_what_is_between_the_groups_goes_up_with_all_of_them():
    class Scaled(Blocks):
        def forward(self, x):
            return super().forward(x) @ torch.ones(1, 3)

    torch.manual_seed(0)
    model, x = Scaled(), torch.randn(5, 4)
    plain = Scaled()(x)
    with_rest = Cells(model, PLANS["bf16"], groups_of(model, None), safer="fp32", has_rest=True)
    with_rest.switch(range(4))
    assert torch.equal(model(x), plain)
    with_rest.close()
    without = Cells(
        model, PLANS["bf16"], groups_of(model, ["*.0", "*.1", "inp", "norm", "head"]), safer="fp32", has_rest=False
    )
    without.switch(range(5))
    assert not torch.equal(model(x), plain)
    without.close()


def test_bf16_raises_fp16_and_lowers_nothing():
    plan = Plan(
        default="fp16",
        rules=(Rule(module="*.wo", compute="fp32"), Rule(op="relu", compute="fp32"), Rule(op="gelu", compute="fp16")),
    )
    model = Blocks()
    cells = Cells(model, plan, groups_of(model, ["blocks.0"]), safer="bf16", has_rest=False)
    cells.switch([0])
    block = model.blocks[0]
    assert cast_forward_of(block).region == Formats(compute=torch.bfloat16)
    assert cast_forward_of(block.wo).region == Formats(compute=torch.float32)
    entries = dict(cast_forward_of(block).table.entries)
    assert entries["relu"] == Formats(compute=torch.float32)
    assert entries["gelu"] is None  # as autocast has it
    cells.close()


def test_a_switch_leaves_parameters_state_and_classes_alone_and_close_leaves_nothing():
    model = Blocks()
    optimizer = torch.optim.AdamW(model.parameters())
    before = [(id(one), one.data_ptr(), one.dtype) for one in model.parameters()]
    kinds = [type(one) for one in model.modules()]
    keys = list(model.state_dict())
    outcome(model, torch.randn(5, 4))
    optimizer.step()
    state = {key: id(value["exp_avg"]) for key, value in optimizer.state.items()}
    cells = Cells(model, PLANS["bf16"], groups_of(model, None), safer="fp32", has_rest=True)
    forwards = [vars(one).get("forward") for one in model.modules()]
    for raised in ([0], [0, 1, 2, 3], [2], []):
        cells.switch(raised)
        outcome(model, torch.randn(5, 4))
    assert [vars(one).get("forward") for one in model.modules()] == forwards  # nothing is wrapped anew
    assert before == [(id(one), one.data_ptr(), one.dtype) for one in model.parameters()]
    assert state == {key: id(value["exp_avg"]) for key, value in optimizer.state.items()}
    assert (kinds, keys) == ([type(one) for one in model.modules()], list(model.state_dict()))
    cells.close()
    assert not any("forward" in vars(one) for one in model.modules())


def test_a_group_that_cannot_move_is_told_before_anything_is_done():
    class Attending(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.block = torch.nn.MultiheadAttention(8, 2), Block()

    model = Attending()
    with pytest.raises(UsageError, match=r'"attn.out_proj" cannot move: nn.MultiheadAttention reads the weights'):
        movable(model, PLANS["bf16"], groups_of(model, ["attn.out_proj"]), safer="fp32")
    model.block.wi.to(torch.bfloat16)
    with pytest.raises(CannotRunError, match=r'groups cannot be moved to fp32: "block.wi" is to compute in fp32'):
        movable(model, PLANS["bf16"], groups_of(model, ["block"]), safer="fp32")
    assert not any("forward" in vars(one) for one in model.modules())


@pytest.mark.parametrize("name", PLANS)
def test_nothing_is_computed_below_fp32_where_no_autocast_may(name):
    model, x = Blocks(), torch.randn(5, 4)
    expected = outcome(model, x)
    groups = groups_of(model, None)
    off = switch_off_own_amp(autocast=True)
    try:
        cells = Cells(model, PLANS[name], groups, safer="fp32", has_rest=True)
    finally:
        off()
    for raised in ((), (0,)):
        cells.switch(raised)
        assert all(torch.equal(one, two) for one, two in zip(outcome(model, x), expected, strict=True))
    cells.close()
