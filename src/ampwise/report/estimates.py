"""Predictions of memory for a person at a terminal, and for a machine."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampwise._base.text import inert_line
from ampwise._base.units import format_bytes
from ampwise.records.estimate import Estimate, Remedy
from ampwise.records.files import to_plain
from ampwise.records.memory import MemoryCategory
from ampwise.records.site import Phase
from ampwise.report.cells import NOTHING

_PLURALS: Final = {
    MemoryCategory.PARAMETER: "parameters",
    MemoryCategory.GRADIENT: "gradients",
    MemoryCategory.OPTIMIZER_STATE: "optimizer state",
    MemoryCategory.ACTIVATION: "activations",
    MemoryCategory.CAST: "casts",
    MemoryCategory.TEMPORARY: "temporaries",
    MemoryCategory.WORKSPACE: "workspaces",
}
_NUM_MODULES: Final = 3
"""Modules that a line names."""
_PHASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        Phase.FORWARD: "in the forward pass",
        Phase.BACKWARD: "in the backward pass",
        Phase.OPTIMIZER: "in the optimizer's step",
    }
)
_ALLOCATED: Final = "allocated"
_FITS: Final = {True: "green", False: "red", None: ""}


def render_estimates(estimates: Sequence[Estimate], console: Console, *, device: str | None = None) -> None:
    """Print the verdict on each prediction, a table with a column each, what to change, and what was assumed.

    Args:
        estimates: At least one, of the same training in different precisions.
        console: Where to.
        device: The GPU's name, where one was named.
    """
    for estimate in estimates:
        console.print(Text(verdict(estimate, device=device), style=_FITS[estimate.fits]))
    for line in filter(None, map(_peak, estimates)):
        console.print(Text(line))
    console.print(_table(estimates))
    for estimate in estimates:
        for remedy in estimate.remedies:
            console.print(Text(_advice(estimate, remedy)))
    for line in assumptions(estimates):
        console.print(Text(f"- {line}", style="dim"))


def verdict(estimate: Estimate, *, device: str | None = None) -> str:
    """Whether it fits, and by how much: ``bf16 needs 2.94 GiB; it fits the NVIDIA T4 with 12.5 GiB to spare``."""
    least = "at least " * estimate.is_lower_bound
    needs = f"{estimate.precision} needs {least}{format_bytes(estimate.needed_bytes)}"
    margin = estimate.margin_bytes
    if margin is None or estimate.fits is None:
        return needs
    name = "this memory" if device is None else f"the {inert_line(device)}"
    if margin < 0:
        return f"{needs}; it does not fit {name}: {format_bytes(-margin)} short"
    fits = f"{needs}; it fits {name} with {format_bytes(margin)} to spare"
    over = (estimate.convolution_bytes or 0) - margin
    return fits if over <= 0 else f"{fits}, or {format_bytes(over)} short if convolutions take their most"


def _peak(estimate: Estimate) -> str:
    """When and where most is held, and by whom: ``bf16's peak is in the backward pass, at train.py:31; ...``."""
    if estimate.peak_phase is None:
        return ""
    where = "" if estimate.peak_line is None else f", at {estimate.peak_line}"
    sizes: Counter[str] = Counter()
    for owner in estimate.owners:
        if owner.site.module is not None:
            sizes[owner.site.module] += owner.bytes
    named = ", ".join(
        f"{name or 'the model itself'} {format_bytes(size)}" for name, size in sizes.most_common(_NUM_MODULES)
    )
    most = f"; most in {named}" if named else ""
    return inert_line(f"{estimate.precision}'s peak is {phase_words(estimate)}{where}{most}", max_length=300)


def phase_words(estimate: Estimate) -> str:
    """Which part of the step the peak is in: ``in the backward pass``."""
    return _PHASES.get(estimate.peak_phase or "", "between the passes")


def _advice(estimate: Estimate, remedy: Remedy) -> str:
    """A change and what it comes to."""
    fits = estimate.capacity_bytes is not None and remedy.needed_bytes <= estimate.capacity_bytes
    needs = f"{format_bytes(remedy.needed_bytes)}{', which fits' if fits else ''}"
    return f"{estimate.precision} would need {needs}, with {inert_line(remedy.what)}"


def estimates_json(estimates: Sequence[Estimate], *, device: str | None = None) -> dict[str, Any]:
    """One prediction as a flat object, several as ``variants[]``."""
    rows = [_document(one) for one in estimates]
    return {"device": device, **rows[0]} if len(rows) == 1 else {"device": device, "variants": rows}


def _document(estimate: Estimate) -> dict[str, Any]:
    plain = to_plain(estimate)
    del plain["categories"]
    return {
        **plain,
        "by_category": {part.category.value: part.bytes for part in estimate.categories},
        "band_bytes": estimate.band_bytes,
        "fits": estimate.fits,
        "margin_bytes": estimate.margin_bytes,
    }


def _table(estimates: Sequence[Estimate]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("")
    for estimate in estimates:
        table.add_column(Text(estimate.precision), justify="right")
    rows = list(table_rows(estimates))
    num_parts = next(place for place, row in enumerate(rows) if row[0] == _ALLOCATED)
    for place, row in enumerate(rows):
        if place == num_parts:
            table.add_section()
        table.add_row(*row)
    return table


def table_rows(estimates: Sequence[Estimate]) -> Iterator[tuple[str, ...]]:
    """A row for each category that any prediction has bytes in, then what they come to; a column a prediction."""
    sizes_of = [{part.category: part.bytes for part in estimate.categories} for estimate in estimates]
    for category in MemoryCategory:
        if any(sizes.get(category) for sizes in sizes_of):
            yield _PLURALS.get(category, category.value), *(_size(sizes.get(category)) for sizes in sizes_of)
    yield _ALLOCATED, *(_size(one.allocated_bytes) for one in estimates)
    for name, sizes in (
        ("reserved", [one.reserved_bytes for one in estimates]),
        ("at least (tensors alone)", [one.least_bytes for one in estimates]),
        ("at most (with convolutions' workspaces)", [_most(one) for one in estimates]),
        ("CUDA context", [one.context_bytes for one in estimates]),
        ("device holds", [one.capacity_bytes for one in estimates]),
    ):
        if any(size is not None for size in sizes):
            yield name, *(_size(size) for size in sizes)


def _most(estimate: Estimate) -> int | None:
    band = estimate.band_bytes
    return band[1] if band is not None and estimate.convolution_bytes else None


def _size(num_bytes: int | None) -> str:
    return NOTHING if num_bytes is None else format_bytes(num_bytes)


def assumptions(estimates: Sequence[Estimate]) -> Iterator[str]:
    """What was assumed: each once, with the place where it was made first."""
    said: dict[str, str] = {}
    for text in (text for estimate in estimates for text in estimate.assumptions):
        said.setdefault(text.partition(" (first at ")[0], text)
    for text in said.values():
        yield inert_line(text, max_length=500)
