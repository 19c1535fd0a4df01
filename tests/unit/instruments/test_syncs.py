import gc
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ampwise.instruments.syncs import SyncWatch
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher
from ampwise.records.site import Phase
from ampwise.records.syncs import SyncKind

Y = torch.tensor([0, 1, 2, 3, 0, 1])


def watch(log, *, forward=None, num_steps=3, steps=(1, 2), batches=None):
    """What was recorded of a loop that calls ``log`` before each step."""
    gc.collect()
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters())
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), SyncWatch(bus, steps=steps) as watcher:
        for x in batches or [torch.randn(6, 8) for _ in range(num_steps)]:
            out = model(x) if forward is None else forward(model, x)
            loss = nn.functional.cross_entropy(out, Y)
            optimizer.zero_grad()
            loss.backward()
            log(SimpleNamespace(loss=loss, out=out, model=model))
            optimizer.step()
    record = watcher.record()
    assert record.note is None
    assert not record.is_real
    assert all(place.stall_ms is None for place in record.places)
    return record


def calls(record):
    return [(place.call, place.kind, place.count) for place in record.places]


def nothing(at):
    """A loop that waits for nothing: Adam's own step counters stay on the host."""


def test_a_loop_that_reads_nothing_waits_for_nothing():
    record = watch(nothing)
    assert record.places == ()
    assert record.steps == (1, 2)


LINES = [
    (lambda at: at.loss.item(), ".item()", SyncKind.SCALAR),
    (lambda at: float(at.loss.detach()), "float()", SyncKind.SCALAR),
    (lambda at: 1 if at.loss < 3 else 2, "if", SyncKind.SCALAR),
    (lambda at: at.loss.detach().cpu(), ".cpu()", SyncKind.COPY),
    (lambda at: at.out.detach().numpy(), ".numpy()", SyncKind.COPY),
    (lambda at: at.out.detach().cpu().numpy(), ".cpu()", SyncKind.COPY),
    (lambda at: at.out.detach().cpu().double().numpy(), ".cpu()", SyncKind.COPY),
    (lambda at: at.out.argmax(1).tolist(), ".tolist()", SyncKind.COPY),
    (lambda at: at.out.to("cpu"), '.to("cpu")', SyncKind.COPY),
    (lambda at: at.out.to(torch.device("cpu")), '.to("cpu")', SyncKind.COPY),
    (lambda at: repr(at.loss), "print", SyncKind.PRINT),
    (lambda at: str(at.out), "print", SyncKind.PRINT),
    (lambda at: at.out[at.out > 0], "index with a boolean mask", SyncKind.SHAPE),
    (lambda at: at.out.detach().nonzero(), "nonzero", SyncKind.SHAPE),
    (lambda at: torch.unique(at.out.argmax(1)), "unique", SyncKind.SHAPE),
    (lambda at: torch.equal(at.out, at.out), "torch.equal", SyncKind.SCALAR),
    (lambda at: at.model.weight.grad.norm().item(), ".item()", SyncKind.SCALAR),
    (lambda at: (at.out.argmax(1) == Y).sum().item(), ".item()", SyncKind.SCALAR),
    (lambda at: at.model.weight.detach().sum().item(), ".item()", SyncKind.SCALAR),
]


@pytest.mark.parametrize(("log", "call", "kind"), LINES, ids=[f"{i}-{one[1]}" for i, one in enumerate(LINES)])
def test_each_way_to_wait_is_one_wait_a_step_at_its_line(log, call, kind):
    record = watch(log)
    assert calls(record) == [(call, kind, 2)]
    place = record.places[0]
    assert place.site.file.endswith("test_syncs.py")
    assert place.site.line == log.__code__.co_firstlineno
    assert place.num_steps == 2
    assert record.num_per_step == 1.0


def target(out):
    return out.to(Y.device)


@pytest.mark.parametrize(
    "log",
    [
        lambda _: Y.sum().item(),
        lambda _: torch.randperm(4).tolist(),
        lambda _: str(Y),
        lambda at: target(at.out),
        lambda at: at.out.to(torch.float64),
        lambda at: at.out.detach().clone().__setitem__(at.out > 0, 0),
        lambda at: at.out.shape[0] + at.out.numel(),
    ],
)
def test_what_would_stay_on_the_host_or_wait_for_nothing_is_not_counted(log):
    assert watch(log).places == ()


def test_a_read_within_the_model_has_its_module():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 4)

        def forward(self, x):
            if x.max() > 100:
                return x
            return self.inner(x)

    gate = Gate()
    record = watch(nothing, forward=lambda model, x: model(x) + gate(x))
    assert calls(record) == [("if", SyncKind.SCALAR, 2)]
    assert record.places[0].site.phase is Phase.FORWARD
    assert record.places[0].site.module == "gate"


class Reading(torch.utils.data.Dataset):
    def __len__(self):
        return 18

    def __getitem__(self, index):
        x = torch.randn(8)
        assert x.sum().item() < 1e9
        assert len(x[x > 0].tolist()) < 9
        return x


def test_reading_data_is_not_counted():
    loader = torch.utils.data.DataLoader(Reading(), batch_size=6)
    assert watch(nothing, batches=loader).places == ()


def test_the_rows_are_on_in_the_steps_watched_only():
    original = torch.Tensor.__repr__
    seen = []
    watch(lambda _: seen.append(torch.Tensor.__repr__ is original), num_steps=4)
    assert seen == [True, False, False, True]


def test_a_script_that_raises_has_its_methods_back():
    def log(at):
        raise KeyError

    original = torch.Tensor.__repr__
    with pytest.raises(KeyError):
        watch(log, steps=None)
    assert torch.Tensor.__repr__ is original
    assert torch._C._len_torch_dispatch_stack() == 0


def pretend_cuda(monkeypatch):
    switched = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", switched.append)
    return switched


def test_cudas_debug_mode_is_on_meanwhile_and_its_warnings_are_waits(monkeypatch):
    switched = pretend_cuda(monkeypatch)
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), SyncWatch(bus, steps=None) as watcher:
        shown = list(warnings.filters)

        weight = torch.nn.Parameter(torch.ones(3))

        def proceed(*args):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            return weight

        watcher.around(operator("aten.cumsum"), proceed, (weight,), {})
    assert switched == ["warn", 0]
    assert warnings.filters != shown
    record = watcher.record()
    assert record.is_real
    assert record.with_debug_mode
    assert calls(record) == [("aten.cumsum", SyncKind.OTHER, 1)]
    assert record.places[0].stall_ms >= 0


def operator(name):
    from ampwise.compat.operators import Operator

    return Operator(name=name, overload="default", is_view=False, written=())


def test_synchronize_is_a_wait(monkeypatch):
    pretend_cuda(monkeypatch)
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), SyncWatch(bus, steps=None) as watcher:
        watcher._around_synchronize(lambda: None)
    assert calls(watcher.record()) == [("torch.cuda.synchronize()", SyncKind.EXPLICIT, 1)]
