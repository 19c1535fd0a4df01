"""Says whether a TrainStep can take over a state, before it changes anything."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer


def state_faults(state: Any, optimizers: Sequence[Optimizer], schedulers: Sequence[Any]) -> list[str]:
    """Why these optimizers and schedulers cannot take over ``state``; empty if they can."""
    faults: list[str] = []
    for kind, mine in (("optimizers", optimizers), ("schedulers", schedulers)):
        theirs = state.get(kind) if isinstance(state, Mapping) else None
        if theirs is None:
            return [f"this is no state_dict() of a TrainStep: it has no {kind}"]
        if len(theirs) != len(mine):
            faults.append(
                f"the state holds {len(theirs)} {kind}, this TrainStep has {len(mine)}; give it the same ones"
            )
    if faults:
        return faults
    for index, (one, saved) in enumerate(zip(optimizers, state["optimizers"], strict=True)):
        sizes = [[len(group["params"]) for group in groups] for groups in (saved["param_groups"], one.param_groups)]
        if sizes[0] != sizes[1]:
            faults.append(f"optimizers[{index}] has groups of {sizes[1]} parameters, the state of {sizes[0]}")
    return faults
