"""Collects what triggers look at on the device, a row a step, and brings the rows home some steps at a time."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from ampwise.adapt.groups import Group
from ampwise.adapt.reading import Reading
from ampwise.compat.autograd import queue_callback
from ampwise.compat.distributed import is_running, local_of, world_size
from ampwise.compat.fused_step import norms_of
from ampwise.interpose.internal import internal
from ampwise.runtime.casts.cast_forward import CastForward
from ampwise.runtime.casts.gauge import Gauge, UnderflowGauge

_LARGEST = torch.finfo(torch.float32).max
UNSAMPLED_SHARE: Final = 1e-6
"""What is said of results beyond a format of which the sample has none: some, and few."""
_HEAD = 3
"""A row begins with the loss, whether the step was skipped, and the loss scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What of a training is measured: the gradients of these, the results of those."""

    parameters: tuple[tuple[Tensor, ...], ...] = ()
    """Of each group; none where no trigger looks at gradients."""
    names: tuple[tuple[str, ...], ...] = ()
    """Their names."""
    forwards: tuple[tuple[CastForward, ...], ...] = ()
    """What gives each group's results; none where no trigger looks at them."""
    limits: tuple[float, ...] = ()
    """The magnitude from which on a result counts as beyond each group's format."""
    products: tuple[tuple[CastForward, ...], ...] = ()
    """What is given the factors of each group's products; none where no trigger looks at them."""
    reach: float = math.inf
    """Factors are lost that are so many times smaller than the largest."""

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return _HEAD + sum(map(len, self.parameters)) + 2 * len(self.forwards) + len(self.products)


class StepRows:
    """The rows of the steps since the last reading.

    Law: until ``read``, nothing waits for the device.

    Args:
        measured: what a row holds.
        device: where the rows are kept.
        every: how many rows are kept.
    """

    def __init__(self, measured: Measured, *, device: torch.device, every: int) -> None:
        self._measured, self._every = measured, every
        self._rows = torch.zeros(every, measured.width, device=device)
        self._losses: list[Tensor | float] = []
        self._norms: dict[int, Tensor] = {}
        self._gauges = tuple(Gauge(limit, device) for limit in measured.limits)
        self._undo = ExitStack()
        self.num_rows = 0
        self._arrived: dict[int, dict[int, Tensor]] = {}
        for group, parameters in enumerate(measured.parameters):
            for place, one in enumerate(parameters):
                hook = partial(self._on_gradient, group, place)
                self._undo.callback(one.register_post_accumulate_grad_hook(hook).remove)
        self._intakes = tuple(UnderflowGauge(measured.reach, device) for _ in measured.products)
        for gauge, forwards in zip(self._gauges, measured.forwards, strict=True):
            for one in forwards:
                one.gauge = gauge
                self._undo.callback(setattr, one, "gauge", None)
        for intake, forwards in zip(self._intakes, measured.products, strict=True):
            for one in forwards:
                one.intake = intake
                self._undo.callback(setattr, one, "intake", None)

    @property
    def is_full(self) -> bool:
        """Whether the rows are to be read before the next."""
        return self.num_rows == self._every

    def close(self) -> None:
        """Measure nothing from now on."""
        self._undo.close()

    def note_loss(self, loss: Tensor | float) -> None:
        """Take in a loss; a step's loss is the mean of those since the step before."""
        self._losses.append(loss.detach() if isinstance(loss, Tensor) else loss)

    @torch.no_grad()
    def end_step(self, *, skipped: Tensor | bool, scale: Tensor | float) -> None:
        """Begin the next row; what was collected since the last makes this one.

        Args:
            skipped: whether the step was left out, not 0 if so.
            scale: what the loss was multiplied by.
        """
        with internal():
            row = self._rows[self.num_rows]
            self._put(row, 0, self._losses)
            self._put(row, 1, [skipped])
            self._put(row, 2, [scale])
            place = _HEAD
            for group, parameters in enumerate(self._measured.parameters):
                end = place + len(parameters)
                norms = self._norms.get(group)
                _ = row[place:end].zero_() if norms is None else _copy(norms, row[place:end])
                place = end
            for gauge in self._gauges:
                _copy(_peak_and_share(gauge.numbers), row[place : place + 2])
                gauge.empty()
                place += 2
            for intake in self._intakes:
                _copy(intake.numbers, row[place : place + 1])
                intake.empty()
                place += 1
        self._losses, self._norms = [], {}
        self._arrived = {}  # of a pass that raised
        self.num_rows += 1

    def read(self, *, raised: Sequence[bool]) -> tuple[Reading, ...]:
        """The steps as plain numbers, the oldest first; waits for the device and begins anew.

        Processes that train together all get the same: the mean of their losses, the largest of all else.

        Args:
            raised: which groups were in the safer format.
        """
        with internal():
            rows = _agreed(self._rows[: self.num_rows]).tolist()
        self.num_rows = 0
        return tuple(self._reading(row, tuple(raised)) for row in rows)

    def state_dict(self) -> dict[str, Any]:
        """The rows that were not read."""
        return {"rows": self._rows[: self.num_rows].cpu().clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""
        rows: Tensor = state["rows"]
        self._rows[: len(rows)].copy_(rows)
        self.num_rows = len(rows)
        self._losses, self._norms = [], {}

    def fits(self, state: dict[str, Any]) -> bool:
        """Whether ``load_state_dict`` can take it over."""
        rows = state.get("rows")
        return isinstance(rows, Tensor) and len(rows) < self._every and rows.shape[1:] == self._rows.shape[1:]

    def _on_gradient(self, group: int, place: int, parameter: Tensor) -> None:
        """Note that a gradient was accumulated: ``torch.autograd.grad`` accumulates none and is not seen."""
        if not self._arrived:
            queue_callback(self._on_pass_end)
        self._arrived.setdefault(group, {})[place] = parameter

    @torch.no_grad()
    def _on_pass_end(self) -> None:
        """Measure the gradients as they are now, nobody having unscaled or clipped them."""
        arrived, self._arrived = self._arrived, {}
        with internal():
            for group, parameters in arrived.items():
                given = {place: _dense(one.grad) for place, one in parameters.items() if one.grad is not None}
                if given:
                    self._norms[group] = self._merged(group, given)

    def _merged(self, group: int, gradients: Mapping[int, Tensor]) -> Tensor:
        """The norm of each of the group's gradients: of these, and before them of those of earlier passes."""
        dtypes = {one.dtype for one in gradients.values()}
        several = [gradients[place] if len(dtypes) == 1 else gradients[place].float() for place in sorted(gradients)]
        norms = norms_of(several).float()
        size = len(self._measured.parameters[group])
        if len(several) == size:
            return norms
        before = self._norms.get(group)
        before = torch.zeros(size, device=norms.device) if before is None else before
        places = torch.tensor(sorted(gradients)).to(norms.device, non_blocking=not norms.is_cpu)
        return before.index_copy(0, places, norms)

    @staticmethod
    def _put(row: Tensor, place: int, values: Sequence[Tensor | bool | float]) -> None:
        """Write the mean of some numbers, each on its device or the host."""
        on_host = [float(one) for one in values if not isinstance(one, Tensor)]
        mean = sum(on_host) / max(len(values), 1)
        row[place].fill_(math.copysign(math.inf, mean) if abs(mean) > _LARGEST else mean)
        for one in values:
            if isinstance(one, Tensor):
                waits = row.is_cpu  # a copy to the host that nobody waits for is read before it is there
                number = one.detach().reshape(()).to(row.device, torch.float32, non_blocking=not waits)
                row[place].add_(number / len(values))

    def _reading(self, row: Sequence[float], raised: tuple[bool, ...]) -> Reading:
        loss, skipped, scale = row[:_HEAD]
        place, norms, suspects = _HEAD, list[float](), list[str]()
        for names in self._measured.names:
            own = row[place : place + len(names)]
            place += len(names)
            norms.append(math.hypot(*own) / (scale or 1.0))
            suspects.append(next((name for name, one in zip(names, own, strict=True) if not math.isfinite(one)), ""))
        end = place + 2 * len(self._gauges)
        peaks, shares = row[place:end:2], row[place + 1 : end : 2]
        return Reading(
            loss=loss,
            is_skipped=skipped != 0.0,
            is_scaled=scale != 1.0,
            norms=tuple(norms),
            suspects=tuple(suspects),
            peaks=tuple(peaks),
            shares=tuple(map(_share, shares, peaks, self._measured.limits)),
            vanished=tuple(row[end:]),
            raised=raised,
        )


def parameters_of_each(
    groups: Sequence[Group], model: nn.Module
) -> tuple[tuple[tuple[Tensor, ...], ...], tuple[tuple[str, ...], ...]]:
    """The parameters of each group that are trained, a shared one once, and their names."""
    names = {id(one): name for name, one in model.named_parameters()}
    seen: set[int] = set()
    found: list[tuple[Tensor, ...]] = []
    for group in groups:
        trained = [one for top in group.modules for one in top.parameters() if one.requires_grad]
        own = tuple(one for one in dict.fromkeys(trained) if id(one) not in seen)
        seen.update(map(id, own))
        found.append(own)
    return tuple(found), tuple(tuple(names[id(one)] for one in own) for own in found)


def _peak_and_share(numbers: Tensor) -> Tensor:
    return torch.stack([numbers[0], numbers[1] / numbers[2].clamp(min=1.0)])


def _share(share: float, peak: float, limit: float) -> float:
    """The share of a sample; above 0, too, where only results outside of it are beyond the limit."""
    return share if share or peak < limit else UNSAMPLED_SHARE


def _copy(source: Tensor, target: Tensor) -> Tensor:
    return target.copy_(source, non_blocking=not target.is_cpu)


def _dense(gradient: Tensor) -> Tensor:
    """A gradient as real numbers whose norm is its own; of a sharded one, the part that this process holds."""
    gradient = local_of(gradient)
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def _agreed(rows: Tensor) -> Tensor:
    """The same rows in every process that trains together."""
    if not is_running():
        return rows
    group: Any = torch.distributed
    losses = rows[:, :1] / world_size()
    others = torch.nan_to_num(rows[:, 1:], nan=math.inf, posinf=math.inf)
    group.all_reduce(losses)
    group.all_reduce(others, op=group.ReduceOp.MAX)
    return torch.cat([losses, others], dim=1)
