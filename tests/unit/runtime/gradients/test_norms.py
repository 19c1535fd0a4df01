"""The norms of gradients are the same on any number of threads."""

import threading

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.utils._python_dispatch import TorchDispatchMode

from ampwise.runtime.gradients import norms as module
from ampwise.runtime.gradients.norms import norms_of, split

SIZES = [5, 0, 300, 1, 70, 2000, 64]


@pytest.fixture
def grads():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator) for size in SIZES]


@pytest.fixture
def threads(monkeypatch):
    """The threads in which norms are taken; a few bytes are worth one, and torch may use three.

    They themselves, not their numbers: one that has ended leaves its number to the next.
    """
    seen = []
    original = module.norms_in_this_thread

    def noted(grads):
        seen.append(threading.current_thread())
        return original(grads)

    monkeypatch.setattr(module, "norms_in_this_thread", noted)
    monkeypatch.setattr(module, "BYTES_A_THREAD", 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    return seen


def test_several_threads_give_what_one_gives(grads, threads):
    found = norms_of(grads)
    assert len(set(threads)) == len(threads) == 3
    assert found.tolist() == [torch.linalg.vector_norm(grad).item() for grad in grads]


def test_what_is_not_finite_is_so_in_its_own_place(grads, threads):
    grads[0][1], grads[5][0] = torch.nan, torch.inf
    assert norms_of(grads).isfinite().tolist() == [False, True, True, True, True, False, True]
    assert len(threads) == 3


def test_small_gradients_are_left_in_this_thread(grads, threads, monkeypatch):
    monkeypatch.setattr(module, "BYTES_A_THREAD", 1 << 20)
    norms_of(grads)
    assert threads == [threading.current_thread()]


def test_torch_on_one_thread_stays_on_one(grads, threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    norms_of(grads)
    assert threads == [threading.current_thread()]


def test_whoever_watches_this_threads_operators_sees_all_of_them(grads, threads):
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Watch():
        norms_of(grads)
    assert threads == [threading.current_thread()]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_fails_is_made_up_for(grads, threads, monkeypatch):
    original = module.norms_in_this_thread
    main = threading.get_ident()

    def failing(grads):
        if threading.get_ident() != main:
            raise MemoryError
        return original(grads)

    monkeypatch.setattr(module, "norms_in_this_thread", failing)
    assert len(norms_of(grads)) == len(grads)


@given(sizes=st.lists(st.integers(0, 50), min_size=1).filter(any), count=st.integers(1, 9))
def test_a_split_keeps_the_order_and_leaves_no_part_empty(sizes, count):
    grads = [torch.zeros(size) for size in sizes]
    parts = split(grads, count)
    assert [id(one) for part in parts for one in part] == [id(one) for one in grads]
    assert all(parts)
    assert len(parts) <= count


def test_a_split_is_even():
    assert [len(part) for part in split([torch.zeros(8)] * 10, 2)] == [5, 5]
