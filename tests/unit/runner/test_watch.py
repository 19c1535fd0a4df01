import pytest

from ampwise.observe.events import EventBus, StepOutcome
from ampwise.runner.script import StopRun
from ampwise.runner.watch import StepWatch


@pytest.fixture
def clock(monkeypatch):
    now = [0]
    monkeypatch.setattr("time.perf_counter_ns", lambda: now[0])
    return now


def step(bus, optimizer=None):
    bus.publish(StepOutcome(optimizer=optimizer))


def test_steps_are_counted_between_start_and_close():
    bus = EventBus()
    watch = StepWatch(bus)
    step(bus)
    watch.start()
    step(bus)
    step(bus)
    watch.close()
    step(bus)
    assert (watch.num_steps, watch.rank) == (2, 0)


def test_a_step_is_timed_from_the_same_optimizers_last(clock):
    bus = EventBus()
    watch = StepWatch(bus)
    watch.start()
    assert watch.step_ms_median() is None
    first, second = object(), object()
    for time_ns, optimizer in [(0, first), (1, second), (4_000_000, first), (6_000_001, second), (8_000_000, first)]:
        clock[0] = time_ns
        step(bus, optimizer)
    assert watch.step_ms_median() == 4.0


def test_only_the_last_times_are_kept(clock):
    bus = EventBus()
    watch = StepWatch(bus)
    watch.start()
    for index in range(3000):
        clock[0] += 1_000_000 if index < 1900 else 2_000_000
        step(bus)
    assert watch.step_ms_median() == 2.0


def test_the_run_stops_after_the_steps_asked_for_and_everybody_heard_of_the_last():
    bus = EventBus()
    heard = []
    bus.subscribe(StepOutcome, heard.append)
    watch = StepWatch(bus, stop_after=3)
    watch.start()
    step(bus)
    step(bus)
    with pytest.raises(StopRun):
        step(bus)
    assert len(heard) == 3
    with pytest.raises(StopRun):  # a script that goes on all the same is told again
        step(bus)


def test_progress_is_a_line_a_step_and_none_for_other_ranks(tmp_path, monkeypatch):
    path = tmp_path / "progress"
    bus = EventBus()
    watch = StepWatch(bus, progress=str(path))
    watch.start()
    step(bus)
    step(bus)
    assert path.read_bytes() == b"1\n2\n"
    watch.restart()
    monkeypatch.setattr("ampwise.compat.distributed.rank", lambda: 1)
    step(bus)
    watch.close()
    assert (watch.num_steps, watch.rank) == (1, 1)
    assert path.read_bytes() == b"1\n2\n"


def test_the_rank_is_that_of_the_group_joined_after_the_first_steps_and_left_before_the_last(monkeypatch):
    bus = EventBus()
    watch = StepWatch(bus)
    watch.start()
    for is_started, rank in ((False, 0), (True, 3), (False, 0)):
        monkeypatch.setattr("ampwise.compat.distributed.is_started", lambda now=is_started: now)
        monkeypatch.setattr("ampwise.compat.distributed.rank", lambda now=rank: now)
        step(bus)
    assert watch.rank == 3
