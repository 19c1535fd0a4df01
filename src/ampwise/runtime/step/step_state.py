"""Says whether a TrainStep can take over a state, before it changes anything."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer


def state_faults(state: Any, optimizers: Sequence[Optimizer], schedulers: Sequence[Any]) -> list[str]:
    """Why these optimizers and schedulers cannot take over ``state``; empty if they can."""
    missing = [kind for kind in ("optimizers", "schedulers") if not isinstance(state, Mapping) or kind not in state]
    if missing:
        return [f"this is no state_dict() of a TrainStep: it has no {' and no '.join(missing)}"]
    faults: list[str] = []
    for kind, mine in (("optimizers", optimizers), ("schedulers", schedulers)):
        if len(state[kind]) != len(mine):
            faults.append(
                f"the state holds {len(state[kind])} {kind}, this TrainStep has {len(mine)}; give it the same ones"
            )
    if faults:
        return faults
    for index, (one, saved) in enumerate(zip(optimizers, state["optimizers"], strict=True)):
        sizes = [[len(group["params"]) for group in groups] for groups in (saved["param_groups"], one.param_groups)]
        if sizes[0] != sizes[1]:
            faults.append(f"optimizers[{index}] has groups of {sizes[1]} parameters, the state of {sizes[0]}")
    return faults
