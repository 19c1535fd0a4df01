"""What the update phase costs between ranks: collectives, bytes and waits a step, by ranks and by parameters.

Counts, no times: they are the same on a busy machine. Ranks are processes with gloo on the CPU. For 1e8 and 1e9
parameters, and for 1,000 ranks, the shards are shapes without memory (the meta device) and the ranks torch's fake
group: ampwise's own reduction runs, and what it hands over is counted. `torch` is its own sequence: unscale_,
clip_grad_norm_, step, update. ampwise takes the way it takes on a GPU, where a number is not to be looked at; reads are
counted of SGD, which has no step counts of its own to read.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from unittest import mock

from _common import OUT

RANKS = (1, 2, 4)
NUM_PARAMETERS = (100_000, 1_000_000, 10_000_000)
ON_META = (100_000_000, 1_000_000_000)
RANKS_ON_META = (2, 4, 1000)
WIDTH = {100_000: 100, 1_000_000: 320, 10_000_000: 1_000}
LAYERS = 10


class Traffic:
    """Collectives, the bytes handed to them, and how often the host asked a tensor for a number."""

    def __init__(self) -> None:
        self.collectives = self.bytes = self.waits = 0

    def __enter__(self) -> Self:
        import torch.distributed as dist
        from torch import Tensor
        from torch.distributed import _functional_collectives as functional
        from torch.utils._python_dispatch import TorchDispatchMode

        traffic = self

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                name = str(func)
                traffic.waits += name.startswith(("aten._local_scalar_dense", "aten.is_nonzero"))
                return func(*args, **(kwargs or {}))

        self._stack = ExitStack()
        for module in (dist, functional):  # torch's shards take the second way
            self._stack.enter_context(mock.patch.object(module, "all_reduce", self._counting(module.all_reduce)))
        self._stack.enter_context(mock.patch.object(Tensor, "tolist", self._reading(Tensor.tolist)))
        self._stack.enter_context(Watch())
        return self

    def _reading(self, function: Any) -> Any:
        def tolist(tensor: Any) -> Any:
            self.waits += 1
            return function(tensor)

        return tolist

    def _counting(self, function: Any) -> Any:
        def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            self.count(tensor)
            return function(tensor, *args, **kwargs)

        return all_reduce

    def count(self, tensor: Any) -> None:
        """Take in what is handed to a collective."""
        self.collectives += 1
        self.bytes += tensor.numel() * tensor.element_size()

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


def measured(how: str, num_parameters: int) -> dict[str, int]:
    """One update phase on this rank, the second one: the first makes state."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from ampwise import DynamicLossScale, TrainStep

    model: Any = nn.Sequential(*(nn.Linear(WIDTH[num_parameters], WIDTH[num_parameters]) for _ in range(LAYERS)))
    way, side = how.split()
    if way == "ddp" and dist.get_world_size() > 1:
        model = DistributedDataParallel(model)
    elif way == "fsdp":
        model = fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    x = torch.randn(2, WIDTH[num_parameters])
    traffic = Traffic()
    if side == "torch":
        scaler = torch.amp.GradScaler("cpu")
        for index in range(2):
            scaler.scale(model(x).square().mean()).backward()
            with traffic if index else ExitStack():
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
    else:
        scale = DynamicLossScale(scale=65536.0)
        step = TrainStep(optimizer, modules=[model], precision="fp32", loss_scale=scale, clip_grad_norm=1.0)
        for index in range(2):
            loss = model(x).square().mean()
            with (
                mock.patch("ampwise.runtime.step.step.backward"),
                mock.patch("ampwise.runtime.hardware.host.reads_freely", return_value=False),
            ):
                step.scaler.scale(loss).backward()
                with traffic if index else ExitStack():
                    step(loss)
    return {"collectives": traffic.collectives, "bytes": traffic.bytes, "host reads": traffic.waits}


def rank_main(rank: str, world: str, folder: str) -> None:
    """One rank: every case, left as JSON by the first."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", int(world))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(world))
    found = {}
    for num_parameters in NUM_PARAMETERS:
        for how in ("ddp torch", "ddp ampwise", "fsdp torch", "fsdp ampwise"):
            found[f"{how} {num_parameters}"] = measured(how, num_parameters)
    if rank == "0":
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def meta_main(num_parameters: str, world: str) -> None:
    """One rank of a fake group settles a step over shards that are shapes alone; prints the counts."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from ampwise.runtime.ranks.distributed import Ballot, find_agreement

    dist.init_process_group("fake", rank=0, world_size=int(world), store=FakeStore())
    mesh, meta = init_device_mesh("cpu", (int(world),)), torch.device("meta")
    length = int(num_parameters) // 100 // int(world)
    shards = [torch.empty(length, device=meta) for _ in range(100)]
    params = [torch.nn.Parameter(DTensor.from_local(one, mesh, [Shard(0)], run_check=False)) for one in shards]
    for param in params:
        param.grad = param.detach()
    agreement = find_agreement(params)
    assert agreement is not None  # noqa: S101 - shards are what is agreed on
    ballot = Ballot(found={meta: torch.zeros((), device=meta)}, has_gradients=True)
    with Traffic() as traffic:
        agreement.settle([ballot], device=meta, scale=torch.ones((), device=meta), norm_of=params)
    print(json.dumps({"collectives": traffic.collectives, "bytes": traffic.bytes, "host reads": traffic.waits}))


def ranks_found(world: int) -> dict[str, dict[str, int]]:
    """The counts of every case with so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        commands = [[sys.executable, __file__, "--rank", str(rank), str(world), folder] for rank in range(world)]
        ranks = [subprocess.Popen(one, env={**os.environ, "OMP_NUM_THREADS": "1"}) for one in commands]
        statuses = [one.wait(timeout=300) for one in ranks]
        if any(statuses):
            sys.exit("a rank failed")
        return json.loads(Path(folder, "found.json").read_text())


def main() -> None:
    rows: list[dict[str, Any]] = []

    def add(counts: dict[str, int], **case: Any) -> None:
        rows.append({**case, **counts})
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)

    for world in RANKS:
        for case, counts in ranks_found(world).items():
            way, side, num_parameters = case.split()
            add(counts, ranks=world, parameters=int(num_parameters), way=way, side=side)
    for num_parameters in ON_META:
        for world in RANKS_ON_META:
            command = [sys.executable, __file__, "--meta", str(num_parameters), str(world)]
            counts = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)
            add(counts, ranks=world, parameters=num_parameters, way="fsdp", side="ampwise")
    OUT.mkdir(exist_ok=True)
    (OUT / "distributed.json").write_text(json.dumps({"name": "distributed", "rows": rows}, indent=1))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--rank", *arguments]:
            rank_main(*arguments)
        case ["--meta", *arguments]:
            meta_main(*arguments)
        case _:
            main()
