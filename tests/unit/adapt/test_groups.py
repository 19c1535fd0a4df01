"""Which modules move together: by default, by globs, and what is refused."""

import pytest
import torch
from torch import nn

from adapting import GROUPS, Block, Blocks
from ampwise import UsageError
from ampwise.adapt.groups import groups_of


def names(model, given=None):
    return [one.name for one in groups_of(model, given)]


def test_by_default_blocks_and_the_layers_between():
    assert tuple(names(Blocks())) == GROUPS
    assert names(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8), 2, enable_nested_tensor=False)) == [
        "layers.0",
        "layers.1",
    ]


def test_a_model_of_single_layers_is_one_group():
    (one,) = groups_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), None)
    assert (one.name, one.tops) == ("model", ("",))


def test_stages_are_groups_whole():
    stage = lambda: nn.Sequential(Block(), Block())  # noqa: E731
    model = nn.ModuleDict({"stem": nn.Linear(4, 8), "one": stage(), "two": stage(), "head": nn.Linear(8, 1)})
    assert names(model) == ["stem", "one", "two", "head"]


def test_blocks_below_other_modules_are_found_and_runs_go_on_across():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.core, self.out = Blocks(), nn.Linear(1, 1)

    assert names(Whole()) == ["core.inp", "core.blocks.0", "core.blocks.1", "core.norm to out"]


def test_a_block_that_hangs_in_the_model_twice_is_one_group_with_its_double():
    model = Blocks(3)
    model.blocks[2].wi = model.blocks[0].wi
    (merged,) = [one for one in groups_of(model, None) if len(one.tops) == 2 and "blocks" in one.name]
    assert merged.tops == ("blocks.0", "blocks.2")


def test_globs_and_names():
    assert names(Blocks(), ["blocks.*", "head"]) == ["blocks.*", "head"]
    both, rest = groups_of(Blocks(), {"ends": ["inp", "head"], "middle": "blocks"})
    assert both.tops == ("inp", "head")
    assert rest.tops == ("blocks.0", "blocks.1")  # a list of modules is not called itself
    (inner,) = groups_of(Blocks(), ["*.wo"])
    assert inner.tops == ("blocks.0.wo", "blocks.1.wo")
    (everything,) = groups_of(Blocks(), ["*"])
    assert everything.tops == ("",)


def test_compiled_blocks_are_named_as_plans_name_them():
    model = Blocks()
    model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    assert tuple(names(model)) == ("inp", "blocks.0", "blocks.1", "norm to head")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "groups is {}; give globs over module paths"),
        ("blocks.*", "groups is 'blocks.*'; give globs"),
        (["blocks.0", "blokcs.1"], "'blokcs.1' matches no module; did you mean \"blocks.1\"?"),
        (["xyz"], "'xyz' matches no module (the model's children: inp, blocks, norm, head)"),
        (["blocks.0", "*.wo"], '"blocks.0.wo" is in "blocks.0" and in "*.wo"; give it to one'),
        (["re:("], "is not a regular expression"),
    ],
)
def test_groups_that_cannot_be_meant(given, words):
    with pytest.raises(UsageError) as refused:
        groups_of(Blocks(), given)
    assert words in str(refused.value)


def test_one_module_in_two_groups_or_in_one_and_none():
    model = Blocks()
    model.blocks[1].wi = model.blocks[0].wi
    with pytest.raises(
        UsageError, match=r'"blocks.0.wi" and "blocks.1.wi" are one module.* in "blocks.0" and "blocks.1"'
    ):
        groups_of(model, ["blocks.0", "blocks.1"])
    with pytest.raises(UsageError, match=r'one is in "blocks.0", the other in no group; put both into one'):
        groups_of(model, ["blocks.0"])
    assert len(groups_of(model, ["blocks.*"])) == 1
