"""Says on what machine, device and allocator the runs took place."""

import platform
import sys
from collections.abc import Mapping

from ampwise import __version__
from ampwise.records.environment import Environment
from ampwise.runner.malloc import set_allocator
from ampwise.runner.spec import Malloc


def describe_environment(*, device: str | None, malloc: Malloc, environ: Mapping[str, str]) -> Environment:
    """The machine under the runs.

    It asks torch for the device, so that it is better called when no run shares the device with this process.

    Args:
        device: The device asked for; None for the current one.
        malloc: The allocator's setting asked for.
        environ: The environment that the runs inherited.
    """
    import torch

    from ampwise.compat.devices import driver_version
    from ampwise.runtime.gather import device_facts
    from ampwise.runtime.placement import current_device

    facts = device_facts(current_device() if device is None else torch.device(device))
    setting = set_allocator(malloc, environ=environ, on_cpu=facts.device.startswith("cpu"))
    setting.undo()
    driver = driver_version()
    return Environment(
        ampwise=__version__,
        python=".".join(map(str, sys.version_info[:3])),
        torch=torch.__version__,
        platform=f"{platform.system()}-{platform.release()}-{platform.machine()}",
        device=facts.device,
        device_name=facts.name,
        num_threads=torch.get_num_threads(),
        allocator=setting.words,
        cuda=f"{torch.version.cuda} (driver {driver or 'unknown'})" if torch.version.cuda else None,
    )
