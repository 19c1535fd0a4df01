"""What moves a group of modules to a safer format, as values: each judges a reading, then takes it in.

Law of every trigger: ``judge`` and ``observe`` change nothing, ``judge`` looks at what was taken in before alone, and a
trigger that was written to plain data and read back is equal to it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from ampwise._base.errors import UsageError
from ampwise._base.suggest import not_one_of
from ampwise._base.text import inert_line
from ampwise.adapt.options import Range, settled
from ampwise.adapt.reading import CALM, Reading, Verdict
from ampwise.adapt.usual import Usual, with_latest
from ampwise.formats.table import find_format, get_format
from ampwise.runtime.scaling.scale_numbers import refuse

_ALMOST = 0.99
"""The level of what would fire but for one thing: it keeps a group up."""
_TINY = 1e-30
"""Keeps a threshold above zero where every number of a history is the same."""
_ABOVE_ZERO = Range(above=0.0)
_NOT_NEGATIVE = Range(least=0.0)
_COUNT = Range(is_whole=True, least=1)
SCALED: Final = ("fp8_e4m3", "fp8_e5m2")
"""The formats in which a tensor has a scale that makes its largest magnitude the format's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurvature:
    """Fires when the loss bends more than it usually does: ``|l[t] - 2 l[t-1] + l[t-2]|`` against its own history.

    Args:
        num_deviations: how many robust deviations above its median the curvature is too large.
        window: over how many of the last steps both are taken.
        min_history: how many of them it takes to know.
        losses: the last two.
        curvatures: the history.
    """

    num_deviations: float = 10.0
    window: int = 100
    min_history: int = 20
    losses: tuple[float, ...] = ()
    curvatures: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        refuse(_history_faults(self, {"num_deviations": _ABOVE_ZERO}), type(self).__name__)

    def judge(self, reading: Reading) -> Verdict:
        """How near the loss's curvature comes to what is too large."""
        if reading.loss is not None and not math.isfinite(reading.loss):
            return _loss_not_finite(reading)
        curvature = _curvature(self.losses, reading.loss)
        if curvature is None or len(self.curvatures) < self.min_history:
            return CALM
        usual = Usual.of(self.curvatures)
        limit = usual.threshold(self.num_deviations, at_least=_TINY)
        return Verdict(
            levels=(curvature / limit,), causes=(f"loss curvature {curvature:.3g}, usually {usual.median:.3g}",)
        )

    def observe(self, reading: Reading) -> Self:
        """The trigger after the reading."""
        curvature = _curvature(self.losses, reading.loss)
        return replace(
            self,
            losses=with_latest(self.losses, reading.loss, window=2),
            curvatures=with_latest(self.curvatures, curvature, window=self.window),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsoluteLossCurvature:
    """Fires by the plain rule: the mean ``|l[t] - 2 l[t-1] + l[t-2]|`` of the last losses is above a fixed number.

    It knows nothing of how large or how noisy the loss is: choose the threshold for the loss at hand.

    Args:
        threshold: the mean curvature at which it fires.
        window: how many of the last losses are taken.
        min_history: from which loss on.
        losses: the last ones.
    """

    threshold: float = 0.02
    window: int = 10
    min_history: int = 5
    losses: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        refuse(_history_faults(self, {"threshold": _ABOVE_ZERO}, least=3), type(self).__name__)

    def judge(self, reading: Reading) -> Verdict:
        """How near the mean curvature comes to the threshold."""
        if reading.loss is not None and not math.isfinite(reading.loss):
            return _loss_not_finite(reading)
        losses = with_latest(self.losses, reading.loss, window=self.window)
        if len(losses) < self.min_history:
            return CALM
        bends = [abs(c - 2 * b + a) for a, b, c in zip(losses, losses[1:], losses[2:], strict=False)]
        mean = sum(bends) / len(bends)
        cause = f"mean loss curvature {mean:.3g} over {len(losses)} steps, allowed {self.threshold:g}"
        return Verdict(levels=(mean / self.threshold,), causes=(cause,))

    def observe(self, reading: Reading) -> Self:
        """The trigger after the reading."""
        return replace(self, losses=with_latest(self.losses, reading.loss, window=self.window))


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpike:
    """Fires when the loss stays far above its last ones; a bad batch or two do not move it.

    Args:
        num_deviations: how many robust deviations above their median it is too large.
        min_rise: it is not too large if it is above their median by less than this share of it.
        in_a_row: how many steps in a row it has to be too large.
        window: how many of the last losses are taken.
        min_history: how many of them it takes to know.
        losses: the history. What is too large is not taken in, unless it lasts: half a window of it is what is usual.
        high: the last ones in a row that were too large.
    """

    num_deviations: float = 6.0
    min_rise: float = 0.1
    in_a_row: int = 5
    window: int = 50
    min_history: int = 10
    losses: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        refuse(
            _history_faults(self, {"num_deviations": _ABOVE_ZERO, "min_rise": _NOT_NEGATIVE, "in_a_row": _COUNT}),
            type(self).__name__,
        )

    def judge(self, reading: Reading) -> Verdict:
        """How near the loss comes to what is too large, for long enough."""
        if reading.loss is None:
            return CALM
        if not math.isfinite(reading.loss):
            return _loss_not_finite(reading)
        level = self._level(reading.loss)
        count = len(self.high) + 1
        if count < self.in_a_row:
            level = min(level, _ALMOST)
        usual = Usual.of(self.losses or (reading.loss,)).median
        steps = f" for {count} steps" if count > 1 else ""
        return Verdict(levels=(level,), causes=(f"loss {reading.loss:.4g}{steps}, usually {usual:.4g}",))

    def observe(self, reading: Reading) -> Self:
        """The trigger after the reading."""
        if reading.loss is None or not math.isfinite(reading.loss):
            return self
        if self._level(reading.loss) < 1.0:
            return replace(self, losses=with_latest(self.losses, reading.loss, window=self.window), high=())
        high = (*self.high, reading.loss)
        if len(high) < max(self.window // 2, self.in_a_row, self.min_history):
            return replace(self, high=high)
        return replace(self, losses=high[-self.window :], high=())

    def _level(self, loss: float) -> float:
        if len(self.losses) < self.min_history:
            return 0.0
        usual = Usual.of(self.losses)
        limit = usual.threshold(self.num_deviations, at_least=max(self.min_rise * abs(usual.median), _TINY))
        return max((loss - usual.median) / (limit - usual.median), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradNormSpike:
    """Fires for the groups whose gradients are far larger than they were; norms are compared by their logarithms.

    Args:
        num_deviations: how many robust deviations above its median a norm's logarithm is too large.
        min_octaves: it is not too large if it is above the median by fewer doublings.
        window: how many of the last steps are taken.
        min_history: how many of them it takes to know.
        octaves: the history of each group's norms, as powers of two.
    """

    num_deviations: float = 6.0
    min_octaves: float = 2.0
    window: int = 50
    min_history: int = 10
    octaves: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        refuse(
            _history_faults(self, {"num_deviations": _ABOVE_ZERO, "min_octaves": _NOT_NEGATIVE}), type(self).__name__
        )

    def judge(self, reading: Reading) -> Verdict:
        """How near the norm of each group comes to what is too large for it."""
        if not self.octaves or not reading.norms:
            return CALM
        judged = [self._level(norm, past) for norm, past in zip(reading.norms, self.octaves, strict=True)]
        return Verdict(levels=tuple(level for level, _ in judged), causes=tuple(cause for _, cause in judged))

    def observe(self, reading: Reading) -> Self:
        """The trigger after the reading."""
        if not reading.norms:
            return self
        before = self.octaves or ((),) * len(reading.norms)
        after = tuple(
            with_latest(past, _octave(norm), window=self.window)
            for past, norm in zip(before, reading.norms, strict=True)
        )
        return replace(self, octaves=after)

    def _level(self, norm: float, past: tuple[float, ...]) -> tuple[float, str]:
        octave = _octave(norm)
        if octave is None or len(past) < self.min_history:  # what is not finite may be the loss scale's doing
            return 0.0, ""
        usual = Usual.of(past)
        limit = usual.threshold(self.num_deviations, at_least=max(self.min_octaves, _TINY))
        level = max((octave - usual.median) / (limit - usual.median), 0.0)
        return level, f"gradient norm {norm:.3g}, usually {2.0**usual.median:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """Fires when numbers are lost, for the group that lost them where that can be told.

    A loss or results that are not finite move it at once, and so do gradients without a loss scale. Gradients under a
    loss scale do after ``in_a_row`` steps: fewer are the scale coming down, as it does at the start from 2^16. Of the
    groups, the first whose results are not finite is to blame, else the last whose gradients are not; all are, if that
    one was raised already. A group that is up stays so while its results are larger than its low format holds.

    Args:
        in_a_row: how many steps in a row have to lose their gradients under a loss scale.
        num_in_a_row: how many did by now.
    """

    in_a_row: int = 8
    num_in_a_row: int = 0

    def __post_init__(self) -> None:
        refuse(settled(self, {"in_a_row": _COUNT}), type(self).__name__)

    def judge(self, reading: Reading) -> Verdict:
        """Whether the step lost numbers, and which group did."""
        beyond = tuple(_ALMOST if share > 0.0 else 0.0 for share in reading.shares)
        if not (reading.has_bad_results or reading.has_bad_gradients):
            return Verdict(levels=beyond, causes=("",) * len(beyond)) if beyond else CALM
        waits = reading.is_scaled and not reading.has_bad_results
        count = self.num_in_a_row + 1
        level = count / self.in_a_row if waits else 1.0
        place, cause = _culprit(reading)
        if waits and count > 1:
            cause = f"{cause}, {count} steps in a row"
        if place is None:
            return Verdict(levels=(level,), causes=(cause,), is_urgent=True)
        levels = tuple(
            max(level if one == place else 0.0, beyond[one] if beyond else 0.0) for one in range(len(reading.raised))
        )
        return Verdict(levels=levels, causes=(cause,) * len(levels), is_urgent=True)

    def observe(self, reading: Reading) -> Self:
        """The trigger after the reading."""
        is_bad = reading.has_bad_results or reading.has_bad_gradients
        return replace(self, num_in_a_row=self.num_in_a_row + 1 if is_bad else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowShare:
    """Fires for the groups among whose results too many are beyond what a format holds, or nearly so.

    Args:
        above: the share that is too large.
        headroom: counted is what exceeds the format's largest number divided by this.
        format: which format; None is the one that the plan computes the group in.
    """

    above: float = 0.0
    headroom: float = 2.0
    format: str | None = None

    def __post_init__(self) -> None:
        faults = settled(self, {"above": Range(least=0.0, below=1.0), "headroom": Range(least=1.0)})
        if self.format is not None:
            try:  # the value is frozen, but not out of its constructor yet
                object.__setattr__(self, "format", get_format(inert_line(str(self.format))).name)
            except UsageError as error:
                faults.append(f"format: {error}")
        refuse(faults, type(self).__name__)

    def judge(self, reading: Reading) -> Verdict:
        """How near the share of each group comes to what is too large."""
        if not reading.shares:
            return CALM
        levels = tuple(one / self.above if self.above else float(one > 0.0) for one in reading.shares)
        causes = tuple(
            f"{_percent(share)} of its results beyond the format, the largest {peak:.3g}"
            for share, peak in zip(reading.shares, reading.peaks, strict=True)
        )
        return Verdict(levels=levels, causes=causes, is_urgent=True)

    def observe(self, reading: Reading) -> Self:  # noqa: ARG002 - the law of every trigger
        """The trigger after the reading: itself."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderflowShare:
    """Fires for the groups that lose too much of what their products take, in fp8 with one scale a tensor.

    There an outlier overflows nothing: the scale makes room for it, and what is too small beside it becomes zero. The
    loss shows that late or, where all batches are such, never. Where fp8 is neither named nor emulated it sees nothing.

    Args:
        above: the share of the numbers given to one product, zeros left out, that is too large.
        format: which fp8 format; None is the one that is emulated when the scheduler is made.
    """

    above: float = 0.1
    format: str | None = None

    def __post_init__(self) -> None:
        faults = settled(self, {"above": Range(above=0.0, below=1.0)})
        if self.format is not None:
            word = inert_line(str(self.format), max_length=60)
            found = find_format(word)
            if found is None or found.name not in SCALED:
                faults.append(f"format: {not_one_of(word, SCALED, kind='format with one scale a tensor')}")
            else:  # the value is frozen, but not out of its constructor yet
                object.__setattr__(self, "format", found.name)
        refuse(faults, "UnderflowShare")

    def judge(self, reading: Reading) -> Verdict:
        """How near the share of each group comes to what is too large."""
        if not reading.vanished:
            return CALM
        causes = tuple(
            f"{one:.0%} of what a product takes is too small for fp8 beside the largest" for one in reading.vanished
        )
        return Verdict(levels=tuple(one / self.above for one in reading.vanished), causes=causes)

    def observe(self, reading: Reading) -> Self:  # noqa: ARG002 - the law of every trigger
        """The trigger after the reading: itself."""
        return self


Trigger = LossCurvature | AbsoluteLossCurvature | LossSpike | GradNormSpike | NonFinite | OverflowShare | UnderflowShare


def _history_faults(trigger: Any, ranges: Mapping[str, Range], *, least: int = 1) -> list[str]:
    faults = settled(trigger, {"window": _COUNT, "min_history": Range(is_whole=True, least=least)})
    if not faults and trigger.min_history > trigger.window:
        faults.append(f"min_history is {trigger.min_history}; it must be {least} to window ({trigger.window})")
    return [*faults, *settled(trigger, ranges)]


def _percent(share: float) -> str:
    return f"{share:.2%}" if share >= 1e-4 or not share else "less than 0.01%"


def _curvature(losses: tuple[float, ...], loss: float | None) -> float | None:
    return None if loss is None or len(losses) < 2 else abs(loss - 2 * losses[-1] + losses[-2])


def _octave(norm: float) -> float | None:
    return math.log2(norm) if 0.0 < norm < math.inf else None


def _loss_not_finite(reading: Reading) -> Verdict:
    """All groups may be to blame, unless a trigger looks at their results, which tell more."""
    return CALM if reading.peaks else Verdict(levels=(math.inf,), causes=(f"loss is {reading.loss}",), is_urgent=True)


def _culprit(reading: Reading) -> tuple[int | None, str]:
    """The group that lost numbers, and what is seen of it; None where all may have."""
    bad_peaks = [place for place, one in enumerate(reading.peaks) if not math.isfinite(one)]
    bad_norms = [place for place, one in enumerate(reading.norms) if not math.isfinite(one)]
    if bad_peaks:
        place, cause = bad_peaks[0], "its results are not finite"
    elif reading.has_bad_results:
        return None, f"loss is {reading.loss}"
    elif bad_norms:
        place = bad_norms[-1]
        suspect = reading.suspects[place] if reading.suspects else ""
        cause = f"gradient of {suspect} is not finite" if suspect else "its gradients are not finite"
    else:
        return None, "step skipped: gradients not finite"
    is_raised = place < len(reading.raised) and reading.raised[place]
    return (None, f"{cause}, in the safer format too") if is_raised else (place, cause)
