import pytest
import torch

from ampwise.instruments.clocks import DeviceClock, WallClock, clock_of
from ampwise.instruments.steps import StepWatcher, leading_dimension
from ampwise.observe.events import BackwardEnded, BackwardStarted, EventBus, ForwardStarted, StepOutcome


class Loop:
    """Publishes what a training loop would."""

    def __init__(self):
        self.bus = EventBus()

    def forward(self, *args, **kwargs):
        self.bus.publish(ForwardStarted(module=None, args=args, kwargs=kwargs))

    def backward(self, *losses):
        roots = tuple(loss if isinstance(loss, torch.Tensor) else torch.tensor(loss) for loss in losses)
        self.bus.publish(BackwardStarted(roots=roots))
        self.bus.publish(BackwardEnded(roots=roots))

    def step(self, optimizer=None, **outcome):
        self.bus.publish(StepOutcome(optimizer=optimizer, **outcome))


class TickingClock:
    """Each mark is the next whole second; nothing is waited for until a time is asked."""

    def __init__(self):
        self.marks = 0
        self.asked = 0

    def mark(self):
        self.marks += 1
        return self.marks

    def ms_between(self, start, end):
        self.asked += 1
        return (end - start) * 1_000.0


@pytest.fixture
def loop():
    return Loop()


def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def test_losses_of_micro_batches_are_summed_and_the_next_step_starts_anew(loop):
    sgd = optimizer()
    with StepWatcher(loop.bus) as watcher:
        for losses in ((1.0, 2.0), (4.0,)):
            for loss in losses:
                loop.forward(torch.zeros(8, 3))
                loop.backward(loss)
            loop.step(sgd)
    records = watcher.records()
    assert [record.loss for record in records] == [3.0, 4.0]
    assert [record.num_samples for record in records] == [16, 8]
    assert [record.index for record in records] == [0, 1]


def test_a_loss_changed_in_place_afterwards_is_recorded_as_it_was(loop):
    loss = torch.tensor(2.0)
    with StepWatcher(loop.bus) as watcher:
        loop.backward(loss)
        loss.fill_(9.0)
        loop.step()
    assert watcher.records()[0].loss == 2.0


def test_alternating_optimizers_have_their_own_losses(loop):
    critic, generator = optimizer(), optimizer()
    with StepWatcher(loop.bus) as watcher:
        for step in range(2):
            loop.backward(1.0 + step)
            loop.backward(10.0)
            loop.step(critic)
            loop.backward(100.0 + step)
            loop.step(generator)
    assert [(record.optimizer, record.loss) for record in watcher.records()] == [
        (0, 11.0),
        (1, 100.0),
        (0, 12.0),
        (1, 101.0),
    ]


def test_optimizers_that_share_a_backward_pass_share_its_loss(loop):
    first, second = optimizer(), optimizer()
    with StepWatcher(loop.bus) as watcher:
        for step in range(4):
            loop.backward(1.0 + step)
            loop.step(first)
            if step % 2:
                loop.step(second)
    assert [record.loss for record in watcher.records() if record.optimizer == 1] == [2.0, 7.0]


def test_what_passes_before_the_first_backward_pass_is_told_beside(loop):
    only, clock = optimizer(), TickingClock()
    with StepWatcher(loop.bus, clock_for=lambda _: clock) as watcher:
        for _ in range(3):
            clock.mark()  # data and forward pass
            loop.backward(1.0)
            loop.backward(1.0)
            loop.step(only)
        records = watcher.records()
        assert [(record.time_ms, record.ahead_ms) for record in records] == [
            (None, None),
            (3_000, 2_000),
            (3_000, 2_000),
        ]
        assert {(record.time_ms, record.ahead_ms) for record in watcher.records(untimed={1, 2})} == {(None, None)}


def test_time_is_the_same_optimizers_period(loop):
    first, second = optimizer(), optimizer()
    clock = TickingClock()
    with StepWatcher(loop.bus, clock_for=lambda _: clock) as watcher:
        for _ in range(3):
            loop.backward(1.0)
            loop.step(first)
            loop.step(second)
        assert clock.asked == 0
    # a tick is a mark: of a first backward pass, and of each step
    assert [record.time_ms for record in watcher.records()] == [None, None, 3_000, 3_000, 3_000, 3_000]
    assert {record.ahead_ms for record in watcher.records()} == {None}


def test_a_time_that_spans_a_slowed_step_is_left_out(loop):
    first, second = optimizer(), optimizer()
    with StepWatcher(loop.bus, clock_for=lambda _: TickingClock()) as watcher:
        for _ in range(4):
            loop.step(first)
            loop.step(second)
    times = {record.index: record.time_ms for record in watcher.records(untimed=frozenset({3}))}
    assert [index for index, time in times.items() if time is None] == [0, 1, 3, 4]


def test_evaluation_and_recomputation_are_no_samples(loop):
    with StepWatcher(loop.bus) as watcher:
        with torch.no_grad():
            loop.forward(torch.zeros(100, 2))
        for _ in range(2):
            loop.forward(torch.zeros(4, 2))
            loop.bus.publish(BackwardStarted(roots=(torch.tensor(1.0),)))
            loop.forward(torch.zeros(50, 2))
            loop.bus.publish(BackwardEnded(roots=()))
            loop.step()
    assert [record.num_samples for record in watcher.records()] == [4, 4]


def test_two_networks_in_one_backward_pass_see_the_same_samples(loop):
    with StepWatcher(loop.bus) as watcher:
        loop.forward(torch.zeros(4, 2))
        loop.forward(torch.zeros(4, 7))
        loop.backward(1.0)
        loop.step()
    assert watcher.records()[0].num_samples == 4


def test_skips_and_scales_are_read_late(loop):
    stepped = torch.tensor(data=False)
    with StepWatcher(loop.bus) as watcher:
        loop.step(stepped=stepped, scale=torch.tensor(1024.0))
        loop.step(stepped=True, scale=512.0)
        loop.step()
    assert [(record.skipped, record.scale) for record in watcher.records()] == [
        (True, 1024.0),
        (False, 512.0),
        (False, None),
    ]


def test_what_is_no_loss_is_left_out(loop):
    with StepWatcher(loop.bus) as watcher:
        loop.backward(torch.zeros(3), torch.zeros((), dtype=torch.complex64), torch.zeros((), device="meta"))
        loop.step()
    assert watcher.records()[0].loss is None


def test_only_the_last_steps_are_kept_but_all_are_counted(loop):
    with StepWatcher(loop.bus, keep=3) as watcher:
        for step in range(700):
            loop.backward(float(step))
            loop.step()
    assert [record.index for record in watcher.records()] == [697, 698, 699]
    assert watcher.num_steps == 700


def test_nothing_is_fetched_from_a_device_but_once_in_a_window(loop, monkeypatch):
    fetched = []
    monkeypatch.setattr("ampwise.instruments.steps._kept", lambda loss: Remote(loss, fetched))
    with StepWatcher(loop.bus) as watcher:
        for _ in range(255):
            loop.backward(1.0)
            loop.step()
        assert fetched == []
        loop.backward(1.0)
        loop.step()
        assert len(fetched) == 256
    assert len(watcher.records()) == 256


class Remote:
    def __init__(self, loss, fetched):
        self.loss, self.fetched = loss, fetched

    def __float__(self):
        self.fetched.append(self.loss)
        return float(self.loss)


def test_an_optimizer_is_not_kept_alive(loop):
    import gc
    import weakref

    sgd = optimizer()
    reference = weakref.ref(sgd)
    with StepWatcher(loop.bus) as watcher:
        loop.step(sgd)
        del sgd
        gc.collect()
        assert reference() is None
    assert watcher.records()[0].optimizer == 0


def test_after_exit_nothing_listens(loop):
    with StepWatcher(loop.bus):
        assert loop.bus.wants(StepOutcome)
    assert not any(loop.bus.wants(kind) for kind in (ForwardStarted, BackwardStarted, BackwardEnded, StepOutcome))


def test_the_cost_is_stated(loop):
    with StepWatcher(loop.bus) as watcher:
        assert watcher.cost_ms == 0.0
        loop.step()
    assert watcher.cost_ms > 0.0


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ((torch.zeros(5, 2),), 5),
        ((None, "text", [torch.tensor(1.0), torch.zeros(3)]), 3),
        (({"ids": {"inner": (torch.zeros(7, 1),)}},), 7),
        (({}, {"x": torch.zeros(2)}), 2),
        ((1, torch.tensor(2)), None),
        ((), None),
    ],
)
def test_leading_dimension(arguments, size):
    assert leading_dimension(*arguments) == size


def test_each_device_has_its_clock():
    assert isinstance(clock_of(torch.device("cpu")), WallClock)
    assert isinstance(clock_of(torch.device("cuda", 0)), DeviceClock)


def test_the_wall_clock_counts_milliseconds():
    assert WallClock().ms_between(1.0, 1.5) == 500.0
    clock = WallClock()
    assert clock.ms_between(clock.mark(), clock.mark()) >= 0.0


def test_the_device_clock_waits_only_when_asked(monkeypatch):
    calls = []

    class FakeEvent:
        def __init__(self, **options):
            calls.append(options)

        def record(self):
            calls.append("record")

        def synchronize(self):
            calls.append("synchronize")

        def elapsed_time(self, _):
            return 3.0

    monkeypatch.setattr(torch, "Event", FakeEvent)
    clock = DeviceClock(torch.device("cuda", 1))
    start, end = clock.mark(), clock.mark()
    assert calls == [{"device": torch.device("cuda", 1), "enable_timing": True}, "record"] * 2
    assert clock.ms_between(start, end) == 3.0
    assert calls[-1] == "synchronize"


@pytest.mark.gpu
def test_device_times_are_positive():
    clock = DeviceClock(torch.device("cuda", 0))
    start = clock.mark()
    torch.ones(2048, 2048, device="cuda") @ torch.ones(2048, 2048, device="cuda")
    assert clock.ms_between(start, clock.mark()) > 0.0
