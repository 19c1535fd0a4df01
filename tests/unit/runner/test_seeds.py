# ruff: noqa: NPY002 - scripts seed NumPy the old way
import random

import numpy as np
import pytest
import torch

from ampwise.runner.seeds import seed_python, seed_run


@pytest.fixture(autouse=True)
def put_back():
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def drawn():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def script(repeat, *, seed=None):
    seed_python(repeat)
    with seed_run(repeat):
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
        return drawn()


@pytest.mark.parametrize("seed", [None, 7])
def test_runs_with_one_number_draw_alike_and_others_differ_everywhere(seed):
    first = script(0, seed=seed)
    assert script(0, seed=seed) == first
    assert all(a != b for a, b in zip(first, script(1, seed=seed), strict=True))


def test_repeat_0_leaves_the_scripts_own_seeds_as_they_are():
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    plain = drawn()
    assert script(0, seed=7) == plain


def test_each_way_to_seed_is_shifted():
    with seed_run(3):
        assert torch.manual_seed(5).initial_seed() == 8
        assert torch.random.manual_seed(seed=5).initial_seed() == 8
        assert torch.initial_seed() == 8
        assert float(np.random.default_rng(5).random()) == float(np.random.default_rng(5).random())
        shifted = float(np.random.default_rng(5).random())
    assert shifted == float(np.random.default_rng(8).random())
    assert torch.manual_seed(5).initial_seed() == 5


def test_seeds_that_are_no_numbers_pass(monkeypatch):
    with seed_run(1):
        random.seed("text")
        np.random.seed(None)
        np.random.default_rng(np.random.SeedSequence(3))
        random.seed(a=None)
