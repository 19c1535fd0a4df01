"""Lets all ranks know, before one steps, whether any rank's gradients are infinite, and the norm of all of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import mul
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.compat import collectives
from ampwise.compat import distributed as torchs
from ampwise.compat.distributed import Group
from ampwise.compat.fused_step import wide_norms_of
from ampwise.compat.optim import parameters_of
from ampwise.interpose.internal import internal
from ampwise.runtime.gradients.gradients import local_gradient
from ampwise.runtime.hardware import host

T = TypeVar("T")
Found = dict[torch.device, Tensor]
"""For each device, above 0 where gradients there are not finite."""
_TOLERANCE = 1e-6
"""Of rounding; scales that differ do so by a good part."""
_WIDE = ("cpu", "cuda", "meta")
"""Devices that know fp64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """What one rank knows of one optimizer's gradients; after ``settle`` what all ranks know together."""

    found: Found
    has_gradients: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What all ranks agree on.

    Attributes:
        steps: for each optimizer, whether any rank has gradients for it.
        norm: of all gradients of all ranks together, 0-dim fp32; None if it was not asked for.
    """

    steps: tuple[bool, ...]
    norm: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The ranks that must step together, or not at all.

    Law: every rank that calls ``settle`` gets the same answer, bit for bit, and one that has no gradient takes part.
    A call is one reduction (one for each dimension of a mesh that is not the whole world) of three numbers and two more
    for each optimizer; nothing waits for a device but a rank that has no gradients itself.

    Attributes:
        groups: one reduction over each, one after the other, reaches all ranks.
        distinct: by ``id``, plain parameters of which every rank has its own: experts, stages of a pipeline.
    """

    groups: tuple[Group, ...]
    distinct: frozenset[int] = frozenset()

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return reduce(mul, (torchs.size_of(one) for one in self.groups), 1)

    def settle(
        self,
        ballots: Sequence[Ballot],
        *,
        device: torch.device,
        scale: Tensor | None,
        norm_of: Sequence[Tensor] = (),
        looks: bool = False,
    ) -> Settled:
        """Put all ranks' ballots together, in place.

        Args:
            ballots: one for each optimizer, in the same order on every rank.
            device: where the optimizers' parameters are.
            scale: what the gradients were scaled by; None is 1.
            norm_of: parameters of whose gradients the norm is taken; none of them leaves it out.
            looks: compare the ranks' scales though that waits for the device; where it costs nothing it is always done.

        Raises:
            CannotRunError: the loss scale is not the same on all ranks.
        """
        with internal(), torch.no_grad():
            own = [sum((one.to(device) for one in ballot.found.values()), _number(0.0, device)) for ballot in ballots]
            has = [_number(float(ballot.has_gradients), device) for ballot in ballots]
            squares = self._squares(norm_of, device)
            factor = _number(1.0, device) if scale is None else scale.to(squares).reshape(())
            numbers = self.sum(torch.stack([*own, *has, squares, factor, factor.square()]))
            if looks or host.reads_freely(device):
                self._compare(factor, *numbers[-2:].tolist())
            count = len(ballots)
            for place, ballot in enumerate(ballots):
                for one in ballot.found.values():
                    one.copy_((numbers[place] != 0).to(one.device).reshape(one.shape))
            # a rank that lacks gradients has to look whether others have some; the rest know it without
            steps = [ballot.has_gradients or bool(numbers[count + place] != 0) for place, ballot in enumerate(ballots)]
            norm = numbers[2 * count].sqrt().float() if norm_of else None
        return Settled(steps=tuple(steps), norm=norm)

    def sum(self, numbers: Tensor) -> Tensor:
        """The sum over all ranks."""
        return self._reduced(numbers, dist.ReduceOp.SUM)

    def max(self, numbers: Tensor) -> Tensor:
        """The largest over all ranks, element by element."""
        return self._reduced(numbers, dist.ReduceOp.MAX)

    def first(self, mine: T, *, near: torch.device) -> T:
        """What the first rank has, such as the precision it chose; anything that can be pickled.

        Args:
            mine: this rank's.
            near: where this rank computes.
        """
        for group in self.groups:
            mine = collectives.broadcast(mine, group=group, near=near)
        return mine

    def check_scale(self, scale: Tensor, *, leaves: bool = False) -> None:
        """Refuse, on every rank alike, gradients that are summed over ranks and scaled differently in each.

        Args:
            scale: this rank's.
            leaves: whether this rank asks the others after each step if one was told to leave.

        Raises:
            CannotRunError: the loss scale is not the same on all ranks, or some ranks alone ask.
        """
        with internal(), torch.no_grad():
            one, asks = scale.detach().reshape(()).to(_wide(scale.device)), _number(float(leaves), scale.device)
            largest, smallest, *asked = self.max(torch.stack([one, -one, asks, -asks])).tolist()
        if asked[0] != -asked[1]:
            raise CannotRunError(
                f"on_preemption= was given on some ranks and not on others (here {'it was' if leaves else 'not'}): all "
                "ranks have to leave after the same step. Give it on every rank; the function may save on one alone"
            )
        if largest != -smallest:
            raise CannotRunError(
                f"the loss scale is not the same on all ranks: it lies between {-smallest:g} and {largest:g} (here "
                f"{float(scale):g}). Gradients are summed over ranks while they are scaled, so each would count by its "
                "rank's scale. Give every rank the same precision and loss_scale, and load the same checkpoint on "
                "every rank. A scale for each rank is possible only where gradients are unscaled before they are "
                "reduced, as under `ampwise run`"
            )

    def _compare(self, scale: Tensor, total: float, squares: float) -> None:
        """Find out from the scales' sum and the sum of their squares whether they are all the same."""
        if abs(squares * self.size - total * total) > _TOLERANCE * total * total:
            self.check_scale(scale)

    def _squares(self, params: Sequence[Tensor], device: torch.device) -> Tensor:
        """This rank's share of the sum of all gradients' squares: a part held by several ranks counts as one."""
        total, size = _number(0.0, device), self.size
        parts: dict[tuple[int, torch.device, torch.dtype], list[Tensor]] = {}
        for param in params:
            grad = local_gradient(param)
            if grad is not None and grad.numel():
                count = size if id(param) in self.distinct else torchs.num_shards(param)
                parts.setdefault((count, grad.device, grad.dtype), []).append(grad)
        for (count, _, _), grads in parts.items():
            squares = wide_norms_of(grads).to(device, total.dtype).square().sum()
            total = total + squares * (count / size)
        return total

    def _reduced(self, numbers: Tensor, operation: Any) -> Tensor:
        carried = numbers
        for group in self.groups:
            carried = collectives.all_reduced(carried, operation, group=group)
        return carried.to(numbers.device)


@dataclass(slots=True)
class Ranks:
    """Which ranks each optimizer's gradients are to be agreed with.

    Args:
        group: the ranks, where the user names them; else parameters and modules say.
        modules: the models trained, if they are known.
    """

    group: Group | None = None
    modules: tuple[Module, ...] = ()
    _known: "WeakKeyDictionary[Optimizer, tuple[int, Agreement | None]]" = field(default_factory=WeakKeyDictionary)

    def of(self, optimizer: Optimizer) -> Agreement | None:
        """The ranks to agree with; None where all have the same gradients anyway, or there is but one."""
        if not torchs.is_started():
            return None
        params = parameters_of(optimizer)
        known = self._known.get(optimizer)
        if known is None or known[0] != len(params):
            known = self._known[optimizer] = len(params), find_agreement(params, group=self.group, modules=self.modules)
        return known[1]

    def peers(self) -> Agreement | None:
        """All ranks that train together, as far as it is known; None where this one trains alone.

        Raises:
            UsageError: there are several ranks, and nothing says which train together.
        """
        if not torchs.is_running():
            return None
        agreed = next((one for _, one in self._known.values() if one is not None), None)
        peers = Agreement(groups=(self.group,)) if self.group is not None else peers_of(self.modules, agreed)
        if peers is None:
            raise UsageError(
                "losses with names have scales of their own, which all ranks must move together, and nothing says who "
                "trains together: give process_group= (torch.distributed.group.WORLD is all), or a TrainStep modules=[]"
                " with the DistributedDataParallel"
            )
        return peers


def find_agreement(
    params: Sequence[Tensor], *, group: Group | None = None, modules: Sequence[Module] = ()
) -> Agreement | None:
    """The ranks that must agree before ``params`` are updated; None where they agree without being asked.

    DistributedDataParallel gives every rank the same sum bit for bit, and an infinity or a NaN of one rank is in it, so
    there is nothing to agree on. Sharded gradients differ, and so do those DistributedDataParallel was told to ignore.

    Args:
        params: of the optimizers.
        group: the ranks, where the user names them: every plain parameter outside of DistributedDataParallel is then
            taken for another one on every rank.
        modules: the models trained, as the loop calls them.

    Raises:
        UsageError: parameters lie on meshes that nothing joins.
    """
    if not torchs.is_started():
        return None
    ddps = torchs.ddp_of(modules)
    trained = set(map(id, params))
    ignored = [one for ddp in ddps for one in torchs.ignored_by(ddp) if id(one) in trained]
    own = frozenset(map(id, ignored))
    if group is not None:
        shared = {id(param) for ddp in ddps for param in ddp.parameters()} - own
        plain = (id(param) for param in params if not torchs.is_sharded(param))
        return Agreement(groups=(group,), distinct=frozenset(plain) - shared)
    groups = torchs.groups_of_meshes(params)
    if groups is None:
        raise UsageError("the parameters lie on device meshes that have no root in common; give process_group=")
    if groups:
        return Agreement(groups=groups, distinct=own)
    flat = frozenset(id(param) for param in params if torchs.is_fsdp1(param))
    if flat:
        groups, cuts = torchs.fsdp1_groups(modules)
        return Agreement(groups=tuple(groups[:1]) or (dist.group.WORLD,), distinct=flat if cuts else frozenset())
    return Agreement(groups=(torchs.group_of(ddps[0]),), distinct=own) if ignored else None


def peers_of(modules: Iterable[Module], agreement: Agreement | None) -> Agreement | None:
    """All ranks that train these models, whether or not their gradients need agreement; None if there is but one."""
    if agreement is not None or not torchs.is_running():
        return agreement
    ddps = torchs.ddp_of(modules)
    return Agreement(groups=(torchs.group_of(ddps[0]),)) if ddps else None


def _wide(device: torch.device) -> torch.dtype:
    return torch.float64 if device.type in _WIDE else torch.float32


def _number(value: float, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=_wide(device), device=device)
