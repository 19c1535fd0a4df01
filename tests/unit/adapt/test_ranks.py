"""Processes that train together move together, whichever of them saw the cause."""

import math
from pathlib import Path

import pytest

from adapting_ranks import CASES
from ranks import run_cases

pytestmark = pytest.mark.slow
HELPERS = Path(__file__).parents[2] / "helpers"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    environ = {"PYTHONPATH": str(HELPERS)}
    return run_cases(
        HELPERS / "adapting_ranks.py", CASES, world=2, folder=tmp_path_factory.mktemp("two"), environ=environ
    )


@pytest.mark.parametrize("name", CASES)
def test_what_one_rank_lost_moves_all_of_them(ranks, name):
    first, second = ranks[name]
    assert first == second
    assert first["moves"][0] == ([16, "inp"] if name == "one_rank_spikes" else [2, "inp"])


def test_ranks_bring_groups_down_together_and_go_on_so_from_a_checkpoint(ranks):
    first, _ = ranks["one_rank_spikes"]
    assert sorted({step for step, _ in first["moves"]}) == [16, 22, 33, 44, 55]


def test_a_loss_is_the_mean_of_all_ranks_losses(ranks):
    first, second = ranks["one_rank_loses_numbers"]
    assert first["losses"] == second["losses"]
    assert len(first["losses"]) == 3  # one rank's was not finite in the second step
    assert all(map(math.isfinite, first["losses"]))
