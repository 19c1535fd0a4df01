import gc

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampwise.instruments.casts import CastWatch
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher
from ampwise.records.casts import CastOrigin
from ampwise.records.site import Phase


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def watch(body, *, model=None, steps=(1,), num_steps=2):
    """What was recorded of a loop whose forward pass is ``body(model)``, which gives the loss."""
    gc.collect()
    model = model or Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), CastWatch(bus, steps=steps) as watcher:
        for _ in range(num_steps):
            body(model).backward()
            optimizer.step()
            optimizer.zero_grad()
    record = watcher.record()
    assert record.note is None
    return record


def low(model):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(torch.ones(3, 8)).float().sum()


def of(record, phase, origin):
    return [cast for cast in record.casts if cast.site.phase is phase and cast.origin is origin]


def test_without_autocast_nothing_is_cast():
    record = watch(lambda model: model(torch.ones(3, 8)).sum())
    assert record.casts == ()
    assert record.byte_share == 0.0
    assert {call.dtype for call in record.calls} <= {"fp32", ""}


def test_autocasts_casts_are_counted_where_they_are_made():
    casts = of(watch(low), Phase.FORWARD, CastOrigin.AUTOCAST)
    assert {(cast.site.module, cast.source, cast.target, cast.reason) for cast in casts} == {
        ("first", "fp32", "bf16", "aten.addmm"),
        ("second", "fp32", "bf16", "aten.addmm"),
    }
    by_module = {cast.site.module: cast for cast in casts}
    assert by_module["first"].count == 3  # weight, bias, input
    assert by_module["first"].bytes == (8 * 16 + 16 + 3 * 8) * (4 + 2)
    assert by_module["second"].count == 2  # its input is low already
    assert by_module["second"].ms > 0


def test_the_scripts_own_cast_is_told_from_autocasts():
    casts = [cast for cast in watch(low).casts if cast.origin is CastOrigin.SCRIPT]
    assert [(cast.source, cast.target, cast.reason, cast.count) for cast in casts] == [("bf16", "fp32", "aten.sum", 1)]
    assert casts[0].site.file.endswith("test_casts.py")


def test_gradients_come_back_in_the_weights_dtype():
    casts = of(watch(low), Phase.BACKWARD, CastOrigin.BACKWARD)
    returned = {(cast.site.module, cast.source, cast.target): cast.count for cast in casts}
    assert returned["first", "bf16", "fp32"] == 2
    assert returned["second", "bf16", "fp32"] == 2


def test_products_are_counted_by_dtype():
    record = watch(low, steps=None, num_steps=3)
    calls = {
        (call.site.module, call.dtype, call.result): call.count for call in record.calls if call.site.op == "aten.addmm"
    }
    assert calls == {("first", "bf16", "bf16"): 3, ("second", "bf16", "bf16"): 3}
    assert record.steps == (0, 1, 2)


def test_a_weight_cast_for_each_micro_batch_is_repeated():
    record = watch(lambda model: low(model) + low(model) + low(model))
    repeated = {one.parameter: one for one in record.repeated}
    assert repeated["first.weight"].num_per_step == 3
    assert repeated["first.weight"].bytes == 2 * 8 * 16 * 2
    assert repeated["first.weight"].target == "bf16"


def test_the_cast_cache_leaves_nothing_repeated():
    def body(model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (model(torch.ones(3, 8)) + model(torch.zeros(3, 8))).float().sum()

    assert watch(body).repeated == ()


def test_the_cast_of_an_expanded_tensor_repeats_every_number():
    # pytorch#85698: bmm of an expanded operand takes thirty times the memory under autocast
    weight = nn.Parameter(torch.ones(8, 8))

    def body(model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            product = torch.bmm(torch.ones(30, 1, 8), weight.expand(30, 8, 8))
        return product.float().sum() + model(torch.ones(1, 8)).sum()

    expanded = [cast for cast in watch(body).casts if cast.expanded_bytes and cast.site.phase is not Phase.BACKWARD]
    assert [cast.expanded_bytes for cast in expanded] == [29 * 8 * 8 * 2]
    assert [cast.reason for cast in expanded] == ["aten.bmm"]


def test_a_broadcast_bias_that_is_not_cast_is_no_expansion():
    assert not any(cast.expanded_bytes for cast in watch(low).casts if cast.site.phase is Phase.FORWARD)


def test_mixed_operands_are_promotions():
    def body(model):
        y = model(torch.ones(3, 8))
        return torch.where(y > 0, y.bfloat16(), y).sum()

    promotions = watch(body).promotions
    assert [(one.site.op, one.dtypes, one.result, one.count) for one in promotions] == [
        ("aten.where", ("bf16", "fp32"), "fp32", 1)
    ]


def test_normalisation_of_low_inputs_with_fp32_weights_promotes_nothing():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    assert watch(low, model=model).promotions == ()


def test_recomputation_is_not_another_forward():
    class Checkpointed(Net):
        def forward(self, x):
            return self.second(checkpoint(lambda x: torch.relu(self.first(x)), x, use_reentrant=False))

    record = watch(low, model=Checkpointed())
    forward = [call for call in record.calls if call.site.op == "aten.addmm" and call.site.phase is Phase.FORWARD]
    assert {call.site.module: call.count for call in forward} == {"first": 1, "second": 1}
    again = [call for call in record.calls if call.site.op == "aten.addmm" and call.site.phase is Phase.BACKWARD]
    assert {call.site.module: call.count for call in again} == {"first": 1}
    assert {cast.site.module for cast in of(record, Phase.BACKWARD, CastOrigin.AUTOCAST)} == {"first"}


def test_ampwises_own_cast_lists_are_autocast_too():
    from ampwise.interpose.cast_lists import use_cuda_lists

    def body(model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.softmax(model(torch.ones(3, 8)), -1).pow(2).sum()

    undo = use_cuda_lists("cpu")
    try:
        record = watch(body)
    finally:
        undo()
    lifted = [cast for cast in record.casts if cast.target == "fp32" and cast.site.phase is Phase.OTHER]
    assert {cast.origin for cast in lifted} == {CastOrigin.AUTOCAST}


def test_a_script_that_raises_is_left_without_the_mode():
    bus = EventBus()
    model = Net()
    with pytest.raises(KeyError), LoopWatcher(bus, has_optimizer=True), CastWatch(bus, steps=None):  # noqa: PT012
        model(torch.ones(1, 8))
        raise KeyError
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_fault_of_the_count_leaves_the_script_alone(monkeypatch):
    def broken(self, *_):
        raise ValueError("no such tensor")

    monkeypatch.setattr(CastWatch, "_add_call", broken)
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), CastWatch(bus, steps=None) as watcher:
        assert torch.ones(2).add(1).tolist() == [2.0, 2.0]
    assert watcher.record().note == "casts were not counted to the end: ValueError: no such tensor"
