"""Updates that a run loses to its format: weights whose gradients vanish where fp32 has some. No loss shows it soon."""

from typing import Final

from ampwise._base.text import inert_line
from ampwise.records.numerics import NumericsRecord, TensorKind
from ampwise.records.run import RunRecord

_MOST: Final = 0.5
"""From such a share of a weight's gradient on that vanishes, the weight is not trained as in fp32."""
_LEAST: Final = 16
"""Of fewer numbers a share says little."""

_Weight = tuple[str, str]
"""A module's path, and its parameter's name."""


def lost_updates(run: RunRecord, fp32: RunRecord) -> str | None:
    """A sentence for the weight that loses most of its updates in ``run``; None where no weight loses half of them."""
    if run.numerics is None or fp32.numerics is None:
        return None
    mine, theirs = _nonzero(run.numerics), _nonzero(fp32.numerics)
    lost = {place: 1.0 - share / theirs[place] for place, share in mine.items() if theirs.get(place)}
    worst = max(lost, key=lost.__getitem__, default=None)
    if worst is None or lost[worst] < _MOST:
        return None
    module, parameter = (inert_line(part, max_length=60) for part in worst)
    more = sum(share >= _MOST for share in lost.values()) - 1
    others = f"; {more} other weight{'s lose' if more > 1 else ' loses'} at least half" if more else ""
    name = f"{module}.{parameter}" if module else parameter
    return f"{lost[worst]:.0%} of the updates of {name} are lost, for its gradient vanishes{others}"


def _nonzero(record: NumericsRecord) -> dict[_Weight, float]:
    """What share of each weight's gradient is not zero."""
    shares: dict[_Weight, float] = {}
    for one in record.tensors:
        counted = one.histogram.num_nonzero + one.histogram.num_zeros
        if one.kind is TensorKind.WEIGHT_GRADIENT and one.parameter is not None and counted >= _LEAST:
            shares[one.module, one.parameter] = one.histogram.num_nonzero / counted
    return shares
