"""Adds up the statistics of tensors where the tensors are; nothing waits for a device before they are read."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from ampwise.formats.spec import FloatFormat
from ampwise.formats.table import FORMATS, find_format
from ampwise.observe.dtypes import dtype_name
from ampwise.observe.modules import ModuleName
from ampwise.observe.statistics import extremes, magnitude_counts, magnitude_counts_of_each, sample
from ampwise.records.numerics import NUM_BINS, LostUpdates, MagnitudeHistogram, TensorKind, TensorStatistics

_NARROW = (FORMATS["bf16"], FORMATS["fp16"])
"""What fp32 weights might be kept in."""
_FLOAT_EXPONENT, _DOUBLE_EXPONENT = 0xFF << 23, 0x7FF << 52
"""The bits of a number's exponent."""


@dataclass(frozen=True, slots=True)
class TallyKey:
    """Which tensor of which module."""

    kind: TensorKind
    module: ModuleName
    parameter: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What is kept of a tensor until its step ends."""

    dtype: torch.dtype
    num_elements: int
    elements: Tensor
    """Copies of at most 4,096 of them, shape (n,)."""
    extremes: tuple[Tensor, Tensor]
    """The least and the largest number, 0-dim."""


def measure(tensor: Tensor) -> Measured:
    """Look at a tensor; what the loop writes to it afterwards changes nothing."""
    elements = sample(tensor).clone()
    whole = elements if elements.numel() == tensor.numel() else tensor
    return Measured(tensor.dtype, tensor.numel(), elements, extremes(whole))


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """A sample of a weight before the optimizer's step."""

    tally: "Tally"
    """Of its updates."""
    parameter: Tensor
    weights: Tensor
    """Shape (n,)."""
    has_gradient: Tensor
    """Bool, shape (n,)."""


def see_updates(befores: Sequence[Before], *, stepped: bool | Tensor) -> None:
    """Add what a step did to the weights to their tallies, those of one dtype and device together.

    Args:
        befores: the weights as they were.
        stepped: whether the step was made; may lie on the device.
    """
    alike: dict[tuple[torch.dtype, torch.device], list[Before]] = {}
    for one in befores:
        alike.setdefault((one.weights.dtype, one.weights.device), []).append(one)
    for (dtype, _), group in alike.items():
        wide = torch.promote_types(dtype, torch.float32)
        sizes = [one.weights.numel() for one in group]
        old = torch.cat([one.weights for one in group])
        new = torch.cat([sample(one.parameter) for one in group])
        has_gradient = torch.cat([one.has_gradient for one in group])
        lost = lost_updates(old, new, has_gradient, sizes=sizes, stepped=stepped)
        updates = (new.to(wide) - old.to(wide)).split(sizes)
        for one, update, row in zip(group, updates, lost, strict=True):
            one.tally.add(Measured(wide, update.numel(), update, extremes(update)))
            one.tally.dtype = dtype
            one.tally.add_lost(row)


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was seen of one tensor in all sampled steps; numbers stay on its device."""

    dtype: torch.dtype
    num_elements: int = 0
    counts: Tensor | None = None
    lost: Tensor | None = None
    """How many updates were lost, then out of how many, for each of ``formats_of(dtype)``; int64."""
    amaxes: dict[int, float] = field(default_factory=dict)
    """By the place of the step among those sampled."""
    waiting: list[Measured] = field(default_factory=list)
    """Of the step that goes on."""

    def add(self, measured: Measured) -> None:
        """Add what was seen of a tensor of this step."""
        self.dtype = measured.dtype
        self.num_elements += measured.num_elements
        self.waiting.append(measured)

    def add_lost(self, lost: Tensor) -> None:
        """Add how many of this step's updates were lost, as ``lost_updates`` counts them."""
        self.lost = lost if self.lost is None else self.lost + lost

    def statistics(self, key: TallyKey, *, num_steps: int, is_scaled: bool) -> TensorStatistics:
        """What a record says of it. Waits for the device."""
        counts = self.counts.tolist() if self.counts is not None else [0] * (NUM_BINS + 1)
        return TensorStatistics(
            module=key.module.path,
            module_kind=key.module.kind,
            kind=key.kind,
            parameter=key.parameter,
            dtype=dtype_name(self.dtype),
            num_elements=self.num_elements // max(len(self.amaxes), 1),
            is_scaled=is_scaled,
            amax=tuple(_short(self.amaxes.get(place)) for place in range(num_steps)),
            histogram=MagnitudeHistogram.from_counts(counts),
            lost=self._lost(),
        )

    def _lost(self) -> tuple[LostUpdates, ...]:
        if self.lost is None:
            return ()
        pairs = zip(formats_of(self.dtype), self.lost.tolist(), strict=True)
        return tuple(
            LostUpdates(format=row.name, is_own=place == 0, num_lost=lost, num_updates=total)
            for place, (row, (lost, total)) in enumerate(pairs)
        )


def formats_of(dtype: torch.dtype) -> tuple[FloatFormat, ...]:
    """The format of the weights first, then the narrower ones they might be kept in."""
    own = find_format(dtype_name(dtype)) or FORMATS["fp32"]
    return (own, *(_NARROW if own.storage_bits > 16 else ()))


def lost_updates(
    before: Tensor, after: Tensor, has_gradient: Tensor, *, sizes: Sequence[int], stepped: bool | Tensor
) -> Tensor:
    """How many updates were lost, and out of how many, for each weight; a row for each of ``formats_of(before.dtype)``.

    Args:
        before: several weights before the step, one behind the other, shape (n,).
        after: the weights after it.
        has_gradient: which of them had a gradient that was not zero.
        sizes: how many numbers each of the weights has there.
        stepped: whether the step was made; may lie on the device.

    Returns:
        int64 of shape (len(sizes), formats, 2), on the weights' device.
    """
    wide = torch.promote_types(before.dtype, torch.float32)
    old = before.to(wide)
    update = (after.to(wide) - old).abs()
    is_updated = update > 0
    counted = [has_gradient & ~is_updated, has_gradient]
    for row in formats_of(before.dtype)[1:]:
        counted += [is_updated & (update < half_ulp(old, row)), is_updated]
    ends = torch.tensor([0, *accumulate(sizes)]).to(before.device, non_blocking=True)
    sums = torch.nn.functional.pad(torch.stack(counted).cumsum(1), (1, 0))  # of all before; the sums of bools are int64
    rows = sums.index_select(1, ends).diff(dim=1) * stepped
    return rows.T.unflatten(1, (-1, 2))


def half_ulp(weights: Tensor, row: FloatFormat) -> Tensor:
    """Half the distance from each weight, fp32 or fp64, to its next neighbour in the format."""
    is_double = weights.dtype is torch.float64
    bits = weights.view(torch.int64) & _DOUBLE_EXPONENT if is_double else weights.view(torch.int32) & _FLOAT_EXPONENT
    powers = bits.view(weights.dtype)  # of two; 0 where the weight is zero or subnormal
    return powers.clamp(min=2.0**row.min_exponent) * 2.0 ** -(row.mantissa_bits + 1)


class Reading:
    """The largest magnitudes of one sampled step on their way from a device.

    Args:
        tallies: Whose they are.
        measured: What each was given.
        place: Of the step among those sampled.
    """

    def __init__(self, tallies: Sequence[Tally], measured: Sequence[Measured], place: int) -> None:
        low, high = (torch.stack(both).double() for both in zip(*(one.extremes for one in measured), strict=True))
        numbers = torch.maximum(-low, high)
        self._tallies = tallies
        self._place = place
        self._event: torch.Event | None = None
        self._numbers = numbers
        if numbers.is_cuda:
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._event = torch.Event(device=numbers.device)
            self._event.record()

    @property
    def has_arrived(self) -> bool:
        """Whether reading it waits for nothing."""
        return self._numbers.device.type == "cpu" and (self._event is None or self._event.query())

    def finish(self) -> bool:
        """Note the numbers in their tallies; says whether all are finite. Waits where they have not arrived."""
        if self._event is not None:
            self._event.synchronize()
        numbers = self._numbers.tolist()
        for tally, number in zip(self._tallies, numbers, strict=True):
            known = tally.amaxes.get(self._place, 0.0)
            # a NaN compares with nothing, and stays
            tally.amaxes[self._place] = known if number <= known or math.isnan(known) else number
        return all(map(math.isfinite, numbers))


def end_step(tallies: Iterable[Tally], place: int) -> list[Reading]:
    """Count what waits of the sampled step at ``place``, a device's tensors together; the amaxes are on their way."""
    by_device: dict[torch.device, list[tuple[Tally, Measured]]] = {}
    for tally in tallies:
        for measured in tally.waiting:
            by_device.setdefault(measured.elements.device, []).append((tally, measured))
        tally.waiting.clear()
    for group in by_device.values():
        _count(group)
    return [
        Reading([one for one, _ in group], [measured for _, measured in group], place) for group in by_device.values()
    ]


def _count(group: Sequence[tuple[Tally, Measured]]) -> None:
    narrow = [one for one in group if not _is_wide(one[1].dtype)]
    counts = magnitude_counts_of_each([one.elements for _, one in narrow]) if narrow else ()
    for (tally, _), row in zip(narrow, counts, strict=True):
        _add_counts(tally, row)
    for tally, measured in group:
        if _is_wide(measured.dtype):
            _add_counts(tally, magnitude_counts(measured.elements))


def _add_counts(tally: Tally, counts: Tensor) -> None:
    if tally.counts is None:
        tally.counts = counts.to(torch.int32)  # a copy: a row would keep the whole table alive
    else:
        tally.counts += counts


def _is_wide(dtype: torch.dtype) -> bool:
    return dtype is torch.float64 or dtype.is_complex


def _short(number: float | None) -> float | None:
    """Six digits are enough to tell 65,504 from 65,520."""
    return number if number is None or not math.isfinite(number) else float(f"{number:.6g}")
