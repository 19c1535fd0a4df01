"""What training survives, counted at full size: kills, flipped bits, bad batches, a lost process.

No times: each row tells how often a fault was tried, and how often training went on exactly as without it. The same
faults at a smaller size are tests.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from _common import OUT, ROOT

HELPERS = ROOT / "tests" / "helpers"
NUM_RANKS, NUM_STEPS = 4, 12


@dataclass(frozen=True, kw_only=True)
class Counted:
    """One fault: how often it was tried and survived."""

    fault: str
    tried: int
    survived: int
    how: str


def output_of(*command: object) -> str:
    """What a helper prints; the environment of ``torchrun`` keeps addresses of dead ranks out of a restart."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, check=False, env=environment, timeout=1800
    )
    if done.returncode:
        sys.exit(f"{command}: {done.stderr[-2000:]}")
    return done.stdout


def kills(folder: Path, num: int) -> Counted:
    ends = json.loads(output_of(HELPERS / "resumable.py", folder, json.dumps(list(range(2, 2 + num)))))["ends"]
    survived = sum(one["killed"] and one["same"] for one in ends)
    return Counted(
        fault="kill -9, resumed", tried=num, survived=survived, how="equal to the run never killed, bit for bit"
    )


def flipped_bits(folder: Path, num: int) -> Counted:
    told, harmless = json.loads(output_of(HELPERS / "damage.py", folder, num, 7))
    how = f"{told} refused with a clear error, {harmless} in bytes that hold nothing"
    return Counted(fault="one bit flipped in a checkpoint", tried=num, survived=told + harmless, how=how)


def flipped_shard_bits(folder: Path, num: int) -> Counted:
    told, harmless = json.loads(output_of(HELPERS / "damage.py", folder, num, 7, "--shards"))
    how = f"{told} refused with a clear error, {harmless} in bytes that hold nothing"
    return Counted(fault="one bit flipped in a checkpoint of shards", tried=num, survived=told + harmless, how=how)


def soak(num: int) -> Counted:
    report = json.loads(output_of("-W", "error", HELPERS / "soak.py", num, 3))
    is_well = report["finite"] and abs(report["end"][0] - report["half"][0]) <= 4 and report["grown_bytes"] < 2**20
    low, high = report["scale"]
    how = (
        f"{report['skipped']} steps skipped, scale {low:g}..{high:g}, {report['end'][0]} live tensors "
        f"({report['half'][0]} at half time), {report['grown_bytes']} B grown"
    )
    return Counted(fault="steps with overflows, NaN, changing groups", tried=num, survived=num * is_well, how=how)


def lost_ranks(folder: Path, num: int) -> Counted:
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_RANKS}", "--max-restarts=1"]

    def train(name: str, *options: object) -> list[str]:
        place = folder / name
        place.mkdir()
        output_of(*launch, HELPERS / "elastic.py", place, NUM_STEPS, *options)
        return [(place / f"end{rank}").read_text() for rank in range(NUM_RANKS)]

    whole = train("whole")
    same = sum(train(f"killed{at}", "--kill", at % NUM_RANKS, 2 + at) == whole for at in range(num))
    return Counted(
        fault=f"one of {NUM_RANKS} ranks killed", tried=num, survived=same, how="restarted by torchrun, equal"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    size = 10 if parser.parse_args().quick else 1
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("kills", "flips", "shards", "ranks"):
            (folder / part).mkdir()
        rows.append(kills(folder / "kills", 50 // size))
        rows.append(flipped_bits(folder / "flips", 1000 // size))
        rows.append(flipped_shard_bits(folder / "shards", 1000 // size))
        rows.append(soak(10_000 // size))
        rows.append(lost_ranks(folder / "ranks", max(1, 5 // size)))
    for one in rows:
        print(f"{one.fault:45} {one.survived:6} of {one.tried:6}   {one.how}")
    OUT.mkdir(exist_ok=True)
    (OUT / "faults.json").write_text(json.dumps([vars(one) for one in rows], indent=1))


if __name__ == "__main__":
    main()
