"""The law of unscaling: both ways of doing it give the same bits and the same finding."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from ampwise.compat.scaler import check_finite_, unscale_and_check_
from ampwise.runtime.scaling.buffers import BufferGuard, _put_back, _Saved

NUMBERS = st.lists(st.floats(width=32), min_size=1, max_size=12)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@given(numbers=NUMBERS, inv_scale=st.floats(2.0**-100, 1.0, width=32))
def test_both_ways_give_the_same_bits_and_finding(dtype, numbers, inv_scale):
    results = []
    for may_overflow in (False, True):
        grads = [torch.tensor(numbers, dtype=dtype), torch.tensor([0.5, 0.0], dtype=dtype), torch.empty(0, dtype=dtype)]
        found = torch.zeros(())
        unscale_and_check_(grads, torch.tensor(inv_scale), found, may_overflow=may_overflow)
        results.append((grads, found.item()))
    for one, other in zip(*(grads for grads, _ in results), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert results[0][1] == results[1][1]


@given(numbers=NUMBERS, scale=st.floats(2.0**-126, 2.0**20, width=32))
def test_the_check_alone_says_what_unscaling_would_find(numbers, scale):
    grad, found = torch.tensor(numbers), torch.zeros(())
    check_finite_([grad], found, scale=torch.tensor(scale))
    assert bool(found) == (not bool((grad / scale).isfinite().all()))


def test_a_finding_stays_found():
    found = torch.ones(())
    check_finite_([torch.ones(2)], found)
    unscale_and_check_([torch.ones(2)], torch.tensor(2.0), found, may_overflow=True)
    assert found.item() == 1.0


@given(before=NUMBERS, after=st.floats(width=32), skipped=st.booleans())
def test_buffers_are_put_back_on_an_accelerator_as_on_a_cpu(before, after, skipped):
    module = torch.nn.Module()
    module.register_buffer("seen", torch.full((len(before),), after))
    saved = torch.tensor(before)
    _put_back(_Saved(owner=module, name="seen", value=saved), torch.tensor(2.0 if skipped else 0.0))
    expected = saved if skipped else torch.full((len(before),), after)
    torch.testing.assert_close(module.seen, expected, rtol=0, atol=0, equal_nan=True)


def test_modules_that_share_a_buffer_owner_are_saved_once():
    norm = torch.nn.BatchNorm1d(2)
    guard = BufferGuard([norm, torch.nn.Sequential(norm)])
    guard.save()
    norm.running_mean.fill_(7.0)
    guard.restore(found_inf=True)
    assert norm.running_mean.tolist() == [0.0, 0.0]
    assert not guard.is_saved
