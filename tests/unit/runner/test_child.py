import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from ampwise._base.errors import RecordError
from ampwise.records.run import RunEnd
from ampwise.runner.child import run_child
from ampwise.runner.script import Target
from ampwise.runner.spec import LaunchSpec

TRAIN = """
import sys, torch
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    model(torch.ones(3, 4)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save(model.state_dict(), "model.pt")
    print("step", step, "lr", sys.argv[1])
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One measured run, looked at by several tests."""
    folder = tmp_path_factory.mktemp("child")
    (folder / "train.py").write_text(TRAIN)
    (folder / "model.pt").write_text("the user's")
    told = []
    spec = LaunchSpec(precision="bf16", stop_after=12, memory_step=2, repeat=1, scratch=str(folder / "scratch"))
    target = Target(path="train.py", argv=("3e-4",))
    record = run_child(target, spec, on_step=told.append, cwd=str(folder), output=str(folder.parent / "output"))
    return folder, record, told


def test_a_measured_run_brings_its_record_home(trained):
    _, record, _ = trained
    assert (record.end, record.failure) == (RunEnd.STOPPED, None)
    assert (record.precision, record.repeat, len(record.steps)) == ("bf16", 1, 12)
    assert record.peak_tensor_bytes > 0


def test_progress_is_told_up_to_the_last_step(trained):
    assert trained[2] == sorted(set(trained[2]))
    assert trained[2][-1] == 12


def test_nothing_of_the_users_is_overwritten(trained):
    folder = trained[0]
    assert (folder / "model.pt").read_text() == "the user's"
    assert len(list((folder / "scratch").glob("bf16-1-*/model.pt"))) == 1


def test_what_the_script_printed_is_kept(trained):
    lines = (trained[0].parent / "output" / "stdout").read_text().splitlines()
    assert lines[0] == "step 0 lr 3e-4"
    assert len(lines) == 11  # the twelfth step ended the script before it spoke of it


def run(tmp_path, text, **options):
    (tmp_path / "script.py").write_text(text)
    return run_child(Target(path="script.py"), replace(LaunchSpec(), **options), cwd=str(tmp_path))


@pytest.mark.parametrize(
    ("text", "end", "kind", "message"),
    [
        ("x = 1", RunEnd.NO_STEPS, None, None),
        ("raise ValueError('bad data')", RunEnd.FAILED, "ValueError", "bad data"),
        ("raise MemoryError", RunEnd.OUT_OF_MEMORY, "MemoryError", ""),
        ("x = (", RunEnd.FAILED, "SyntaxError", "'(' was never closed (script.py, line 1)"),
        ("import sys\nprint('lost', file=sys.stderr)\nsys.exit(3)", RunEnd.FAILED, "exit status 3", "lost"),
        ("import sys\nsys.exit('no data')", RunEnd.FAILED, "exit status 1", "no data"),
        ("import os\nos.write(2, b'gone')\nos._exit(4)", RunEnd.FAILED, "exit status 4", "gone"),
        ("import os\nos.kill(os.getpid(), 9)", RunEnd.KILLED, "signal 9", ""),
        ("import no_such_thing", RunEnd.FAILED, "ModuleNotFoundError", "No module named 'no_such_thing'"),
    ],
)
def test_however_the_script_ends_there_is_a_record(tmp_path, text, end, kind, message):
    record = run(tmp_path, text, precision="bf16", compile=True)
    assert (record.end, record.steps, record.variant) == (end, (), "bf16+compile")
    assert (record.failure and record.failure.kind) == kind
    if kind == "MemoryError" or message is None:
        return
    assert record.failure.message.endswith(message)


def test_the_place_of_an_error_is_the_users(tmp_path):
    record = run(tmp_path, "import json\n\njson.loads('{')")
    assert record.failure.where == f"{tmp_path}/script.py:3"


def test_a_record_of_another_ampwise_is_no_fault_of_the_scripts(tmp_path):
    text = """
import atexit, json, pathlib, sys
path = pathlib.Path(json.loads(json.loads(sys.orig_argv[-1])["spec"])["record"])
atexit.register(lambda: path.write_text('{"variant": "fp32", "of": "another version"}'))
"""
    with pytest.raises(RecordError, match=r"record\.json"):
        run(tmp_path, text)


def test_what_torchs_profiler_prints_is_not_the_scripts(tmp_path):
    text = "import sys\nprint('lost\\nUSDT:1 profiler_start\\nUSDT:1 profiler_stop', file=sys.stderr)\nsys.exit(3)"
    assert run(tmp_path, text).failure.message == "lost"


def test_a_script_that_is_not_there_is_told_by_the_record(tmp_path):
    record = run_child(Target(path="none.py"), LaunchSpec(), cwd=str(tmp_path))
    assert record.failure.kind == "ampwise"
    assert "can't open file" in record.failure.message


def test_the_script_meets_a_quiet_world(tmp_path):
    record = run(
        tmp_path,
        "import os, sys, json\n"
        "json.dump([sys.stdin.read(), os.environ['WANDB_MODE'], os.environ['PYTHONHASHSEED']], open('seen.json', 'w'))",
        scratch=str(tmp_path / "scratch"),
        repeat=3,
    )
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen == ["", "offline", os.environ.get("PYTHONHASHSEED", "3")]
    assert record.failure is None


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@needs_proc
def test_what_the_script_left_running_is_ended(tmp_path):
    run(
        tmp_path,
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open('pid', 'w').write(str(p.pid))",
    )
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_running(pid))


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_run_outlives_its_parent(tmp_path, number):
    (tmp_path / "script.py").write_text(
        "import os, time\nopen('pid.new', 'w').write(str(os.getpid()))\nos.replace('pid.new', 'pid')\ntime.sleep(600)\n"
    )
    driver = (
        "from ampwise.runner.child import run_child\nfrom ampwise.runner.script import Target\n"
        "from ampwise.runner.spec import LaunchSpec\nrun_child(Target(path='script.py'), LaunchSpec(), on_step=print)"
    )
    process = subprocess.Popen([sys.executable, "-c", driver], cwd=tmp_path, stderr=subprocess.PIPE)
    wait_until((tmp_path / "pid").exists)
    pid = int((tmp_path / "pid").read_text())
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert (b"KeyboardInterrupt" in err) is (number == signal.SIGINT)
    wait_until(lambda: not is_running(pid))


@pytest.mark.slow
def test_a_precision_the_machine_lacks_is_told_by_the_record(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    record = run(tmp_path, TRAIN, precision="tf32")
    assert (record.end, record.failure.kind) == (RunEnd.FAILED, "ampwise")
    assert 'precision "tf32"' in record.failure.message


@pytest.mark.slow
def test_variants_compile_their_outermost_modules_whole(tmp_path):
    text = TRAIN.replace("torch.nn.Linear(4, 2)", "torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))")
    text = text.replace("range(1000)", "range(6)").replace("sys.argv[1]", "0")
    text += "from torch._dynamo.utils import counters\nsys.exit(f\"frames {counters['frames']['ok']}\")\n"
    record = run(tmp_path, text, precision="bf16", compile=True)
    assert (record.failure.message.splitlines()[-1], len(record.steps)) == ("frames 1", 6)


@pytest.mark.slow
def test_of_processes_that_train_together_the_first_ranks_record_comes_home(tmp_path):
    text = (
        "import os, torch, torch.distributed as dist, torch.multiprocessing as mp\n"
        "def work(rank):\n"
        "    store = 'file://' + os.path.abspath('store')\n"
        "    dist.init_process_group('gloo', init_method=store, rank=rank, world_size=2)\n"
        "    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for step in range(100):\n"
        "        model(torch.full((2, 4), float(rank))).pow(2).mean().backward()\n"
        "        optimizer.step()\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(work, nprocs=2)\n"
    )
    record = run(tmp_path, text, precision="bf16", stop_after=4)
    assert (record.failure, record.end, len(record.steps)) == (None, RunEnd.STOPPED, 4)
