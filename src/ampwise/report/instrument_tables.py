"""What the instruments saw of a run, as tables."""

import math
from collections.abc import Iterator

from ampwise._base.units import format_bytes, format_ms
from ampwise.records.against_fp32 import AgainstFp32Record
from ampwise.records.kernels import KernelRecord
from ampwise.records.memory import MemoryOwner
from ampwise.records.nonfinite import NonFiniteRecord, Operand
from ampwise.records.process import ProcessRecord
from ampwise.records.syncs import SyncRecord
from ampwise.report.cells import NOTHING
from ampwise.report.listing import Listing, listing
from ampwise.report.places import module_words, op_words, site_words


def origins_table(record: NonFiniteRecord | None) -> Listing | None:
    """Where finite numbers became infinite or NaN."""
    cost_ms = 0.0 if record is None else record.trace_ms
    cost = f" Looking at every result took {format_ms(cost_ms)} of a step so watched." if cost_ms else ""
    caption = "Operators that made infinities or NaN of finite numbers, in that order; the first is the cause."
    return listing(
        "Where numbers were lost",
        "operator|module|line|pass|#step|inputs up to|result",
        [
            (
                op_words(one.site.op) or NOTHING,
                module_words(one.site.module),
                one.site.where or NOTHING,
                one.site.phase.value,
                str(one.step),
                ", ".join(_range(part) for part in one.inputs) or NOTHING,
                NOTHING if one.output is None else f"{one.output.dtype} {one.kind.value}",
            )
            for one in (record.origins if record else ())
        ],
        caption=caption + cost,
    )


def against_fp32_table(record: AgainstFp32Record | None) -> Listing | None:
    """The modules whose output is furthest from fp32's, the worst first."""
    if record is None:
        return None
    modules = sorted(record.modules, key=lambda one: -_badness(one.relative))
    return listing(
        "Beside fp32, on the same batch",
        "module|class|in|#error|#of its input|#cosine|#decisions flipped",
        [
            (
                module_words(one.module) + (f" (call {one.call + 1})" if one.call else ""),
                one.module_kind,
                one.dtype,
                _share(one.relative),
                NOTHING if one.relative_input is None else _share(one.relative_input),
                NOTHING if one.cosine is None else f"{one.cosine:.6f}",
                f"{one.flipped:.1%}" if one.num_rows else NOTHING,
            )
            for one in modules
        ],
        caption=(
            f"Step {record.step} computed in {record.format} and in fp32 from the same weights. The error is the "
            "distance of the outputs over fp32's size: about 0.1% is fp16's own rounding, 0.5% bf16's. An error far "
            "above its input's arose in that module."
        ),
    )


def syncs_table(record: SyncRecord | None) -> Listing | None:
    """The places that make Python wait for the device."""
    if record is None:
        return None
    steps = max(len(record.steps), 1)
    return listing(
        "Waits for the device",
        "line|call|module|#a step|#waited a step",
        [
            (
                one.site.where or NOTHING,
                one.call,
                module_words(one.site.module),
                f"{one.count / steps:g}",
                NOTHING if one.stall_ms is None else format_ms(one.stall_ms / steps),
            )
            for one in record.places
        ],
        caption=""
        if record.is_real
        else "The loop ran on a CPU, where nothing waits; on a GPU each of these makes Python wait.",
    )


def operators_table(record: KernelRecord | None) -> Listing | None:
    """Which operators the step's time went into."""
    if record is None:
        return None
    total = record.work_ms or 1.0
    return listing(
        "Operators by time",
        "operator|kind|in|#calls|#time|#share",
        [
            (op_words(one.op), one.kind.value, one.dtype or NOTHING, str(one.count), format_ms(ms), f"{ms / total:.0%}")
            for one in record.operators
            for ms in [one.host_ms if one.device_ms is None else one.device_ms]
        ],
        caption=f"Step {record.step} under the profiler, {format_ms(record.wall_ms)} long.",
        max_rows=15,
    )


def kernels_table(record: KernelRecord | None) -> Listing | None:
    """Which kernels of the device's the step's time went into."""
    return listing(
        "Kernels by time",
        "kernel|kind|tensor cores|#calls|#time",
        [
            (one.name, one.kind.value, _yes(one.tensor_cores), str(one.count), format_ms(one.device_ms))
            for one in (record.kernels if record else ())
        ],
        max_rows=15,
    )


def products_table(record: KernelRecord | None) -> Listing | None:
    """The step's matrix products: their sizes and formats."""
    return listing(
        "Matrix products by time",
        "operator|in|sizes m x n x k|#calls|#time|better sizes",
        [
            (
                op_words(one.op),
                one.dtype,
                f"{one.m} x {one.n} x {one.k}" + (f", {one.batch} at once" if one.batch > 1 else ""),
                str(one.count),
                format_ms(one.ms),
                NOTHING if one.padded is None else " x ".join(map(str, one.padded)),
            )
            for one in (record.products if record else ())
        ],
        caption="Tensor cores want sizes that are multiples of 8; better sizes are the next ones up.",
        max_rows=15,
    )


def parts_table(record: ProcessRecord | None) -> Listing | None:
    """Which part of the loop a step's time went into."""
    if record is None or record.parts is None or not record.parts.total_ms:
        return None
    parts, total = record.parts, record.parts.total_ms
    named = {
        "waiting for data": parts.data_ms,
        "forward": parts.forward_ms,
        "backward": parts.backward_ms,
        "optimizer": parts.optimizer_ms,
        "loss, logging, all else": parts.other_ms,
    }
    return listing(
        "A step's time by part",
        "part|#time|#share",
        [(name, format_ms(ms), f"{ms / total:.0%}") for name, ms in named.items()],
        caption=f"On average over {record.num_steps} steps that no instrument slowed.",
    )


def owners_table(owners: tuple[MemoryOwner, ...], peak_bytes: int | None) -> Listing | None:
    """Who holds the peak's bytes."""
    total = peak_bytes or sum(one.bytes for one in owners) or 1
    return listing(
        "Who holds the peak",
        "what|where|#size|#share|#tensors",
        [
            (
                one.category.value.replace("_", " "),
                site_words(one.site) or "elsewhere",
                format_bytes(one.bytes),
                f"{one.bytes / total:.0%}",
                str(one.num_storages),
            )
            for one in sorted(owners, key=lambda one: (not site_words(one.site), -one.bytes))
        ],
        caption="Storages of one kind born at one place, at the step's peak; last those of the places not named.",
        max_rows=len(owners),
    )


def _range(one: Operand) -> str:
    return f"{one.dtype} {NOTHING if one.amax is None else f'{one.amax:.3g}'}"


def _share(value: float) -> str:
    return f"{value:.2%}" if math.isfinite(value) else str(value)


def _badness(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _yes(answer: bool | None) -> str:  # noqa: FBT001  # an answer, no option
    return NOTHING if answer is None else "yes" if answer else "no"


def tables_of_speed(
    kernels: KernelRecord | None, syncs: SyncRecord | None, process: ProcessRecord | None
) -> Iterator[Listing]:
    """Every table that says where the time goes."""
    tables = (
        parts_table(process),
        operators_table(kernels),
        kernels_table(kernels),
        products_table(kernels),
        syncs_table(syncs),
    )
    yield from (table for table in tables if table is not None)
