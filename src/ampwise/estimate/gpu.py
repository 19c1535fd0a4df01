"""The GPU that an estimate is for, by the name it is sold under."""

from ampwise._base.errors import UsageError
from ampwise._base.suggest import not_one_of
from ampwise.estimate.order import GpuSpec
from ampwise.formats.hardware import CONTEXT_BYTES, GPUS, find_gpu


def gpu_spec(name: str) -> GpuSpec:
    """The GPU called ``name``: ``h100-80gb``.

    Raises:
        UsageError: it is not among those known here.
    """
    gpu = find_gpu(name)
    if gpu is None:
        raise UsageError(f"{not_one_of(name, GPUS, kind='GPU known here')}; for any other: --memory 24GB")
    return GpuSpec(
        name=gpu.name,
        compute_capability=gpu.compute_capability,
        total_bytes=gpu.memory_bytes,
        context_bytes=CONTEXT_BYTES,
    )
