"""A process of several that dies, or is told to leave: the others learn of it, and training goes on exactly."""

import json
import os
import signal
from pathlib import Path

import pytest

from warm import fresh

SCRIPT = Path(__file__).parents[1] / "helpers" / "elastic.py"
SHARDS = SCRIPT.with_name("elastic_shards.py")
NUM_STEPS = 12
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")


def torchrun(folder, *options, num_ranks, num_restarts=0, timeout_s=240):
    folder.mkdir(exist_ok=True)
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    command += [f"--max-restarts={num_restarts}", SCRIPT, folder, NUM_STEPS, *options]
    # After a restart the ranks must not find the addresses of those before in torchrun's own store.
    environment = {**ONE_THREAD, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return fresh(*command, env=environment, timeout=timeout_s, cwd=folder)


def ends(folder, num_ranks):
    return [json.loads((folder / f"end{rank}").read_text()) for rank in range(num_ranks)]


def forked(tmp_path, num_ranks, *launches):
    """The statuses and the checkpoints after each of several launches, and what was said on stderr."""
    code = f"""
import sys, json
from pathlib import Path
sys.path.insert(0, {str(SCRIPT.parent)!r})
from elastic import launch
def run(folder, *options):
    statuses = launch({num_ranks}, folder, *options)
    return statuses, sorted(one.name for one in folder.glob("step*"))
print(json.dumps([run(Path(name), *options) for name, *options in json.loads(sys.argv[1])]))
"""
    given = [[str(tmp_path / name), NUM_STEPS, *options] for name, *options in launches]
    done = fresh("-c", code, json.dumps(given), env=ONE_THREAD, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_one_rank_told_to_leave_takes_all_along_after_the_same_step(tmp_path):
    (left, files), (resumed, _), (whole, _) = forked(tmp_path, 2, ("a", "--preempt", 1, 4), ("a",), ("whole",))[0]
    assert left == resumed == whole == [0, 0]
    assert files == ["step5.rank0", "step5.rank1"]
    assert ends(tmp_path / "a", 2) == ends(tmp_path / "whole", 2)


def test_when_a_rank_is_killed_the_other_ends_with_an_explanation(tmp_path):
    ((statuses, _),), said = forked(tmp_path, 2, ("a", "--kill", 1, 7))
    assert statuses == [1, -signal.SIGKILL]
    assert "Another process of this training has ended or cannot be reached" in said


@pytest.mark.parametrize(
    "kills",
    [
        [(0, 5), (1, 2)],
        pytest.param([(rank, place) for rank in (0, 1) for place in range(1, 9 - 5 * rank)], marks=pytest.mark.slow),
    ],
)
def test_a_rank_killed_while_shards_are_written_costs_only_that_checkpoint(tmp_path, kills):
    """The first rank writes three files at each save, its shards, the index and the header; the others write one."""
    done = fresh(SHARDS, tmp_path, "2", "4", json.dumps(kills), env=ONE_THREAD, timeout=600)
    assert done.returncode == 0, done.stderr
    whole, *killed = json.loads(done.stdout)
    assert whole["statuses"] == [[0, 0]]
    assert len(killed) == len(kills)
    for (rank, place), one in zip(kills, killed, strict=True):
        first, second = one["statuses"]
        assert (first[rank], first[1 - rank], second) == (-signal.SIGKILL, 1, [0, 0])
        num_saved = (place - 1) // (1 if rank else 3)
        for end, expected in zip(one["ends"], whole["ends"], strict=True):
            assert end == {**expected, "first": num_saved}
        assert one["left"] == ["shards"]


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_training_resumes_exactly(tmp_path):
    whole = torchrun(tmp_path / "whole", num_ranks=4)
    assert whole.returncode == 0, whole.stderr
    expected = ends(tmp_path / "whole", 4)
    assert len({one["trained"] for one in expected}) == 1
    assert len({str(one["random"]) for one in expected}) == 4
    alone = torchrun(tmp_path / "alone", "--kill", 2, 7, num_ranks=4, timeout_s=120)
    assert alone.returncode == 1
    assert "Root Cause" in alone.stderr
    assert "Signal 9 (SIGKILL)" in alone.stderr
    restarted = torchrun(tmp_path / "killed", "--kill", 2, 7, num_ranks=4, num_restarts=1)
    assert restarted.returncode == 0, restarted.stderr
    assert ends(tmp_path / "killed", 4) == expected
