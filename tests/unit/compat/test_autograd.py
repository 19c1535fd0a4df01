"""Leaves of a graph, and hooks that come first."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from ampwise.compat.autograd import (
    has_hook,
    is_inside_backward,
    leaves_of,
    register_first_hook,
    remove_hook,
    version_of,
)


def same(found, expected):
    return sorted(map(id, found)) == sorted(map(id, expected))


def test_every_leaf_once_and_constants_not():
    shared, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    constant, unused = torch.ones(2), nn.Parameter(torch.ones(2))
    first, second = (shared * other + shared * constant).sum(), (shared.exp() * 2).sum()
    assert same(leaves_of([first, second]), [shared, other])
    assert same(leaves_of([second]), [shared])
    assert same(leaves_of([unused]), [unused])
    assert leaves_of([constant]) == []
    assert same(leaves_of([get_gradient_edge(first)]), [shared, other])


def test_a_deep_graph_needs_no_recursion():
    x = leaf = torch.ones(1, requires_grad=True)
    for _ in range(20_000):
        x = x + 1
    assert same(leaves_of([x]), [leaf])


@pytest.mark.parametrize("num_earlier", [0, 1, 3])
def test_a_hook_comes_before_the_earlier_ones_and_they_can_still_be_removed(num_earlier):
    leaf, seen = nn.Parameter(torch.ones(1)), []
    earlier = [leaf.register_hook(lambda g, n=n: seen.append((n, g.item()))) for n in range(num_earlier)]
    handle = register_first_hook(leaf, lambda g: g * 10)
    later = leaf.register_hook(lambda g: seen.append(("later", g.item())))
    assert has_hook(leaf, handle)
    (leaf * 3).sum().backward()
    assert seen == [*((n, 30.0) for n in range(num_earlier)), ("later", 30.0)]
    for one in (*earlier, later):
        one.remove()
    seen.clear()
    (leaf * 3).sum().backward()
    assert seen == []
    assert leaf.grad.item() == 60.0
    remove_hook(leaf, handle)
    assert not has_hook(leaf, handle)
    assert leaf._backward_hooks is None


def test_removing_it_leaves_the_scripts_hooks():
    leaf, seen = nn.Parameter(torch.ones(1)), []
    leaf.register_hook(lambda g: seen.append(g.item()))
    remove_hook(leaf, register_first_hook(leaf, lambda g: g * 10))
    (leaf * 3).sum().backward()
    assert seen == [3.0]


def test_copies_have_no_hook_and_pickling_says_nothing():
    from torch.utils.hooks import unserializable_hook

    leaf = torch.ones(1, requires_grad=True)
    register_first_hook(leaf, unserializable_hook(lambda g: g * 10))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copies = [copy.deepcopy(leaf), pickle.loads(pickle.dumps(leaf))]
    for one in copies:
        (one * 3).sum().backward()
        assert one.grad.item() == 3.0


def test_inside_a_pass_is_known():
    seen = []
    leaf = torch.ones(1, requires_grad=True)
    leaf.register_hook(lambda _: seen.append(is_inside_backward()))
    leaf.sum().backward()
    assert seen == [True]
    assert not is_inside_backward()


def test_a_version_changes_with_writes_and_with_new_data():
    leaf = nn.Parameter(torch.ones(1))
    before = version_of(leaf)
    assert version_of(leaf) == before
    with torch.no_grad():
        leaf.add_(1)
    written = version_of(leaf)
    leaf.data = torch.zeros(1)
    assert len({before, written, version_of(leaf)}) == 3
