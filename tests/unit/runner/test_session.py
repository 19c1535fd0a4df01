import pytest
import torch

from ampwise import PrecisionScheduler, Schedule, TrainStep
from ampwise._base.errors import CannotRunError
from ampwise.records.run import RunEnd
from ampwise.runner.choice import choose_once, own_gpu
from ampwise.runner.script import RefusedRun, ScriptEnd, StopRun
from ampwise.runner.session import Session, session
from ampwise.runner.spec import LaunchSpec, Malloc
from ampwise.runtime.hardware import device as runtime_device
from ampwise.runtime.hardware.device import Choice

SYSTEM = {"malloc": Malloc.SYSTEM}


@pytest.fixture(autouse=True)
def put_back():
    import random

    state, torch_state = random.getstate(), torch.get_rng_state()
    yield
    random.setstate(state)
    torch.set_rng_state(torch_state)


def train(steps):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        out = model(torch.ones(3, 4))
        out.float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return out.dtype


def test_a_session_injects_counts_and_takes_everything_back():
    with session(LaunchSpec(precision="bf16", **SYSTEM), command=("train.py",)) as current:
        assert train(3) is torch.bfloat16
    assert train(2) is torch.float32
    summary = current.summary()
    assert (summary.precision, summary.reason, summary.device) == ("bf16", "asked for", "cpu")
    assert (summary.num_steps, summary.num_skipped, summary.final_scale) == (3, 0, None)
    assert summary.allocator == "system"
    assert summary.step_ms_median > 0


def test_fp16_brings_its_scale_into_the_summary():
    with session(LaunchSpec(precision="fp16", **SYSTEM)) as current:
        assert train(2) is torch.float16
    assert current.summary().final_scale > 0


def test_a_record_holds_steps_losses_and_memory(tmp_path):
    spec = LaunchSpec(precision="fp32", record=str(tmp_path / "r"), memory_step=1, repeat=2, **SYSTEM)
    with session(spec) as current:
        train(4)
    record = current.record(ScriptEnd(status=0))
    assert (record.end, record.precision, record.variant, record.repeat) == (RunEnd.FINISHED, "fp32", "fp32", 2)
    assert [step.index for step in record.steps] == [0, 1, 2, 3]
    assert all(step.loss is not None and step.num_samples == 3 for step in record.steps)
    assert record.steps[1].time_ms is None  # slowed by the count of its storages
    assert record.peak_tensor_bytes > 0


def test_a_record_holds_the_switches_of_a_scheduler(tmp_path):
    spec = LaunchSpec(precision="fp32", record=str(tmp_path / "r"), **SYSTEM)
    with session(spec) as current:
        model = torch.nn.Linear(2, 1)
        with PrecisionScheduler(model, "bf16", triggers=[Schedule(steps=[(1, 2)])]) as scheduler:
            step = TrainStep(torch.optim.SGD(model.parameters(), lr=0.1), modules=model, precision="fp32")
            for _ in range(3):
                with step.autocast():
                    loss = model(torch.ones(1, 2)).sum()
                scheduler.step(loss, step(loss))
    record = current.record(ScriptEnd(status=0))
    assert [(one.step, one.group, one.after) for one in record.switches] == [(1, "model", "fp32"), (2, "model", "bf16")]
    assert record.left_alone.startswith("ampwise.PrecisionScheduler (bf16) made at ")


def test_equal_repeats_start_from_equal_weights(tmp_path):
    losses = []
    for repeat in (0, 0, 1):
        with session(LaunchSpec(precision="fp32", record=str(tmp_path / "r"), repeat=repeat, **SYSTEM)) as current:
            train(1)
        losses.append(current.record(ScriptEnd(status=0)).steps[0].loss)
    assert losses[0] == losses[1] != losses[2]


def test_run_leaves_the_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with session(LaunchSpec(precision="fp32", **SYSTEM)):
        assert torch.equal(torch.rand(2), expected)


def test_the_run_stops_after_the_steps_asked_for():
    with session(LaunchSpec(precision="fp32", stop_after=2, **SYSTEM)) as current, pytest.raises(StopRun):
        train(5)
    assert current.num_steps == 2
    assert current.record(ScriptEnd(status=0, stopped=True)).end is RunEnd.STOPPED


@pytest.mark.parametrize(
    ("end", "expected", "kind"),
    [
        (ScriptEnd(status=0), RunEnd.NO_STEPS, None),
        (ScriptEnd(status=3, error=SystemExit(3)), RunEnd.FAILED, "exit status 3"),
        (ScriptEnd(status=1, error=ValueError("x")), RunEnd.FAILED, "ValueError"),
        (ScriptEnd(status=1, error=MemoryError()), RunEnd.OUT_OF_MEMORY, "MemoryError"),
        (ScriptEnd(status=3, error=CannotRunError("no tf32")), RunEnd.FAILED, "ampwise"),
        (ScriptEnd(status=1, error=CannotRunError("the script's own use")), RunEnd.FAILED, "CannotRunError"),
        (ScriptEnd(status=130, error=KeyboardInterrupt()), RunEnd.KILLED, "KeyboardInterrupt"),
    ],
)
def test_the_end_is_told_from_the_scripts(end, expected, kind):
    with session(LaunchSpec(precision="fp32", **SYSTEM)) as current:
        pass
    record = current.record(end)
    assert record.end is expected
    assert (record.failure.kind if record.failure else None) == kind


def test_what_the_script_saves_goes_to_the_scratch_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with session(LaunchSpec(precision="fp32", scratch=str(tmp_path / "scratch"), **SYSTEM)):
        torch.save({}, "a.pt")
    assert (tmp_path / "scratch" / "a.pt").exists()
    assert not (tmp_path / "a.pt").exists()


def test_the_scale_is_kept_where_the_checkpoint_went(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    with session(LaunchSpec(precision="fp16", scratch=str(tmp_path / "scratch"), **SYSTEM)):
        torch.save({"optimizer": torch.optim.SGD([torch.zeros(2)]).state_dict()}, "last.pt")
    assert list((tmp_path / "home").iterdir()) == []
    assert sorted(path.name for path in (tmp_path / "scratch").iterdir()) == ["last.pt", "last.pt.ampwise.json"]


def test_what_the_machine_cannot_do_ends_the_script_and_leaves_nothing_behind(monkeypatch, capsys):
    def refuse(*_, **__):
        raise CannotRunError("it cannot")

    monkeypatch.setattr(runtime_device, "choose_precision", refuse)
    with pytest.raises(RefusedRun) as caught, session(LaunchSpec(precision="bf16")):
        pass
    assert str(caught.value.error) == "it cannot"
    assert capsys.readouterr().err == ""
    child = Session(LaunchSpec(precision="bf16"), command=(), environ={}, is_child=True)
    with pytest.raises(RefusedRun):
        child.open()
    child.close()
    assert capsys.readouterr().err == "ampwise: it cannot\n"


def test_the_process_that_trained_speaks_for_one_that_did_not(tmp_path):
    spec = LaunchSpec(precision="bf16", parts=str(tmp_path), record=str(tmp_path / "r"), **SYSTEM)
    with session(spec) as trained:
        train(2)
        trained.leave_report()
    with session(spec, command=("launcher",)) as launcher:
        pass
    launcher.leave_report()  # it made no step, so it leaves nothing
    assert len(launcher.reports()) == 1
    assert launcher.summary() == trained.summary()
    record = launcher.record(ScriptEnd(status=0))
    assert (record.end, len(record.steps)) == (RunEnd.FINISHED, 2)


def test_a_process_that_trained_itself_speaks_for_the_ranks_that_it_started_too(tmp_path, monkeypatch):
    """As Lightning does, whose first rank starts the others."""
    spec = LaunchSpec(precision="bf16", parts=str(tmp_path), record=str(tmp_path / "r"), **SYSTEM)
    for rank, num_steps in ((1, 3), (0, 9)):  # a process of rank 0 that is none of them
        with session(spec) as started, monkeypatch.context() as patch:
            train(num_steps)
            started.watch.rank = rank
            patch.setattr("os.getpid", lambda rank=rank: rank)
            started.leave_report()
    with session(spec, command=("train.py",)) as first:
        train(2)
    assert (first.summary().num_ranks, first.summary().num_steps) == (2, 2)
    record = first.record(ScriptEnd(status=0))
    assert [(one.rank, one.num_steps) for one in record.ranks] == [(0, 2), (1, 3)]


def test_processes_of_a_run_share_one_choice(tmp_path, monkeypatch):
    made = iter(
        Choice(precision=name, reason="measured", slow_factor=None, device="cpu") for name in ("bf16", "fp32", "fp32")
    )
    monkeypatch.setattr(runtime_device, "choose_precision", lambda *_, **__: next(made))
    cpu = torch.device("cpu")
    shared = LaunchSpec(parts=str(tmp_path))
    assert [choose_once(shared, device=cpu).precision for _ in range(3)] == ["bf16"] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["choice.json"]
    assert choose_once(LaunchSpec(), device=cpu).precision == "fp32"
    assert choose_once(LaunchSpec(parts=str(tmp_path / "gone")), device=cpu).precision == "fp32"


def test_who_comes_second_takes_the_firsts_choice(tmp_path, monkeypatch):
    cpu, shared = torch.device("cpu"), LaunchSpec(parts=str(tmp_path))
    first = Choice(precision="bf16", reason="first", slow_factor=2.5, device="cpu")
    second = Choice(precision="fp32", reason="second", slow_factor=None, device="cpu")

    def choose_late(*_, **__):
        monkeypatch.setattr(runtime_device, "choose_precision", lambda *_, **__: first)
        assert choose_once(shared, device=cpu) == first  # meanwhile, in another process
        return second

    monkeypatch.setattr(runtime_device, "choose_precision", choose_late)
    assert choose_once(shared, device=cpu) == first


def test_a_rank_has_its_own_gpu(fake_gpus, gpu):
    assert own_gpu({"LOCAL_RANK": "1"}) is None or torch.cuda.is_available()
    fake_gpus(gpu("A", (8, 0)), gpu("B", (8, 0)))
    assert own_gpu({"LOCAL_RANK": "1"}) == torch.device("cuda", 1)
    assert own_gpu({"LOCAL_RANK": "2"}) is None
    assert own_gpu({"LOCAL_RANK": "x"}) is None
    assert own_gpu({}) is None
