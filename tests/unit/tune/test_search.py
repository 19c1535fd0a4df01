"""The search for what has to be kept: right for every ranking, in few evaluations for a good one."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwise.tune.search import FEW, Found, OutOfTime, Trial, Unit, refine, search
from planted_faults import planted


class Faults:
    """An evaluation that passes when some units are kept, and counts itself."""

    def __init__(self, *groups, limit=None):
        self.groups = [frozenset(group) for group in groups]
        self.asked = []
        self.limit = limit

    def __call__(self, kept):
        if self.limit is not None and len(self.asked) >= self.limit:
            raise OutOfTime
        assert kept not in self.asked, "asked twice"
        self.asked.append(kept)
        return 0.5 if all(group & kept for group in self.groups) else 2.0


def units(scores, certain=()):
    return [Unit(name=f"u{i}", score=score, is_certain=i in certain) for i, score in enumerate(scores)]


def test_nothing_is_kept_where_nothing_is_needed():
    found = search(units([3.0, 1.0]), Faults())
    assert found.best.kept == ()
    assert len(found.trials) == 1


def test_a_good_ranking_names_the_fault_in_two_evaluations():
    found = search(units([0.1, 9.0, 0.2]), Faults({"u1"}))
    assert found.best.kept == ("u1",)
    assert len(found.trials) == 2


def test_a_prediction_saves_the_evaluations_before_it():
    evaluate = Faults({"u0"}, {"u1"}, {"u2"})
    found = search(units([9.0, 8.0, 7.0, 0.1, 0.1, 0.1]), evaluate, start=3)
    assert set(found.best.kept) == {"u0", "u1", "u2"}
    assert len(evaluate.asked[0]) == 3


def test_a_prediction_of_too_many_is_taken_back():
    found = search(units([9.0, 8.0, 7.0, 6.0]), Faults({"u0"}), start=4)
    assert found.best.kept == ("u0",)


def test_what_is_certain_is_kept_though_no_evaluation_shows_it():
    found = search(units([0.0, 0.0, 5.0], certain={0}), Faults({"u2"}))
    assert found.best.kept == ("u0", "u2")
    assert all("u0" in trial.kept for trial in found.trials)


def test_a_score_that_is_no_number_is_feared_most():
    evaluate = Faults({"u2"})
    found = search(units([9.0, math.inf, math.nan]), evaluate)
    assert found.best.kept == ("u2",)
    assert evaluate.asked[1:3] == [{"u1"}, {"u1", "u2"}]


def test_no_plan_is_an_answer():
    found = search(units([1.0, 2.0, 3.0]), lambda _: math.nan)
    assert found.best is None
    assert found.is_complete
    assert {len(trial.kept) for trial in found.trials} == {0, 1, 2, 3}


def test_no_units_at_all():
    assert search([], Faults()).best.kept == ()
    assert search([], lambda _: 2.0).best is None


@given(
    st.lists(st.floats(0, 1e6) | st.just(math.inf) | st.just(math.nan), min_size=1, max_size=40),
    st.data(),
)
def test_whatever_the_ranking_what_is_found_passes_and_of_few_none_can_go(scores, data):
    names = [f"u{i}" for i in range(len(scores))]
    certain = data.draw(st.sets(st.integers(0, len(scores) - 1), max_size=2))
    groups = data.draw(st.lists(st.sets(st.sampled_from(names), min_size=1, max_size=3), max_size=4))
    evaluate = Faults(*groups)
    found = search(units(scores, certain), evaluate, start=data.draw(st.integers(0, len(scores) + 3)))
    kept = set(found.best.kept)
    assert found.is_complete
    assert {f"u{i}" for i in certain} <= kept
    assert all(group & kept for group in evaluate.groups)
    needed = [one for one in kept - {f"u{i}" for i in certain} if not all(g & (kept - {one}) for g in evaluate.groups)]
    if len(kept) <= FEW and max(map(len, evaluate.asked)) <= FEW:
        assert len(needed) == len(kept) - len(certain)
    assert list(found.best.kept) == [name for name in names if name in kept]


@given(st.integers(2, 40), st.randoms())
def test_an_evaluation_that_follows_no_order_still_ends_in_what_passed(num, random):
    answers = {}

    def evaluate(kept):
        return answers.setdefault(kept, random.choice([0.5, 2.0, math.nan]))

    found = search(units([random.random() for _ in range(num)]), evaluate)
    passing = {kept for kept, error in answers.items() if error <= 1}
    assert (found.best is None) == (not passing)
    if passing:
        assert frozenset(found.best.kept) in passing
        assert len(found.best.kept) == min(map(len, passing))


@given(st.integers(0, 12))
def test_out_of_time_the_best_that_passed_is_given(limit):
    evaluate = Faults({"u3"}, {"u9"}, limit=limit)
    found = search(units([1.0] * 12), evaluate)
    assert found.is_complete == (limit > len(evaluate.asked) or len(found.trials) < limit)
    if found.best is not None:
        assert {"u3", "u9"} <= set(found.best.kept)
    assert len(found.trials) <= limit


def test_the_same_question_takes_the_same_way():
    ways = []
    for _ in range(2):
        evaluate = Faults({"u7"}, {"u21"})
        search(units([(i * 37) % 11 for i in range(30)]), evaluate)
        ways.append(evaluate.asked)
    assert ways[0] == ways[1]


@pytest.mark.parametrize("num_faults", [1, 2, 3])
def test_a_useless_ranking_costs_no_more_than_halving(num_faults):
    worst = 0
    for faults in itertools.islice(itertools.combinations(range(0, 48, 5), num_faults), 40):
        evaluate = Faults(*({f"u{i}"} for i in faults))
        search(units([1.0] * 48), evaluate)
        worst = max(worst, len(evaluate.asked))
    assert worst <= 32


def test_planted_faults_are_found_in_few_evaluations():
    """Twelve of the nets of ``benchmarks/tune.py``, which has the smallest sets beside them."""
    counts = []
    for seed in range(12):
        net = planted(seed, width=16)
        found = search(net.units(), net.error)
        assert found.best is not None
        assert net.error(frozenset(found.best.kept)) <= 1
        counts.append(len(found.trials))
    assert sorted(counts)[len(counts) // 2] <= 8
    assert max(counts) <= 60


def found_with(*kept):
    best = Trial(kept=kept, error=0.5)
    return Found(best=best, trials=(best,), is_complete=True)


@given(st.integers(1, 6), st.data())
def test_of_what_is_kept_parts_are_kept_wherever_they_are_enough(num, data):
    names = [f"u{i}" for i in range(num)]
    parts = {name: f"part of {name}" for name in data.draw(st.sets(st.sampled_from(names)))}
    whole = data.draw(st.sets(st.sampled_from(names)))
    evaluate = Faults(*({name} if name in whole else {name, parts.get(name, name)} for name in names))
    found = refine(found_with(*names), parts, evaluate)
    assert found.best.passes
    assert list(found.best.kept) == [parts[name] if name in parts and name not in whole else name for name in names]


def test_parts_that_are_all_enough_take_one_evaluation():
    evaluate = Faults({"a of u1"}, {"a of u2"}, {"u3"})
    found = refine(found_with("u1", "u2", "u3"), {"u1": "a of u1", "u2": "a of u2"}, evaluate)
    assert found.best.kept == ("a of u1", "a of u2", "u3")
    assert len(evaluate.asked) == 1


@given(st.integers(0, 4))
def test_out_of_time_what_was_found_before_is_kept(limit):
    evaluate = Faults({"u1"}, {"u2", "part of u2"}, limit=limit)
    found = refine(found_with("u1", "u2"), {"u1": "part of u1", "u2": "part of u2"}, evaluate)
    assert found.best.passes
    assert found.best.kept in {("u1", "u2"), ("u1", "part of u2")}
    if limit >= 3:
        assert (found.best.kept, found.is_complete) == (("u1", "part of u2"), True)


def test_nothing_is_made_finer_of_nothing():
    nothing = Found(best=None, trials=(), is_complete=True)
    assert refine(nothing, {"u1": "part"}, Faults()) is nothing
    cut_off = Found(best=Trial(kept=("u1",), error=0.1), trials=(), is_complete=False)
    assert refine(cut_off, {"u1": "part"}, Faults()) is cut_off
