from pathlib import Path

import pytest

from ampwise.compat.compilation import Break, CompilerAccounts, compiler_accounts
from ampwise.instruments import compilation
from ampwise.instruments.compilation import CompileWatch
from ampwise.observe.events import EventBus, StepOutcome
from ampwise.records.compilation import GraphBreak

SCRIPT = str(Path(__file__).with_name("train_of_users.py"))


def record(monkeypatch, accounts):
    monkeypatch.setattr(compilation, "compiler_accounts", lambda: accounts)
    with CompileWatch(EventBus()) as watch:
        assert watch.slowed_steps == frozenset()
    return watch.record()


def test_breaks_are_counted_at_the_users_innermost_line(monkeypatch):
    import torch

    inner = (torch.__file__, 9)
    breaks = (
        Break("Tensor.item() in a graph\n  details", ((SCRIPT, 3), (SCRIPT, 7), inner)),
        Break("print", (inner,)),
        Break("Tensor.item() in a graph\n  other details", ((SCRIPT, 7),)),
    )
    seen = record(monkeypatch, CompilerAccounts(num_graphs=4, num_frames=3, num_frames_done=2, breaks=breaks))
    assert (seen.num_graphs, seen.num_frames, seen.num_left) == (4, 3, 1)
    item, other = seen.breaks
    assert (item.reason, item.count, item.line) == ("Tensor.item() in a graph", 2, 7)
    assert item.file.endswith("train_of_users.py")
    assert other == GraphBreak(reason="print", count=1)


def test_breaks_are_kept_when_the_compiler_is_reset(monkeypatch):
    accounts = CompilerAccounts(num_graphs=2, num_frames=1, num_frames_done=1, breaks=(Break("print", ()),))
    monkeypatch.setattr(compilation, "compiler_accounts", lambda: accounts)
    bus = EventBus()
    with CompileWatch(bus) as watch:
        bus.publish(StepOutcome(optimizer=None))
        monkeypatch.setattr(compilation, "compiler_accounts", lambda: accounts._replace(breaks=()))
    assert [one.reason for one in watch.record().breaks] == ["print"]


@pytest.mark.parametrize("accounts", [None, CompilerAccounts(0, 0, 0, ())])
def test_where_nothing_was_compiled_there_is_no_record(monkeypatch, accounts):
    assert record(monkeypatch, accounts) is None


def test_a_broken_graph_stands_in_the_compilers_accounts():
    import torch

    def double(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    before = compiler_accounts()
    torch.compile(double, backend="eager")(torch.ones(2))
    after = compiler_accounts()
    torch._dynamo.reset()
    assert after.num_graphs - (before.num_graphs if before else 0) == 2
    assert after.breaks[-1].frames[-1][0] == __file__
