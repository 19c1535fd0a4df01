"""A process that looks for a fault alone waits for nobody: the others train on."""

from pathlib import Path

import pytest

from nonfinite_ranks import CASES
from ranks import run_cases

HELPERS = Path(__file__).parents[2] / "helpers"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    environ = {"PYTHONPATH": str(HELPERS)}
    folder = tmp_path_factory.mktemp("two")
    return run_cases(HELPERS / "nonfinite_ranks.py", CASES, world=2, folder=folder, environ=environ)


@pytest.mark.parametrize("name", [name for name in CASES if name != "a_batch_beyond_fp32"])
def test_one_process_alone_is_alarmed(ranks, name):
    first, second = ranks[name]
    assert (first["loss_steps"], second["loss_steps"]) == ([], [1])
    assert second["replayed"] == [1]


@pytest.mark.parametrize(("name", "origins"), [("data_parallel", []), ("a_batch_beyond_fp32", [["1", "aten.mul"]])])
def test_the_model_within_data_parallel_is_run_again(ranks, name, origins):
    _, second = ranks[name]
    assert second["origins"][:1] == origins
    assert second["note"] is None


@pytest.mark.parametrize("name", ["parallel_within", "talking", "sharded"])
def test_a_model_that_others_take_part_in_is_not(ranks, name):
    _, second = ranks[name]
    assert second["note"].startswith("step 1 could not be run again: InCompanyError: other processes take part in it")
