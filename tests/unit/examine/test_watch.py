"""Watching a loop of one's own: what is recorded, under whatever runs it, and that nothing stays attached."""

import threading

import pytest
import torch

import ampwise
from ampwise.compat.operators import is_any_mode_on
from ampwise.examine.watch import ALL
from ampwise.records.files import load_recording
from ampwise.records.run import Role, RunEnd

pytestmark = [pytest.mark.filterwarnings("ignore:.*profiler.*"), pytest.mark.usefixtures("alone")]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)

    def forward(self, x):
        return {"out": self.head(torch.relu(self.body(x)))}


def step(model, optimizer, dtype=torch.bfloat16):
    with torch.autocast("cpu", dtype=dtype):
        loss = model(torch.ones(2, 4))["out"].float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def trained(num_steps=4, **options):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ampwise.watch(model, optimizer, **options) as rec:
        for _ in range(num_steps):
            step(model, optimizer)
    return rec


def test_a_loop_with_its_own_autocast():
    run = trained(12).recording.runs[0]
    assert (run.role, run.end, run.precision, len(run.steps)) == (Role.WATCHED, RunEnd.FINISHED, "bf16", 12)
    assert "torch.autocast entered at tests/unit/examine/test_watch.py" in run.left_alone
    names = "usage layout syncs casts memory nonfinite against_fp32 numerics kernels process"
    sections = names.split()
    assert set(sections) <= set(ALL)
    assert [name for name in sections if getattr(run, name) is None] == []
    assert {"body", "head"} <= {call.site.module for call in run.casts.calls}


def test_only_the_instruments_asked_for():
    run = trained(instruments=["usage"]).recording.runs[0]
    assert run.usage is not None
    assert run.casts is run.memory is run.numerics is None


def test_it_is_saved_and_diagnosed(tmp_path):
    rec = trained(instruments=("usage", "nonfinite"))
    path = rec.save(tmp_path / "recording.json")
    saved = load_recording(path)
    assert saved.runs == rec.recording.runs
    diagnosis = ampwise.diagnose(rec)
    assert diagnosis == ampwise.diagnose(rec.recording)
    assert diagnosis.is_healthy
    assert "well: no loss, gradient or weight was infinite or NaN in 4 steps" in str(diagnosis)


def test_an_exception_passes_through_and_is_evidence():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = ampwise.watch(model, optimizer, instruments=("usage",))

    def loop():
        step(model, optimizer)
        model.body.half()
        model(torch.ones(2, 4))

    with pytest.raises(RuntimeError, match="same dtype"), watch as rec:
        loop()
    run = rec.recording.runs[0]
    assert (run.end, len(run.steps), run.crash.site.module, run.crash.site.op) == (RunEnd.FAILED, 1, "body", "linear")
    (finding,) = (one for one in ampwise.diagnose(rec).findings if one.rule == "DR601")
    assert "input in fp32 and self.weight in fp16" in finding.message
    assert "DR601 at tests/unit/examine/test_watch.py:" in str(ampwise.diagnose(rec))


def test_who_stops_it_by_ctrl_c_is_told_of_no_crash():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = ampwise.watch(model, optimizer, instruments=("usage",))

    def loop():
        step(model, optimizer)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), watch as rec:
        loop()
    assert rec.recording.runs[0].end is RunEnd.KILLED
    assert ampwise.diagnose(rec).is_healthy


def test_several_models_by_their_names():
    first, second = Net(), Net()
    with ampwise.watch({"gen": first, "disc": second}, instruments=("layout",)) as rec:
        first(torch.ones(1, 4))
        second(torch.ones(1, 4))
    assert {one.name for one in rec.recording.runs[0].layout.modules} >= {"gen.body", "disc.head"}


def test_ampwises_own_step_is_watched():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train_step = ampwise.TrainStep(optimizer, modules=model, precision="bf16")
    with ampwise.watch(model, optimizer, instruments=("usage", "nonfinite")) as rec:
        for _ in range(3):
            with train_step.autocast():
                loss = model(torch.ones(2, 4))["out"].mean()
            train_step(loss)
    run = rec.recording.runs[0]
    assert (len(run.steps), run.usage.misuses) == (3, ())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"instruments": ["memroy"]}, 'did you mean "memory"'),
        ({"instruments": "memory"}, r'instruments=\("memory",\)'),
        ({"model": [1]}, "watch\\(\\) was given"),
        ({"optimizer": torch.nn.ReLU()}, "ReLU as its optimizer; give one torch.optim.Optimizer"),
    ],
)
def test_mistakes_are_told(arguments, words):
    with pytest.raises(ampwise.UsageError, match=words):
        ampwise.watch(**arguments)


def test_what_is_no_recording_is_told():
    with pytest.raises(ampwise.UsageError, match=r"diagnose\(\) was given int; give what ampwise.watch\(\) returned"):
        ampwise.diagnose(3)


def test_where_nothing_was_measured_nothing_is_called_well():
    with ampwise.watch(instruments=()) as rec:
        pass
    assert str(ampwise.diagnose(rec)) == "Nothing was found, and nothing was measured that would show a fault."


def test_weights_updated_by_hand_are_steps_though_another_model_has_an_optimizer():
    other = torch.optim.SGD(Net().parameters(), lr=0.01)
    model = Net()
    with ampwise.watch(model, instruments=("usage",)) as rec:
        for _ in range(3):
            model(torch.ones(2, 4))["out"].sum().backward()
            with torch.no_grad():
                for one in model.parameters():
                    one.sub_(0.01 * one.grad)
                    one.grad = None
    assert len(rec.recording.runs[0].steps) == 3
    del other


def test_watches_that_end_in_the_wrong_order_leave_nothing_attached():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    first = ampwise.watch(model, optimizer, instruments=("nonfinite",))  # watches every operator, so does the second
    second = ampwise.watch(model, optimizer, instruments=("nonfinite",))
    first.__enter__()
    step(model, optimizer)
    second.__enter__()
    step(model, optimizer)
    first.__exit__(None, None, None)
    step(model, optimizer)
    second.__exit__(None, None, None)
    assert not is_any_mode_on()
    assert first.recording.runs[0].nonfinite.traced_steps == (0, 1)


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_a_watch_goes_on_hearing_of_the_loop_when_one_that_began_before_or_after_it_ends(first_ends_first):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watches = [ampwise.watch(model, optimizer, instruments=("usage",)) for _ in range(2)]
    for one in watches:
        one.__enter__()
        step(model, optimizer)
    for one in watches if first_ends_first else reversed(watches):
        one.__exit__(None, None, None)
        step(model, optimizer)
    num_steps = [len(one.recording.runs[0].steps) for one in watches]
    assert num_steps == ([2, 2] if first_ends_first else [3, 1])


def test_a_record_of_casts_outlives_the_watch_that_it_began_under():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ampwise.watch(model, optimizer, instruments=("usage",)) as rec:
        casts = ampwise.record_casts()
        casts.__enter__()
        step(model, optimizer)
    step(model, optimizer)
    casts.__exit__(None, None, None)
    step(model, optimizer)
    assert (len(rec.recording.runs[0].steps), len(casts.record.steps)) == (1, 2)


def test_a_generator_that_is_left_early_lets_go():
    def loop():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with ampwise.watch(model, optimizer, instruments=("nonfinite", "usage")) as rec:
            while True:
                step(model, optimizer)
                yield rec

    running = loop()
    rec = [next(running) for _ in range(4)][-1]
    running.close()
    assert not is_any_mode_on()
    run = rec.recording.runs[0]
    assert (len(run.steps), run.end) == (4, RunEnd.FINISHED)


def test_a_loop_in_another_thread_is_watched():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ampwise.watch(model, optimizer) as rec:
        thread = threading.Thread(target=lambda: [step(model, optimizer) for _ in range(13)])
        thread.start()
        thread.join()
    assert len(rec.recording.runs[0].steps) == 13
    assert not is_any_mode_on()


def test_batches_that_raise_and_are_left_out_end_no_watch():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    bad = {2, 3, 7, 9}

    def fails(*_):
        raise ValueError("bad batch")

    with ampwise.watch(model, optimizer) as rec:
        for number in range(16):
            handle = model.head.register_forward_hook(fails) if number in bad else None
            try:
                step(model, optimizer)
            except ValueError:
                handle.remove()
    run = rec.recording.runs[0]
    assert (len(run.steps), run.end, run.failure) == (12, RunEnd.FINISHED, None)
    assert not ampwise.diagnose(rec).findings


def test_it_watches_once():
    rec = ampwise.watch(instruments=("usage",))
    with pytest.raises(ampwise.UsageError, match="nothing was watched yet"):
        _ = rec.recording
    with rec:
        pass
    with pytest.raises(ampwise.UsageError, match="for another loop"), rec:
        pass


def test_the_memory_that_is_held_now():
    model = torch.nn.Linear(256, 1024)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 256)).sum().backward()
    optimizer.step()
    text = ampwise.memory_summary()
    rows = [line.split(maxsplit=1)[0] for line in text.splitlines()]
    assert rows[:4] == ["cpu:", "parameter", "gradient", "optimizer"]


def test_its_help_names_every_instrument():
    assert [name for name in ALL if f"``{name}``" not in ampwise.watch.__doc__] == []
