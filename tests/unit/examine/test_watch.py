"""Watching a loop of one's own: what is recorded, under whatever runs it, and that nothing stays attached."""

import pytest
import torch

import ampwise
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
    ],
)
def test_mistakes_are_told(arguments, words):
    with pytest.raises(ampwise.UsageError, match=words):
        ampwise.watch(**arguments)


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
