"""What ranks that train together agree on, with gloo on the CPU: each case ran in all ranks of one start."""

import pickle
from pathlib import Path

import pytest
import torch

from ampwise import GradScaler, TrainStep, joinable
from ampwise._base.errors import UsageError
from ampwise.runtime.distributed import find_agreement, peers_of
from ranks import run_cases
from ranks_cases import FOUR, TWO

CASES = Path(__file__).parents[2] / "helpers" / "ranks_cases.py"


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return run_cases(CASES, TWO, world=2, folder=tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return run_cases(CASES, FOUR, world=4, folder=tmp_path_factory.mktemp("four"))


def near(value, **options):
    return pytest.approx(value, rel=2e-5, abs=2e-6, **options)


def check_agreement(ranks):
    first = ranks[0]
    assert all(one == first for one in ranks)
    assert first["bad"]
    for name, kept in first["kept"].items():
        assert kept["skipped"] == first["bad"], name
    assert first["kept"]["ddp"]["values"] == near(first["kept"]["fsdp"]["values"])
    assert first["kept"]["ddp clipped"]["values"] == near(first["kept"]["fsdp clipped"]["values"])


@pytest.mark.parametrize("world", ["two", "four"])
def test_ranks_never_disagree_about_a_skip(world, request):
    check_agreement(request.getfixturevalue(world)["agreeing"])


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_have_not_disagreed_after_500_steps(world, tmp_path):
    check_agreement(run_cases(CASES, ["agreeing_long"], world=world, folder=tmp_path)["agreeing_long"])


# ------------------------------------------------------------------ who has gradients, and where


def test_a_rank_whose_expert_got_nothing_takes_part_and_its_overflow_skips_all(two):
    first, second = two["experts"]
    assert [one[0] for one in first["seen"]] == [one[0] for one in second["seen"]] == [False] * 4 + [True, False]
    assert [one[1] for one in first["seen"]] == [one[1] for one in second["seen"]]
    assert [one[2] for one in first["seen"]] == [True, True, False, True, False, True]
    assert [one[2] for one in second["seen"]] == [True, True, True, True, False, True]
    assert first["shared"] == second["shared"]
    assert first["scale"] == second["scale"] == 32.0


def test_no_gradient_on_any_rank_is_refused_by_all(two):
    assert all("no parameter of the optimizers has a gradient" in one for one in two["no_gradient_anywhere"])


def test_a_scaler_asks_the_ranks_it_is_told_of(two):
    first, second = two["one_rank_without_gradients"]
    assert first == [[False, [1.0, 1.0]], [True, [1.0, 1.0]], [False, [1.0, 1.0]]]
    assert second == [[False, [0.5, 0.5]], [True, [0.5, 0.5]], [False, [0.0, 0.0]]]


def test_shards_offloaded_to_the_cpu_are_agreed_on(two):
    for one in two["offloaded"]:
        assert one["skipped"] == [1, 3]
        assert one["values"] == one["plain"]


def test_an_overflow_under_no_sync_is_in_the_sum(two):
    for one in two["accumulating"]:
        assert all(run["skipped"] == [2, 4] for run in one["runs"].values())
        ddp, fsdp, every = one["values"]
        assert ddp == near(every)
        assert fsdp == near(every)
    assert two["accumulating"][0] == two["accumulating"][1]


def test_ranks_with_fewer_batches_end_with_the_state_of_those_that_came_last(two):
    first, second = two["uneven"]
    assert [first[name]["steps"] for name in first] == [3, 3]
    assert [second[name]["steps"] for name in second] == [5, 5]
    assert first["plain"]["momenta"] == second["plain"]["momenta"]
    for name in first:
        assert first[name]["values"] == second[name]["values"]
        assert first[name]["scale"] == second[name]["scale"] == 128.0


# ------------------------------------------------------------------ norms across shards


@pytest.mark.parametrize(
    ("world", "case"), [("two", "tensor_parallel"), ("four", "two_dimensions"), ("four", "replicated_shards")]
)
def test_the_norm_across_shards_is_that_of_one_device(world, case, request):
    ranks = request.getfixturevalue(world)[case]
    for one in ranks:
        ours, alone = one["norms"]
        assert [value is None for value in ours] == [False, False, True, False]
        assert [value or 0.0 for value in ours] == near([value or 0.0 for value in alone])
        assert one["values"][0] == near(one["values"][1])
    assert all(one["norms"][0] == ranks[0]["norms"][0] for one in ranks)


def test_one_reduction_carries_norm_and_finiteness_and_ddp_needs_none(two):
    counts = two["collectives"][0]
    assert counts["ddp"] == counts["torch ddp"] == {"collectives": 0, "bytes": 0}
    assert counts["fsdp"] == counts["fsdp clipped"] == {"collectives": 1, "bytes": 40}
    assert counts["torch fsdp"]["collectives"] == 2


# ------------------------------------------------------------------ scales


def test_scales_that_differ_are_refused_on_every_rank(two):
    for texts in two["unequal_scales"]:
        assert len(texts) == 3
        assert all("it lies between 16 and 32" in text and "before they are reduced" in text for text in texts)


def test_a_checkpoint_that_one_rank_loaded_is_noticed(two):
    assert all("it lies between 4 and 65536" in text for text in two["loaded_scales"])


def test_a_named_losss_scale_is_every_ranks(two):
    first, second = two["named_losses"]
    assert first == second
    assert first["seen"][2] == [True, 64.0, 8.0, 1.0]
    assert first["seen"][3] == [False, 64.0, 8.0, 1.0]
    assert first["refused"].startswith("losses with names take a backward pass each")


def test_headroom_follows_the_largest_gradient_of_any_rank(two):
    first, second = two["headroom"]
    assert first == second
    assert first[4][0]
    assert first[0][1] > first[-1][1]


def test_a_measured_choice_is_the_first_ranks(two):
    assert two["chosen"] == ["bf16", "bf16"]


# ------------------------------------------------------------------ alone


def test_alone_nobody_is_asked():
    weight = torch.nn.Parameter(torch.ones(2))
    assert find_agreement([weight]) is None
    assert peers_of([torch.nn.Linear(1, 1)], None) is None
    scaler = GradScaler("cpu")
    scaler.scale(weight.sum())
    assert scaler.accord.peers() is None
    assert pickle.loads(pickle.dumps(scaler)).accord.peers() is None


def test_joinable_says_what_a_step_alone_lacks():
    weight = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(UsageError, match="trains alone"):
        joinable(TrainStep(torch.optim.SGD([weight], lr=0.1), precision="fp32"))
