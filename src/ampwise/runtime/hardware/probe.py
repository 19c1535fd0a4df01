"""Measures a linear layer's matrix products in each format: what a device is good at, not what it says it is.

All three of a training step: fp16 without hardware takes 4x as long for the one that gives the input's gradient as
for the forward one.
"""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch.nn import functional

from ampwise.compat.tf32 import matmul_tf32
from ampwise.interpose.internal import internal
from ampwise.runtime.hardware import host
from ampwise.runtime.hardware.race import Probe, Timer, race

CPU_SIZES = (128, 256, 512, 1024)
GPU_SIZES = (256, 1024, 4096)

_DTYPES: Mapping[str, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@cache
def probe(device: str, *, emulated: str | None = None) -> Probe:  # noqa: ARG001 - what is kept is kept apart by it
    """How fast each format's matrix product is on ``device`` against fp32's; ``emulated``: under which emulation.

    Kept for the life of the process: a device does not change while it runs, so the cache holds a constant that is
    dear to find, not state; ``probe.cache_clear()`` measures anew.
    """
    target = torch.device(device)
    if target.type == "cpu":
        with ThreadPoolExecutor(max_workers=1) as executor:
            return executor.submit(_probe_cpu, num_threads=torch.get_num_threads()).result()
    formats = ("fp32", "tf32", "bf16", "fp16") if target.type == "cuda" else ("fp32", "bf16", "fp16")
    return race(_timer(target), formats=formats, sizes=GPU_SIZES)


def _probe_cpu(*, num_threads: int) -> Probe:
    """Measure on one core, in that thread's own time.

    Products spread over the cores wait for each other: on a busy machine they measured the scheduler (fp16 came out
    as 4x faster than fp32, where it is 15x slower). This runs in a thread of its own because the number of threads
    is set for the calling thread and for threads not born yet; the caller's stays what it is.
    """
    torch.set_num_threads(1)
    try:
        return race(_timer(torch.device("cpu")), formats=("fp32", "bf16", "fp16"), sizes=CPU_SIZES)
    finally:
        torch.set_num_threads(num_threads)


def _timer(device: torch.device) -> Timer:
    """Times products on ``device``; leaves the script's random numbers, autocast and gradients alone."""

    @cache
    def values(size: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(size, size, generator=generator, device="cpu").to(device)

    def run(name: str, size: int) -> float:
        with internal(), torch.no_grad(), torch.autocast(device.type, enabled=False), matmul_tf32(name == "tf32"):
            return _time_product(values(size).to(_DTYPES[name]))

    return run


def _time_product(x: torch.Tensor) -> float:
    clock = time.thread_time if x.device.type == "cpu" else time.perf_counter
    host.wait_for(x.device)
    start = clock()
    y = functional.linear(x, x)
    _ = y @ x, y.t() @ x
    host.wait_for(x.device)
    return clock() - start
