import json
from dataclasses import replace
from pathlib import Path

import pytest

from ampwise.records.files import from_json
from ampwise.records.run import Failure, RunEnd, RunRecord
from ampwise.runner import team as team_module
from ampwise.runner.bootstrap import spec_to_json
from ampwise.runner.script import Target
from ampwise.runner.spec import LaunchSpec
from ampwise.runner.store import Team
from ampwise.runner.summary import ProcessReport, RunSummary, together
from ampwise.runner.team import Lead, follow, gather_reports, put_report

SPEC = LaunchSpec(precision="fp32")
TARGET = Target(path="train.py")
RUN = RunRecord(variant="fp32", precision="fp32", reason="asked for", repeat=0, end=RunEnd.FINISHED)
SUMMARY = RunSummary(
    precision="bf16",
    reason="asked for",
    device="cpu",
    num_steps=6,
    step_ms_median=40.0,
    num_skipped=0,
    final_scale=None,
    allocator="tuned",
)


class Store:
    """torchrun's, in a dict."""

    def __init__(self):
        self.words = {}

    def set(self, key, value):
        self.words[key] = value.encode()

    def get(self, key):
        return self.words[key]

    def check(self, keys):
        return all(key in self.words for key in keys)


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes only where somebody sleeps."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def teams(size=2):
    store = Store()
    return [Team(rank=rank, size=size, address="host:1/x", store=store) for rank in range(size)]


def test_a_word_is_waited_for_as_long_as_somebody_says_that_it_will_come(clock):
    assert teams()[0].wait_for("word", seconds=5, pulse="pulse") is None
    begun = clock[0]
    alive = Store()
    alive.check = lambda keys: keys == ["pulse"] or clock[0] > begun + 60
    alive.get = lambda key: str(min(clock[0], begun + 60) // 2).encode() if key == "pulse" else b"done"
    waiting = Team(rank=0, size=2, address="host:1/x", store=alive)
    assert waiting.wait_for("word", seconds=5, pulse="pulse") == "done"
    assert 60 < clock[0] - begun < 61


def test_a_rank_of_which_nothing_comes_is_named(clock, monkeypatch):
    monkeypatch.setattr(team_module, "run_child", lambda *_, **__: RUN)
    lead = Lead(teams(3)[0])
    record = lead(TARGET, SPEC, on_step=print, output=None)
    assert record.notes == ("nothing came of rank 1, 2: their part is missing here",)
    assert 2 * 35 <= clock[0] - 100 < 2 * 36


def test_a_rank_says_that_it_is_at_work(clock, monkeypatch):
    leader, other = teams()
    beats = []

    def run(*_, give_up, **__):
        for _ in range(120):
            give_up()
            clock[0] += 0.1
            beats.append(leader.get("pulse/1/1"))
        other.put("done", "1")
        return RUN

    monkeypatch.setattr(team_module, "run_child", run)
    leader.put("order/1", json.dumps({"spec": spec_to_json(SPEC), "output": None, "port": 1}))
    assert follow(other, TARGET) == 0
    assert len(set(beats)) == 3  # every five seconds of twelve
    assert leader.get("record/1/1")


@pytest.mark.parametrize("end", [RunEnd.FAILED, RunEnd.FINISHED])
def test_what_a_rank_printed_is_kept_where_it_failed(clock, monkeypatch, tmp_path, end):
    leader, other = teams()

    def run(*_, output, **__):
        Path(output).mkdir()
        other.put("done", "1")
        return replace(RUN, end=end, failure=Failure(kind="KeyError", message="17") if end is RunEnd.FAILED else None)

    monkeypatch.setattr(team_module, "run_child", run)
    order = {"spec": spec_to_json(SPEC), "output": str(tmp_path / "bf16"), "port": 1}
    leader.put("order/1", json.dumps(order))
    follow(other, TARGET)
    kept = tmp_path / "bf16-rank1"
    assert kept.exists() is (end is RunEnd.FAILED)
    notes = from_json(leader.get("record/1/1"), RunRecord).notes
    assert notes == ((f"what it printed is kept in {kept}",) if kept.exists() else ())


@pytest.mark.parametrize(("end", "seconds"), [(RunEnd.FAILED, 15), (RunEnd.STOPPED, 90), (RunEnd.FINISHED, None)])
def test_a_rank_ends_some_time_after_another_has(clock, monkeypatch, end, seconds):
    """One that waits for a rank that was stopped, in a reduction of NCCL's, would wait ten minutes."""
    leader, other = teams()
    failure = Failure(kind="KeyError", message="17") if end is RunEnd.FAILED else None
    given_up = []

    def run(*_, give_up, output, **__):
        if output == "leader":
            return replace(RUN, end=end, failure=failure)
        begun = clock[0]
        while clock[0] - begun < 200:
            if give_up():
                given_up.append(clock[0] - begun)
                break
            clock[0] += 0.5
        other.put("done", "1")
        return RUN

    monkeypatch.setattr(team_module, "run_child", run)
    Lead(leader)(TARGET, SPEC, on_step=print, output="leader")
    follow(other, TARGET)
    assert given_up == ([] if seconds is None else [pytest.approx(seconds, abs=1)])


def test_a_report_is_of_the_rank_that_torchrun_says(clock):
    leader, other, _ = teams(3)
    put_report(other, ProcessReport(rank=0, summary=SUMMARY))  # the script joined nobody: it knew no rank
    assert [one.rank for one in gather_reports(leader)] == [1]
    assert 20 <= clock[0] - 100 < 21  # all that are missing together


def test_scales_that_differ_are_told():
    scales = [replace(SUMMARY, final_scale=one) for one in (65536.0, None)]
    told = together([ProcessReport(rank=rank, summary=one) for rank, one in enumerate(scales)])
    assert told.notes == ("the ranks ended with different loss scales: rank 0 65536, rank 1 none",)


def test_a_rank_without_a_batch_does_not_speak_for_those_that_had_some():
    idle = replace(SUMMARY, num_steps=0, step_ms_median=None)
    told = together([ProcessReport(rank=0, summary=idle), ProcessReport(rank=1, summary=SUMMARY)])
    assert (told.num_steps, told.num_ranks, told.step_ms_median) == (6, 2, 40.0)
    assert told.notes == ("the ranks made different numbers of steps: rank 0 0, rank 1 6",)
