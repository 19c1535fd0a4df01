"""A seam on a toy module: chains, undo in any order, foreign patches, nesting, Dynamo."""

import itertools
import sys
import threading
import types

import pytest
import torch

from ampwise.interpose.internal import internal
from ampwise.interpose.row import Row
from ampwise.interpose.seam import intercept, intercepted, switch_off_in_worker


class Base:
    def step(self, n):
        return ("base", n)

    @classmethod
    def made(cls, n):
        return (cls.__name__, n)

    @staticmethod
    def plain(n):
        return n


class Derived(Base):
    def step(self, n):
        return ("derived", super().step(n))


@pytest.fixture
def toy(monkeypatch):
    module = types.ModuleType("ampwise_toy")
    module.double = lambda n: 2 * n
    module.Base, module.Derived = Base, Derived
    monkeypatch.setitem(sys.modules, "ampwise_toy", module)
    return module


def row(attribute="double", owner="ampwise_toy", **options):
    return Row(name=f"toy.{owner}.{attribute}", owner=owner, attribute=attribute, why="a test", **options)


def adding(n):
    return lambda proceed, x: proceed(x) + n


def test_earlier_interceptors_lie_outside_later_ones(toy):
    seen = []

    def logging(name):
        def interceptor(proceed, x):
            seen.append(name)
            return proceed(x)

        return interceptor

    undos = [intercept(row(), logging("outer")), intercept(row(), logging("inner"))]
    assert toy.double(2) == 4
    assert seen == ["outer", "inner"]
    for undo in undos:
        undo()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_undo_in_any_order_and_twice(toy, order):
    original = toy.double
    undos = [intercept(row(), adding(n)) for n in (1, 10, 100)]
    remaining = {0: 1, 1: 10, 2: 100}
    for index in order:
        assert toy.double(1) == 2 + sum(remaining.values())
        undos[index]()
        undos[index]()
        del remaining[index]
    assert toy.double is original
    assert intercepted() == ()


def test_one_interceptor_twice_is_undone_once_each(toy):
    plus = adding(1)
    first, second = intercept(row(), plus), intercept(row(), plus)
    assert toy.double(1) == 4
    first()
    assert toy.double(1) == 3
    second()
    assert toy.double(1) == 2


def test_two_rows_of_one_target_share_it(toy):
    original = toy.double
    other = Row(name="another name", owner="ampwise_toy", attribute="double", why="a test")
    undos = [intercept(row(), adding(1)), intercept(other, adding(10))]
    undos[0]()
    assert toy.double(1) == 12
    undos[1]()
    assert toy.double is original


def test_under_a_foreign_patch_it_becomes_a_pass_through(toy):
    original = toy.double
    undo = intercept(row(), adding(1))
    ours = toy.double
    toy.double = lambda n: ours(n) + 1000
    undo()
    assert toy.double(1) == 1002
    undo = intercept(row(), adding(1))
    assert toy.double(1) == 1003, "ours is used again where it lies"
    undo()
    toy.double = original
    undo = intercept(row(), adding(1))
    assert toy.double(1) == 3, "the foreign patch is gone, so ours is put there again"
    undo()
    assert toy.double is original


def test_internal_calls_pass_by(toy):
    undo = intercept(row(), adding(1))
    with internal():
        assert toy.double(1) == 2
    assert toy.double(1) == 3
    undo()


@pytest.mark.parametrize("attribute", ["made", "plain", "step"])
def test_methods_of_every_kind(toy, attribute):
    original = vars(Base)[attribute]
    undo = intercept(row(attribute, "ampwise_toy:Base"), lambda proceed, *args: ("seen", proceed(*args)))
    assert getattr(Base(), attribute)(1)[0] == "seen"
    assert type(vars(Base)[attribute]) is type(original)
    undo()
    assert vars(Base)[attribute] is original


def test_an_inherited_attribute_is_taken_away_again(toy):
    undo = intercept(row("made"), lambda proceed, *args: ("seen", proceed(*args)), owner=Derived)
    assert Derived.made(1) == ("seen", ("Derived", 1))
    assert Base.made(1) == ("Base", 1)
    undo()
    assert "made" not in vars(Derived)


def test_outermost_rows_see_a_call_of_super_once(toy):
    step = row("step", "ampwise_toy:Base", outermost=True, per_class=True)
    seen = []

    def interceptor(proceed, self, n):
        seen.append(type(self).__name__)
        return proceed(self, n)

    undos = [intercept(step, interceptor, owner=cls) for cls in (Base, Derived)]
    assert Derived().step(1) == ("derived", ("base", 1))
    assert Base().step(1) == ("base", 1)
    with pytest.raises(TypeError):
        Derived().step()
    assert Derived().step(2) == ("derived", ("base", 2))
    for undo in undos:
        undo()
    assert seen == ["Derived", "Base", "Derived"]


def test_outermost_is_each_threads_own(toy):
    seen = []

    def interceptor(proceed, x):
        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=toy.double, args=(5,))
            thread.start()
            thread.join()
        seen.append(x)
        return proceed(x)

    undo = intercept(row(outermost=True), interceptor)
    toy.double(1)
    undo()
    assert seen == [5, 1]


def test_a_worker_drops_what_does_not_belong_there(toy):
    undos = [
        intercept(row(), adding(1)),
        intercept(row("made", "ampwise_toy:Base", in_workers=True), lambda p, *a: p(*a)),
    ]
    switch_off_in_worker()
    assert toy.double(1) == 2
    assert intercepted() == ("toy.ampwise_toy:Base.made",)
    for undo in undos:
        undo()


def test_interceptors_are_seen_at_a_graph_break_and_are_not_compiled(toy):
    seen, compiled = [], []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    toy.double = lambda x: x.sin() * 2

    def interceptor(proceed, x):
        seen.append(x.cos())
        return proceed(x)

    def region(x):
        y = x + 1
        torch._dynamo.graph_break()
        return toy.double(y)

    undo = intercept(row(), interceptor)
    result = torch.compile(region, backend=backend)(torch.zeros(2))
    undo()
    torch._dynamo.reset()
    assert torch.equal(result, torch.ones(2).sin() * 2)
    assert len(compiled) == 2
    assert not any("cos" in str(graph.graph) for graph in compiled)
