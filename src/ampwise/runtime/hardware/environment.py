"""Says where a run takes place."""

import platform

import torch

from ampwise._base.version import __version__
from ampwise.compat.devices import driver_cuda_version, driver_version
from ampwise.records.environment import Environment
from ampwise.runtime.hardware.gather import device_facts


def environment(device: torch.device, *, allocator: str) -> Environment:
    """The machine and software under a run on ``device``.

    Args:
        device: the one trained on.
        allocator: the CPU allocator's setting, in words.
    """
    facts = device_facts(device)
    return Environment(
        ampwise=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        platform=f"{platform.system()}-{platform.release()}-{platform.machine()}",
        device=facts.device,
        device_name=facts.name,
        num_threads=torch.get_num_threads(),
        allocator=allocator,
        cuda=_cuda() if torch.cuda.is_available() else None,
    )


def _cuda() -> str:
    """``torch built with CUDA 12.8, driver 570.86.15 for CUDA 12.8``, as far as the system tells."""
    if torch.version.hip:
        return f"torch built with ROCm {torch.version.hip}"
    serves = driver_cuda_version()
    driver = f", driver {driver_version() or 'of unknown version'}{f' for CUDA {serves}' if serves else ''}"
    return f"torch built with CUDA {torch.version.cuda}{driver}"
