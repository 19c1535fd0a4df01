"""``ampwise info``: what this machine can do, and which precision to use."""

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from ampwise._base.text import inert
from ampwise._base.units import format_bytes, format_ratio

if TYPE_CHECKING:
    import torch

    from ampwise.cli.visible import Check
    from ampwise.compat.tf32 import Tf32State
    from ampwise.runtime.hardware.machine import Advice, DeviceRow, FormatRow


@click.command("info")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--device", metavar="DEVICE", help="Look at this device: cpu, cuda:1. Default: the current one.")
def command(*, as_json: bool, device: str | None) -> None:
    """Say what this machine can do and which precision to use.

    Measures a few matrix products, for a fraction of a second.

    \b
    ampwise info
    ampwise info --device cuda:1 --json
    """  # noqa: D301 - click's mark for a block kept as it is
    answer = _gather(device)
    if as_json:
        click.echo(json.dumps(_document(answer), indent=2))
    else:
        _print(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """All there is to say."""

    advice: "Advice"
    devices: "tuple[DeviceRow, ...]"
    software: dict[str, str | int | None]
    """Versions, by the name a reader knows them by."""
    visible: tuple[str, ...]
    """How the environment renumbers GPUs."""
    tf32: "Tf32State"
    checks: "tuple[Check, ...]"


def _gather(device: str | None) -> _Answer:
    import torch

    from ampwise.cli.visible import checks, renumbering
    from ampwise.compat.tf32 import tf32_state
    from ampwise.runtime.hardware.machine import advise, list_devices
    from ampwise.runtime.hardware.placement import use_device

    with use_device(device) as target:
        devices = list_devices(target)
        return _Answer(
            advice=advise(target),
            devices=devices,
            software=_software(target),
            visible=renumbering(os.environ, num_visible=sum(row.device.startswith("cuda") for row in devices)),
            tf32=tf32_state(),
            checks=checks(devices, cuda=torch.version.cuda or torch.version.hip),
        )


def _software(device: "torch.device") -> dict[str, str | int | None]:
    import torch

    from ampwise.compat.devices import driver_cuda_version, driver_version
    from ampwise.runtime.hardware.environment import environment

    here = environment(device, allocator="")
    return {
        "ampwise": here.ampwise,
        "python": here.python,
        "torch": here.torch,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "driver": driver_version(),
        "driver_cuda": driver_cuda_version(),
        "platform": here.platform,
        "num_threads": here.num_threads,
    }


def _document(answer: _Answer) -> dict[str, Any]:
    tf32 = answer.tf32
    return {
        "recommended": answer.advice.recommended,
        "reason": answer.advice.reason,
        "device": answer.advice.device,
        "formats": [asdict(row) for row in answer.advice.formats],
        "devices": [asdict(row) for row in answer.devices],
        "environment": {**answer.software, "visible_devices": answer.visible},
        "tf32": {"matmul": tf32.matmul, "conv": tf32.conv, "rnn": tf32.rnn, "clash": tf32.clash},
        "checks": [asdict(check) for check in answer.checks],
    }


def _print(answer: _Answer) -> None:
    from rich.console import Console, Group
    from rich.padding import Padding
    from rich.text import Text

    advice = answer.advice
    headline = Text.assemble(
        "Use ", (advice.recommended, "bold green"), f" on {advice.device}: {inert(advice.reason)}."
    )
    versions = ", ".join(f"{name} {value}" for name, value in answer.software.items() if value is not None)
    notes = (*answer.visible, *((answer.tf32.clash,) if answer.tf32.clash else ()))
    missing = (Text("\nNo GPU is seen. To find out why:"),) if answer.checks else ()
    Console(highlight=False).print(
        Group(
            headline,
            "",
            _formats_table(advice),
            "",
            _devices_table(answer.devices),
            "",
            Text(inert(versions), style="dim"),
            *(Text(f"\n{inert(note)}", style="yellow") for note in notes),
            *missing,
            *(Padding(_check(check), (0, 0, 0, 2)) for check in answer.checks),
        )
    )


def _check(check: "Check") -> Any:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    return Group(Text(check.command, style="bold"), Padding(Text(check.why), (0, 0, 0, 2)))


def _formats_table(advice: "Advice") -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("format")
    table.add_column("native")
    table.add_column("matrix products against fp32")
    for row in advice.formats:
        style = "green" if row.name == advice.recommended else None
        table.add_row(row.name, "yes" if row.native else "no", _speed(row), style=style)
    return table


def _speed(row: "FormatRow") -> str:
    if row.name == "fp32":
        return ""
    ratio = row.ratio_to_fp32
    if ratio is None:
        return "not measured"
    return f"{format_ratio(ratio)} as fast" if ratio >= 1 else f"{format_ratio(1 / ratio)} as long"


def _devices_table(devices: "tuple[DeviceRow, ...]") -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("device", "name", "capability", "tensor cores", "memory", "free"):
        table.add_column(name, overflow="fold")
    for row in devices:
        table.add_row(
            f"{row.device}{' *' if row.current else ''}",
            Text(inert(row.name)),
            row.compute_capability or "-",
            {True: "yes", False: "no", None: "-"}[row.tensor_cores],
            _size(row.total_bytes),
            _size(row.free_bytes),
        )
    table.caption = "* the current device"
    table.caption_justify = "left"
    return table


def _size(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else format_bytes(num_bytes)
