"""Notices ranks that did not begin alike, such as one that alone loaded a checkpoint."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from ampwise._base.errors import CannotRunError
from ampwise.compat import distributed as torchs
from ampwise.compat.optim import parameters_of
from ampwise.compat.rank_words import RankWords
from ampwise.interpose.internal import internal
from ampwise.runtime.hardware import host

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORDS: Final = {
    "scale": "loss scale {}",
    "steps": "{} steps taken by the optimizers",
    "rates": "learning rates {}",
    "parameters": "parameters whose checksum is {}",
}


class Likeness:
    """Compares in the first step what DistributedDataParallel takes for equal on all ranks, and tells in the second.

    Law: no rank ever waits for another: each leaves word, and reads those left before. All that take part raise in the
    same step. It costs one pass over the parameters and a word in each of two steps; both wait for the device.

    Args:
        words: where the ranks of the group leave each other word.
        params: of which all ranks hold the same.
        optimizers: of them.
        scale: gives the loss scale.
    """

    def __init__(
        self, words: RankWords, params: Sequence[Tensor], optimizers: Sequence[Optimizer], scale: Callable[[], float]
    ) -> None:
        self._params, self._optimizers, self._scale = params, optimizers, scale
        # the store is let go with the last of them
        self._tasks: list[Callable[[], None]] = [partial(self._compare, words), partial(self._tell, words)]

    def check(self) -> None:
        """Take part, in the first two steps.

        Raises:
            CannotRunError: the ranks did not begin alike; in the second step, on all of them.
        """
        if self._tasks:
            self._tasks.pop(0)()

    def _compare(self, words: RankWords) -> None:
        mine = {"rank": words.rank, **self._state()}
        first = json.loads(words.first("begun", json.dumps(mine)) or "{}")
        other = [key for key in _WORDS if None not in (first.get(key), mine[key]) and first[key] != mine[key]]
        if other:
            words.first("differs", _difference(first, mine, other))

    def _tell(self, words: RankWords) -> None:
        # every rank compared before it took part in the sum of this step's gradients, which a host may be ahead of
        with internal():
            for device in {param.device for param in self._params}:
                host.wait_for(device)
        found = words.get("differs")
        if found is not None:
            raise CannotRunError(
                f"the ranks did not begin alike: {found}. Load the same checkpoint on every rank, before the first step"
            )

    def _state(self) -> dict[str, Any]:
        with internal(), torch.no_grad():
            groups = [group for one in self._optimizers for group in one.param_groups]
            return {
                "scale": self._scale(),
                "steps": _num_steps(self._optimizers),
                "rates": [_number(group.get("lr")) for group in groups],
                "parameters": sum(map(_checksum, self._params)),
            }


def likeness_of(
    modules: Sequence[Module], optimizers: Sequence[Optimizer], scale: Callable[[], float]
) -> Callable[[], None]:
    """What to call in each step; it does nothing where there is no DistributedDataParallel of several ranks."""
    ddps = torchs.ddp_of(modules) if torchs.is_running() else []
    words = RankWords.of(torchs.group_of(ddps[0]), "likeness") if ddps else None
    if words is None:
        return _nothing
    own = {id(param) for ddp in ddps for param in torchs.ignored_by(ddp)}
    shared = {id(param) for param in ddps[0].parameters()} - own
    params = [param for one in optimizers for param in parameters_of(one) if id(param) in shared]
    return Likeness(words, params, optimizers, scale).check


def _nothing() -> None:
    pass


def _num_steps(optimizers: Sequence[Optimizer]) -> float | None:
    """The most of any parameter; None where each rank has the state of its own parameters, with gaps for others'."""
    states = list(_states(optimizers))
    if any(state is None for state in states):
        return None
    counts = [_number(state.get("step")) for state in states if isinstance(state, Mapping)]
    return max((one for one in counts if one is not None), default=0.0)


def _states(optimizers: Sequence[Optimizer]) -> Iterator[Any]:
    """What they keep of each parameter; some keep other things there too."""
    for one in optimizers:
        held: list[tuple[Any, Any]] = list(one.state.items())
        yield from (state for key, state in held if isinstance(key, Tensor))


def _number(value: Any) -> float | None:
    """As a float; None where it is none, such as the rate of an optimizer that finds its own."""
    is_one = isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1)
    return float(value) if is_one else None


def _checksum(param: Tensor) -> int:
    """The sum of all numbers' bits: the same in any order, so that every device comes to it."""
    local = torchs.local_of(param).detach().contiguous()
    real = torch.view_as_real(local) if local.is_complex() else local
    return int(real.view(_INTEGERS[real.element_size()]).sum(dtype=torch.int64))


def _difference(first: dict[str, Any], mine: dict[str, Any], keys: Sequence[str]) -> str:
    def of(state: dict[str, Any]) -> str:
        return f"rank {state['rank']} has " + ", ".join(_WORDS[key].format(_told(state[key])) for key in keys)

    return "; ".join(map(of, (first, mine)))


def _told(value: Any) -> str:
    if isinstance(value, list):
        return " and ".join(map(_told, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)
