"""Marks on leaves: by identity, weak, and gone when taken off."""

import gc
import weakref

import pytest
import torch
from torch import nn

from ampwise.runner.leaf_hooks import LeafHooks
from ampwise.runner.verdicts import Verdicts, any_found, non_finite_in


def test_gradients_are_unscaled_only_while_a_scaled_pass_runs():
    hooks, leaf = LeafHooks(), nn.Parameter(torch.ones(1))
    hooks.mark(leaf)
    hooks.mark(leaf)
    with hooks.scaled_by(4.0):
        (leaf * 8).sum().backward()
    (leaf * 8).sum().backward()
    assert leaf.grad.item() == 2 + 8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_the_gradients_dtype_stays(dtype, shape):
    hooks, leaf = LeafHooks(), torch.ones(shape, dtype=dtype, requires_grad=True)
    hooks.mark(leaf)
    with hooks.scaled_by(4.0):
        (leaf * 8).abs().sum().backward()
    assert leaf.grad.dtype is dtype
    assert torch.equal(leaf.grad, torch.full(shape, 2, dtype=dtype))


def test_a_mark_keeps_nothing_alive_and_its_place_is_free_again():
    hooks, leaf = LeafHooks(), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([leaf], lr=0.1)
    hooks.own(leaf, optimizer)
    gone = weakref.ref(leaf)
    del leaf, optimizer
    gc.collect()
    assert gone() is None
    assert not hooks._marks


def test_a_hook_the_script_cleared_is_put_back():
    hooks, leaf = LeafHooks(), nn.Parameter(torch.ones(1))
    hooks.mark(leaf)
    leaf._backward_hooks.clear()
    hooks.mark(leaf)
    with hooks.scaled_by(4.0):
        (leaf * 8).sum().backward()
    assert leaf.grad.item() == 2


def test_sparse_gradients_are_unscaled_and_looked_at():
    hooks, table = LeafHooks(), nn.Embedding(4, 2, sparse=True)
    hooks.mark(table.weight)
    with hooks.scaled_by(4.0):
        (table(torch.tensor([1, 1])).sum() * 8).backward()
    assert table.weight.grad.is_sparse
    assert torch.equal(table.weight.grad.to_dense()[1], torch.full((2,), 4.0))
    assert not any_found(non_finite_in([table.weight.grad]))


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_one_bad_number_is_found_and_good_ones_stay(dtype, bad):
    good = [torch.randn(3, 4).to(dtype), torch.randn(5)]
    copies = [one.clone() for one in good]
    assert not any_found(non_finite_in(good))
    assert all(map(torch.equal, good, copies))
    good[0][1, 2] = bad
    assert any_found(non_finite_in(good))


def test_a_verdict_lasts_until_it_is_cleared_or_its_gradients_are():
    verdicts, leaf = Verdicts(), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([leaf], lr=0.1)
    assert verdicts.is_finite(optimizer)
    assert not verdicts.knows(optimizer)
    leaf.grad = torch.full((2,), torch.inf)
    verdicts.add(optimizer, non_finite_in([leaf.grad]))
    verdicts.add(optimizer, non_finite_in([torch.ones(2)]))
    leaf.grad.clamp_(-1, 1)
    verdicts.clear_stale()
    assert not verdicts.is_finite(optimizer)
    leaf.grad = None
    verdicts.clear_stale()
    assert verdicts.is_finite(optimizer)


def test_a_looked_at_gradient_may_be_differentiated_again():
    x = torch.ones(2, requires_grad=True)
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    squared = g * g
    assert not any_found(non_finite_in([g]))
    squared.sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 36.0))
