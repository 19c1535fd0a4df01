"""What would make a training step take less, and by how much, from what it holds at its peak."""

from collections.abc import Iterator

from ampwise.records.estimate import Estimate, Remedy
from ampwise.records.memory import MemoryCategory as Kind
from ampwise.records.site import Phase


def remedies_for(estimate: Estimate) -> tuple[Remedy, ...]:
    """What to change, the largest saving first; each alone, and none below a hundredth of the peak.

    The savings are of the peak as it is: another moment of the step may be the next one.
    """
    found = [one for one in _all(estimate) if one.saved_bytes * 100 >= estimate.allocated_bytes]
    return tuple(sorted(found, key=lambda one: -one.saved_bytes))


def _all(estimate: Estimate) -> Iterator[Remedy]:
    held = {part.category: part.bytes for part in estimate.categories}
    activations, state = held.get(Kind.ACTIVATION, 0), held.get(Kind.OPTIMIZER_STATE, 0)
    temporaries = held.get(Kind.TEMPORARY, 0)
    if estimate.peak_phase == Phase.OPTIMIZER:
        yield Remedy(what="the optimizer with fused=True, which makes no copies of its own", saved_bytes=temporaries)
    yield Remedy(
        what="activation checkpointing of each block (torch.utils.checkpoint), for about a third more time",
        saved_bytes=activations * 3 // 4,
    )
    yield Remedy(what="half the batch, two of them accumulated to a step", saved_bytes=activations // 2)
    if estimate.precision in {"fp32", "tf32"}:
        yield Remedy(what="mixed precision: --precision bf16", saved_bytes=activations // 2)
    yield Remedy(what="an optimizer whose state has 8 bits, such as bitsandbytes'", saved_bytes=state * 3 // 4)
