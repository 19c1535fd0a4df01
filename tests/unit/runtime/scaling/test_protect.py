"""``scaler.protect``: a skipped step leaves no trace in BatchNorm's statistics."""

import copy
import io

import pytest
import torch

from ampwise import GradScaler
from ampwise._base.errors import UsageError

INF = float("inf")


def parts(**options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), GradScaler("cpu", **options)


def statistics(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def same(before, model):
    return all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def train_once(model, optimizer, scaler, value, *, num_batches=1):
    optimizer.zero_grad()
    for _ in range(num_batches):
        scaler.scale(model(torch.tensor([[value, 1.0], [2.0, 3.0]])).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("num_batches", [1, 3])
def test_a_skipped_step_leaves_the_statistics_as_they_were(num_batches, wraps):
    model, optimizer, scaler = parts()
    scaler.protect(model)
    called = torch.nn.DataParallel(model) if wraps else model
    train_once(called, optimizer, scaler, 1.0, num_batches=num_batches)
    good = statistics(model)
    train_once(called, optimizer, scaler, INF, num_batches=num_batches)
    assert scaler.last_step.skipped
    assert same(good, model)
    train_once(called, optimizer, scaler, 4.0, num_batches=num_batches)
    assert not same(good, model)
    assert model[1].num_batches_tracked == 2 * num_batches


def test_without_it_they_are_poisoned():
    model, optimizer, scaler = parts()
    train_once(model, optimizer, scaler, INF)
    assert not model[1].running_mean.isfinite().all()


@pytest.mark.parametrize("second_overflows", [False, True])
def test_update_after_each_of_two_optimizers_looks_at_both(second_overflows):
    model, optimizer, scaler = parts()
    other = torch.nn.Parameter(torch.ones(1))
    optimizers = [optimizer, torch.optim.SGD([other], lr=0.1)]
    scaler.protect(model)
    train_once(model, optimizer, scaler, 1.0)
    before = statistics(model)
    optimizer.zero_grad()
    loss = model(torch.ones(2, 2)).sum() + (other * (INF if second_overflows else 1.0)).sum()
    scaler.scale(loss).backward()
    for one in optimizers:
        scaler.step(one)
        scaler.update()
    assert same(before, model) is second_overflows


def test_a_scale_set_by_hand_restores_too():
    model, optimizer, scaler = parts()
    scaler.protect(model)
    before = statistics(model)
    scaler.scale(model(torch.tensor([[INF, 1.0], [2.0, 3.0]])).sum()).backward()
    scaler.step(optimizer)
    scaler.update(1024.0)
    assert same(before, model)


def test_a_step_the_protected_model_took_no_part_in_changes_nothing_of_it():
    model, optimizer, scaler = parts()
    scaler.protect(model)
    train_once(model, optimizer, scaler, 1.0)
    with torch.no_grad():
        model(torch.full((2, 2), 9.0))
    after = statistics(model)
    other = torch.nn.Parameter(torch.ones(1))
    scaler.scale((other * INF).sum()).backward()
    scaler.step(torch.optim.SGD([other], lr=0.1))
    scaler.update()
    assert same(after, model)


def test_the_protection_ends_and_leaves_no_hook():
    model, optimizer, scaler = parts()
    end = scaler.protect(model)
    end()
    assert not model._forward_pre_hooks
    train_once(model, optimizer, scaler, INF)
    assert not model[1].running_mean.isfinite().all()


def test_a_protected_model_is_copied_and_saved_without_its_guard():
    model, _, scaler = parts()
    scaler.protect(model)
    copied = copy.deepcopy(model)
    torch.save(model, file := io.BytesIO())
    file.seek(0)
    for one in (copied, torch.load(file, weights_only=False)):
        one(torch.ones(2, 2))
    assert not scaler._guard.is_saved
    copy.deepcopy(scaler)


def test_a_disabled_scaler_protects_nothing_and_strangers_are_refused():
    model, _, scaler = parts(enabled=False)
    scaler.protect(model)()
    assert not model._forward_pre_hooks
    with pytest.raises(UsageError, match="given Adam"):
        GradScaler("cpu").protect(torch.optim.Adam(model.parameters()))
    with pytest.raises(UsageError, match="given nothing"):
        GradScaler("cpu").protect()


def test_a_compiled_model_is_protected():
    model, optimizer, scaler = parts()
    compiled = torch.compile(model, backend="eager")
    scaler.protect(compiled)
    train_once(compiled, optimizer, scaler, 1.0)
    good = statistics(model)
    train_once(compiled, optimizer, scaler, INF)
    assert same(good, model)
