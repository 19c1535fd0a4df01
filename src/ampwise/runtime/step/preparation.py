"""What happens to gradients between the backward pass and the optimizers: unscaled, agreed on, corrected, clipped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from ampwise._base.errors import UsageError
from ampwise.compat.optim import has_gradients
from ampwise.runtime.gradients.gradients import clip_by_norm_, local_gradient
from ampwise.runtime.hardware import host
from ampwise.runtime.ranks.distributed import Agreement, Ballot
from ampwise.runtime.ranks.likeness import likeness_of
from ampwise.runtime.scaling.scaler import GradScaler
from ampwise.runtime.step.update import ClippedUpdate, clip_


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Gradients that are ready for the optimizers.

    Attributes:
        stepping: the optimizers that have gradients, on this rank or another.
        norm: of all unscaled gradients of all ranks together; None without clipping by norm.
        update: what unscales, clips and steps in one; None where ``GradScaler.step`` does it.
    """

    stepping: tuple[Optimizer, ...]
    norm: Tensor | None = None
    update: ClippedUpdate | None = None


class Preparation:
    """Prepares the gradients of some optimizers for one step after the other.

    Args:
        optimizers: in the same order on every rank.
        params: all of theirs.
        scaler: what scaled the loss.
        max_norm: what the norm of all gradients is clipped to.
        max_value: what every element is clipped to.
        agreement: the ranks that step together; None where they agree without being asked.
        peers: all ranks that train together.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        params: Sequence[Tensor],
        scaler: GradScaler,
        *,
        max_norm: float | None,
        max_value: float | None,
        agreement: Agreement | None = None,
        peers: Agreement | None = None,
    ) -> None:
        self._optimizers, self._params, self._scaler = tuple(optimizers), params, scaler
        self._max_norm, self._max_value = max_norm, max_value
        self.agreement, self.peers = agreement, peers
        self._check_likeness: Callable[[], None] = _nothing
        self._is_together = agreement is not None and (scaler.is_enabled() or max_norm is not None)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self._params[0].device

    def answer(self) -> None:
        """Take part in a step of other ranks for which this one has nothing; the loss scale moves as theirs."""
        if not self._is_together or self.agreement is None:
            return
        scaler, is_scaled = self._scaler, self._scaler.is_enabled()
        if is_scaled:
            scaler.scale(torch.zeros((), device=self.device))
        ballots = [scaler.ballot(one) if is_scaled else _no_ballot(one) for one in self._optimizers]
        norm_of = () if self._max_norm is None else self._params
        self.agreement.settle(ballots, device=self.device, scale=scaler.snapshot_scale(), norm_of=norm_of)
        if is_scaled:
            scaler.update()

    def check_start(self, modules: Sequence[Module] = (), *, leaves: bool = False) -> None:
        """Refuse a loss scale that is not that of all ranks, and see to it that the first steps compare the rest.

        Args:
            modules: the models trained.
            leaves: whether all ranks ask after each step if one was told to leave.

        Raises:
            CannotRunError: it is not; on every rank.
        """
        if self.peers is not None:
            self.peers.check_scale(torch.tensor(self._scale(), device=self.device), leaves=leaves)
            self._check_likeness = likeness_of(modules, self._optimizers, self._scale)

    def prepare(self, *, correction: float) -> Prepared:
        """Unscale, correct and clip, as far as it is asked for; on every rank or on none.

        Args:
            correction: what a short window of accumulation is multiplied by.

        Raises:
            UsageError: no optimizer has a gradient, on any rank.
            CannotRunError: the ranks' loss scales differ, or the ranks did not begin alike.
        """
        self._check_likeness()
        stepping = tuple(one for one in self._optimizers if has_gradients(one))
        if self._is_together and self.agreement is not None:
            return self._prepare_together(self.agreement, correction=correction)
        _refuse_none(stepping)
        self._scaler.measure(*stepping)
        update = self._plan_update(stepping, correction=correction)
        norm = update.norm if update else self._prepare_alone(stepping, correction=correction)
        return Prepared(stepping=stepping, norm=norm, update=update)

    def _plan_update(self, stepping: Sequence[Optimizer], *, correction: float) -> ClippedUpdate | None:
        """On a CPU, the update group by group; None where torch's own sequence is to be taken."""
        is_on_cpu = all(map(host.reads_freely, {param.device for param in self._params}))
        if correction != 1.0 or self._max_norm is None or not is_on_cpu:
            return None
        scale = self._scaler.snapshot_scale()
        value = 1.0 if scale is None else scale.item()
        return ClippedUpdate.plan(stepping, self._params, scale=value, max_norm=self._max_norm)

    def _prepare_alone(self, stepping: Sequence[Optimizer], *, correction: float) -> Tensor | None:
        if correction == 1.0 and self._max_norm is None and self._max_value is None:
            return None
        for one in stepping:
            self._scaler.unscale_(one)
        if self._max_norm is not None and len(stepping) > 1 and self._scaler.is_enabled():
            self._scaler.skip_together(stepping)
        self._correct(correction)
        return clip_(self._params, max_norm=self._max_norm, max_value=self._max_value)

    def _prepare_together(self, agreement: Agreement, *, correction: float) -> Prepared:
        """The same over ranks, with one reduction for all optimizers and the norm."""
        scaler, optimizers = self._scaler, self._optimizers
        scaler.measure(*optimizers)
        with scaler.accord.settled_by_caller(agreement):
            for one in optimizers:
                scaler.unscale_(one)
        self._correct(correction)
        ballots = [scaler.ballot(one) if scaler.is_enabled() else _no_ballot(one) for one in optimizers]
        norm_of = () if self._max_norm is None else self._params
        scale = scaler.snapshot_scale()
        settled = agreement.settle(ballots, device=self.device, scale=scale, norm_of=norm_of)
        stepping = tuple(one for one, steps in zip(optimizers, settled.steps, strict=True) if steps)
        _refuse_none(stepping)
        if self._max_norm is not None and settled.norm is not None:
            if len(stepping) > 1 and scaler.is_enabled():
                scaler.skip_together(stepping)
            clip_by_norm_(self._params, settled.norm, max_norm=self._max_norm)
        else:
            clip_(self._params, max_norm=None, max_value=self._max_value)
        return Prepared(stepping=stepping, norm=settled.norm)

    def _scale(self) -> float:
        return self._scaler.get_scale() if self._scaler.is_enabled() else 1.0

    def _correct(self, correction: float) -> None:
        if correction == 1.0:
            return
        for param in self._params:
            grad = local_gradient(param)
            if grad is not None:
                grad.mul_(correction)


def _nothing() -> None:
    pass


def _no_ballot(optimizer: Optimizer) -> Ballot:
    """Where nothing is ever skipped."""
    return Ballot(found={}, has_gradients=has_gradients(optimizer))


def _refuse_none(stepping: Sequence[Optimizer]) -> None:
    if not stepping:
        raise UsageError(
            "no parameter of the optimizers has a gradient: the loss does not depend on them. Give the optimizer "
            "model.parameters() of the model that made the loss, after any model.to(...)"
        )
