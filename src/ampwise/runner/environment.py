"""Says on what machine, device and allocator the runs took place."""

from collections.abc import Mapping

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
    from ampwise.runtime.hardware.environment import environment
    from ampwise.runtime.hardware.placement import current_device, parse_device

    target = current_device() if device is None else parse_device(device)
    setting = set_allocator(malloc, environ=environ, on_cpu=target.type == "cpu")
    setting.undo()
    return environment(target, allocator=setting.words)
