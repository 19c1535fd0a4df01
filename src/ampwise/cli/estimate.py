"""``ampwise estimate``: how much GPU memory a training step takes, and whether it fits."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ampwise._base.errors import CannotRunError, UsageError
from ampwise._base.files import check_writable, write_atomically
from ampwise._base.text import inert_line
from ampwise._base.units import parse_bytes, parse_count
from ampwise.cli.completion import complete_devices, complete_files, complete_plans, complete_precisions
from ampwise.cli.misplaced import misplaced, warn_of_misplaced
from ampwise.cli.options import module_option, target_of
from ampwise.cli.scripts import Show, check_script, progress_bar
from ampwise.cli.unwind import signals_unwind
from ampwise.estimate.gpu import gpu_spec
from ampwise.estimate.predict import estimate_script, predicting
from ampwise.estimate.rules_of_thumb import BASE_BITS, OPTIMIZERS, Sizes, States, estimate_by_thumb
from ampwise.formats.hardware import CONTEXT_BYTES
from ampwise.records.estimate import Estimate
from ampwise.runner.script import Target

if TYPE_CHECKING:
    from ampwise.estimate.order import GpuSpec
    from ampwise.estimate.wanted import Wanted

_ANY_GPU_BYTES: Final = 80 * 2**30
"""What a script is told where no GPU was named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """The GPU to fit."""

    name: str | None = None
    total_bytes: int | None = None
    compute_capability: tuple[int, int] | None = (8, 0)
    """Of a GPU of which only the memory was named: an A100's."""

    @property
    def capacity_bytes(self) -> int | None:
        """What is left beside the CUDA context."""
        return None if self.total_bytes is None else max(0, self.total_bytes - CONTEXT_BYTES)


@click.command(
    "estimate",
    context_settings={"allow_interspersed_args": False},
    short_help="Predict the GPU memory of a training step, without a GPU.",
)
@click.option("--params", metavar="N", help="Parameters of the model: 7e9, 7B, 130M.")
@click.option("--trainable", metavar="N", help="Those that are trained (LoRA); default: all.")
@click.option("--optimizer", default="adam", show_default=True, metavar="NAME", help=f"One of {', '.join(OPTIMIZERS)}.")
@click.option("--activations", metavar="SIZE", help="What the forward pass saves in fp32: 2GB, 2GiB.")
@click.option(
    "--states",
    type=click.Choice([one.value for one in States]),
    default=States.FP32.value,
    show_default=True,
    help="How parameters, gradients and optimizer state are kept.",
)
@click.option("--base-bits", type=click.Choice([str(bits) for bits in BASE_BITS]), help="Bits of a frozen parameter.")
@click.option("--shards", type=click.IntRange(min=1), default=1, metavar="N", help="GPUs that share the states.")
@click.option(
    "--zero",
    "zero_stage",
    type=click.IntRange(1, 3),
    default=3,
    show_default=True,
    metavar="STAGE",
    help="What they share, by ZeRO.",
)
@click.option(
    "--precision",
    shell_complete=complete_precisions,
    metavar="NAMES",
    help="One, or several with commas: fp32 (default), tf32, bf16, fp16, auto, a preset or a plan.toml.",
)
@click.option(
    "--plan",
    shell_complete=complete_plans,
    metavar="PLAN",
    help="A plan.toml, or a preset by name, in place of --precision.",
)
@click.option(
    "--world-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes of a script with DDP or FSDP2; one is imagined.",
)
@click.option(
    "--device", shell_complete=complete_devices, metavar="GPU", help="The GPU to fit: a100-40gb, t4, rtx-4090, ..."
)
@click.option("--memory", metavar="SIZE", help="Or its memory: 24GB.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write one self-contained HTML file.")
@click.option(
    "--find-batch", metavar="OPTION", help="Find the largest batch that fits; OPTION is the script's own: --batch-size."
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=1),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a script may take to its second step.",
)
@module_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the table.")
@click.argument(
    "words",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="[SCRIPT] [ARGUMENTS]...",
    shell_complete=complete_files,
)
def command(words: tuple[str, ...], **options: Any) -> int:
    """Predict the GPU memory of a training step where there is no GPU.

    \b
    ampwise estimate --device a100-40gb --precision fp32,bf16 train.py --batch 64
    ampwise estimate --device t4 --plan plan.toml --find-batch --batch train.py
    ampwise estimate --device h100-80gb --world-size 8 train_fsdp.py
    ampwise estimate --params 7e9 --optimizer adam --device a100-80gb
    ampwise estimate --params 130M --activations 2GiB --precision fp32,bf16

    A script trains for two steps on a GPU that is not there: no data, nothing
    of its files touched. --params and the options below it, down to --zero, are
    the rule of thumb.

    Exit status: 0 it fits, or no GPU was named; 1 it fits in none of the
    precisions; 2 wrong usage.
    """  # noqa: D301 - click's mark for a block kept as it is
    if options["find_batch"] is not None and not words:
        raise UsageError("--find-batch needs a script, whose option for the batch size it names")
    if bool(words) == (options["params"] is not None):
        raise UsageError("give either a script or the model's size: ampwise estimate train.py, or --params 7e9")
    device = _device(options["device"], options["memory"])
    names = _names(options["precision"], options["plan"])
    if options["report"] is not None:
        check_writable(options["report"])
    if words:
        target = target_of(words, is_module=options["is_module"])
        status = check_script(target, verb="estimate")
        if status:
            return status
        is_warned = warn_of_misplaced(target, command)
        try:
            estimates = _of_script(target, device, names, options)
        except CannotRunError as error:
            hint = None if is_warned else misplaced(target, command)
            raise error if hint is None else CannotRunError(f"{error}; {hint}") from error
    else:
        sizes = _sizes(options)
        if options["plan"] is not None:
            raise UsageError(
                "a plan is of a script's modules; with --params name a --precision: fp32, tf32, bf16, fp16"
            )
        if options["world_size"] is not None:
            raise UsageError("--world-size is of a script's processes; with --params write --shards and --zero")
        estimates = [estimate_by_thumb(sizes, precision=name, capacity_bytes=device.capacity_bytes) for name in names]
    _print(estimates, device=device.name, as_json=options["as_json"])
    if options["report"] is not None:
        _write(options["report"], estimates, device=device.name, command=words)
    return int(all(one.fits is False for one in estimates))


def _names(text: str | None, plan: str | None) -> list[str]:
    """The precisions and plans asked for, as they were written."""
    if plan is not None:
        if text is not None:
            raise UsageError("--plan says the precision already, as its default; leave --precision out")
        return [plan]
    if text is None:
        return ["fp32"]
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError("--precision names nothing; give one, or several with commas: fp32,bf16")
    return names


def _sizes(options: Mapping[str, Any]) -> Sizes:
    return Sizes(
        num_params=parse_count(options["params"]),
        num_trainable=None if options["trainable"] is None else parse_count(options["trainable"]),
        optimizer=options["optimizer"].lower(),
        activation_bytes=0 if options["activations"] is None else parse_bytes(options["activations"]),
        states=States(options["states"]),
        base_bits=None if options["base_bits"] is None else int(options["base_bits"]),
        num_shards=options["shards"],
        zero_stage=options["zero_stage"],
    )


def _device(name: str | None, memory: str | None) -> _Device:
    """The GPU that ``--device`` or ``--memory`` names."""
    if name is not None and memory is not None:
        raise UsageError("--device and --memory both name a GPU; give one of them")
    if memory is not None:
        total_bytes = parse_bytes(memory)
        if total_bytes <= CONTEXT_BYTES:
            raise UsageError(
                f"--memory {memory} is {total_bytes:,} bytes, and the CUDA context alone takes {CONTEXT_BYTES:,}; "
                "with its unit it reads --memory 24GB"
            )
        return _Device(total_bytes=total_bytes)
    if name is None:
        return _Device()
    gpu = gpu_spec(name)
    return _Device(name=gpu.name, total_bytes=gpu.total_bytes, compute_capability=gpu.compute_capability)


def _of_script(target: Target, device: _Device, names: list[str], options: Mapping[str, Any]) -> list[Estimate]:
    from ampwise.estimate.order import GpuSpec
    from ampwise.estimate.wanted import by_plan, wanted
    from ampwise.plan.find import find_plan

    gpu = GpuSpec(
        name=device.name or "imaginary GPU",
        compute_capability=device.compute_capability,
        total_bytes=device.total_bytes or _ANY_GPU_BYTES,
        context_bytes=CONTEXT_BYTES,
    )
    is_plan = options["plan"] is not None
    asked = [by_plan(name, find_plan(name)) if is_plan else wanted(name, gpu=gpu) for name in names]
    names = [one.name for one in asked]
    with signals_unwind(), progress_bar() as show:
        if options["find_batch"] is not None:
            return _largest_batches(target, gpu, device, asked, options, show)
        made = estimate_script(
            target,
            gpu,
            asked=asked,
            world_size=options["world_size"],
            time_limit_s=options["time_limit"],
            on_start=lambda name: show(
                f"imagining {name}", names.index(name) if name in names else len(names) - 1, len(names)
            ),
        )
    return [replace(one, capacity_bytes=device.capacity_bytes) for one in made]


def _largest_batches(
    target: Target, gpu: "GpuSpec", device: _Device, asked: "list[Wanted]", options: Mapping[str, Any], show: Show
) -> list[Estimate]:
    from ampwise.estimate.search import largest_batch, value_of_option, with_option

    option: str = options["find_batch"]
    if device.capacity_bytes is None:
        raise UsageError("--find-batch needs the GPU to fit: --device or --memory")
    start = value_of_option(target.argv, option) or 8
    made: list[Estimate] = []
    with predicting(
        gpu, world_size=options["world_size"], has_remedies=False, time_limit_s=options["time_limit"]
    ) as predict:
        for index, one in enumerate(asked):

            def try_batch(batch: int, *, index: int = index, one: "Wanted" = one) -> Estimate:
                show(f"imagining {one.name} with {option} {batch}", index, len(asked))
                return predict(with_option(target, option, batch), one)

            found = largest_batch(try_batch, start=start)
            if found is None:
                raise CannotRunError(f"not even {option} 1 fits in {one.name}; see what it takes without --find-batch")
            made.append(found)
    return made


def _write(page: Path, estimates: list[Estimate], *, device: str | None, command: tuple[str, ...]) -> None:
    from ampwise.report.estimate_page import render_estimates_html

    write_atomically(page, render_estimates_html(estimates, device=device, command=command))
    click.echo(f"report: {inert_line(str(page), max_length=1000)}", err=True)


def _print(estimates: list[Estimate], *, device: str | None, as_json: bool) -> None:
    from ampwise.report.estimates import estimates_json, render_estimates
    from ampwise.report.text import stdout_console

    if as_json:
        click.echo(json.dumps(estimates_json(estimates, device=device), indent=2))
    else:
        for one in estimates:
            if one.batch_size is not None:
                click.echo(f"the largest batch that fits in {one.precision}: {one.batch_size}")
        render_estimates(estimates, stdout_console(), device=device)
