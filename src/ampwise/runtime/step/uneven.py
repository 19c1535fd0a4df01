"""Lets ranks with different numbers of batches train together: a TrainStep within torch's ``Join``."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.join import Joinable, JoinHook

from ampwise._base.errors import UsageError
from ampwise.compat.collectives import all_reduced, broadcast
from ampwise.compat.tree import map_tensors
from ampwise.runtime.step.step import TrainStep


def joinable(step: TrainStep) -> Joinable:
    """What lets ``step`` be used where ranks run out of batches one after another.

    Example::

        model = DistributedDataParallel(net)
        step = TrainStep(optimizer, modules=[model])
        with Join([model, joinable(step)]):
            for x, y in loader:  # of another length on each rank
                ...

    A rank that has run out goes on answering what the others ask of it. At the end every rank has the loss scale, the
    optimizers' state and the schedules of one that came last, as DistributedDataParallel sees to the parameters;
    without this they stay as they were when each rank ran out.

    Args:
        step: of every rank; its ``modules`` hold the DistributedDataParallel, which stands first in ``Join``.

    Raises:
        UsageError: nothing says which ranks train together.
    """
    peers = step.preparation.peers
    if peers is None or len(peers.groups) != 1:
        raise UsageError(
            "joinable() was given a TrainStep that trains alone, or over a mesh, which torch's Join does not know: "
            "give it modules=[model] with the DistributedDataParallel, in a running process group"
        )
    return _JoinedStep(step, peers.groups[0])


class _JoinedStep(Joinable):
    def __init__(self, step: TrainStep, group: Any) -> None:
        super().__init__()
        self._step, self._group = step, group

    def join_hook(self, **kwargs: Any) -> JoinHook:  # noqa: ARG002 - torch's signature
        return _Hook(self._step, self._group)

    @property
    def join_device(self) -> torch.device:
        return self._step.preparation.device

    @property
    def join_process_group(self) -> Any:
        return self._group


class _Hook(JoinHook):
    def __init__(self, step: TrainStep, group: Any) -> None:
        self._step, self._group = step, group

    def main_hook(self) -> None:
        """Answer one step of the ranks that still have batches."""
        self._step.preparation.answer()

    def post_hook(self, is_last_joiner: bool) -> None:  # noqa: FBT001 - torch's signature
        """Take over the state of a rank that came last."""
        rank, device = dist.get_rank(self._group), self._step.preparation.device
        last = torch.tensor(rank if is_last_joiner else -1, device=device)
        source = int(all_reduced(last, dist.ReduceOp.MAX, group=self._group))
        # on the host: a tensor of the source's GPU would be unpacked onto that GPU by every rank
        state = map_tensors(Tensor.cpu, self._step.state_dict()) if rank == source else {}
        state = broadcast(state, group=self._group, source=source, near=device)
        if rank != source:
            self._step.load_state_dict({**state, **self._own()})

    def _own(self) -> dict[str, Any]:
        """What stays this rank's: the optimizers' state where it has parameters that no other rank has."""
        ranks = self._step.preparation.peers
        return {"optimizers": self._step.state_dict()["optimizers"]} if ranks is not None and ranks.distinct else {}
