"""A loss scale of its own for each of several losses, whose gradients meet in shared parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ampwise._base.errors import UsageError
from ampwise.compat.autograd import has_nested_passes, leaves_of, queue_callback, register_first_hook, remove_hook
from ampwise.compat.scaler import Replicator, check_finite_, found_inf_of, sparse_values
from ampwise.interpose.internal import internal
from ampwise.observe.statistics import amax
from ampwise.runtime.ranks.distributed import Agreement
from ampwise.runtime.scaling.loss_scale import LossScale, decode, encode
from ampwise.runtime.scaling.scale_update import Rules, ScaleState, advance_, read_state, rules_of, state_of


@dataclass(slots=True, kw_only=True)
class _Named:
    """One loss's scale, and what its backward passes found since the last ``update``."""

    state: ScaleState
    rules: Rules
    start: LossScale
    found: Tensor
    amax: Tensor
    is_used: bool = False


class NamedLosses:
    """The losses that have a scale each.

    How gradients stay right: the backward pass of a named loss starts from that loss's own scale, so that what is small
    in it does not vanish on its way. Where it reaches a leaf, and before anything is added up, its gradient is
    multiplied by ``common / own``; so every ``.grad`` holds gradients in the one common scale, whichever losses they
    came from, and is unscaled, clipped and stepped as ever. With scales that are powers of two the factor is exact.

    Law: after ``scale(loss, name).backward()`` every leaf's ``.grad`` has grown by the loss's gradient times the common
    scale; a scale moves only by what its own loss's passes found.

    Args:
        starts: the loss scales by name; a name that is not among them starts from ``fallback``.
        fallback: what a new name starts from; None refuses new names.
    """

    def __init__(self, starts: Mapping[str, LossScale], fallback: LossScale | None) -> None:
        self._starts, self._fallback = dict(starts), fallback
        self._named: dict[str, _Named] = {}
        self._left: list[tuple[Tensor, Any]] = []

    def scale(self, loss: Any, name: str, common: Tensor | None) -> Tensor:
        """The loss times its own scale; its backward pass gives gradients times ``common``, which is there by then.

        Raises:
            UsageError: the loss is no tensor, or the name is none of those declared.
        """
        if not isinstance(loss, Tensor) or common is None:
            raise UsageError(f"scale(..., name={name!r}) was given a {type(loss).__name__}; give one loss as a tensor")
        one = self._of(name, common.device)
        scaled = loss * one.state.scale.to(loss.device, non_blocking=True)
        if scaled.requires_grad:
            scaled.register_hook(_Begin(self, loss, one, common))
        return scaled

    def advance(self, peers: Callable[[], Agreement | None] | None = None) -> Tensor | None:
        """Move every scale whose loss had a backward pass; gives how many found an overflow, None without a pass.

        Args:
            peers: says which ranks train together: what a pass of one rank found moves the scales of all. Every rank
                uses the same names.
        """
        together = peers() if self._named and peers is not None else None
        if together is not None:
            self._agree(together)
        used = [one for one in self._named.values() if one.is_used]
        if not used:
            return None
        found = torch.stack([one.found for one in used]).sum()
        for one in used:
            advance_(one.state, one.found, one.rules, amax=one.amax)
            one.found, one.amax, one.is_used = torch.zeros_like(one.found), torch.zeros_like(one.amax), False
        return found

    def value(self, name: str) -> float:
        """The scale of a loss; waits for the device."""
        if name in self._named:
            return float(self._named[name].state.scale)
        return self._start(name).scale

    def state(self) -> dict[str, Any]:
        """Every scale as plain data; waits for the device."""
        started = {name: encode(read_state(one.state, one.start)) for name, one in self._named.items()}
        return {**{name: encode(one) for name, one in self._starts.items()}, **started}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state`` gave."""
        self._starts |= {name: decode(one) for name, one in state.items()}
        self._named.clear()

    def copy(self) -> "NamedLosses":
        """The same losses at the same scales, bound to no device and no pass."""
        return NamedLosses({name: decode(one) for name, one in self.state().items()}, self._fallback)

    def _agree(self, peers: Agreement) -> None:
        """Let what one rank found count for all."""
        names = sorted(self._named)
        ones = [self._named[name] for name in names]
        used = [torch.full_like(one.found, float(one.is_used)) for one in ones]
        known = peers.max(torch.stack([*(one.found for one in ones), *(one.amax for one in ones), *used]))
        count = len(ones)
        is_used = known[2 * count :].tolist() if not all(one.is_used for one in ones) else [1.0] * count
        for place, one in enumerate(ones):
            one.found, one.amax, one.is_used = known[place], known[count + place], bool(is_used[place])

    def _of(self, name: str, device: torch.device) -> _Named:
        if name not in self._named:
            start = self._start(name)
            zero = torch.zeros((), device=device)
            self._named[name] = _Named(
                state=state_of(start, device), rules=rules_of(start), start=start, found=zero, amax=zero.clone()
            )
        return self._named[name]

    def _start(self, name: str) -> LossScale:
        start = self._starts.get(name, self._fallback)
        if start is None:
            names = ", ".join(f'"{one}"' for one in self._starts)
            raise UsageError(f'there is no loss named "{name}"; those given a loss scale are {names}')
        return start

    # ------------------------------------------------------------------ in the backward pass

    def begin(self, loss: Tensor, one: _Named, common: Tensor) -> None:
        """Within the pass that now runs, let each leaf's gradient be in the common scale."""
        if has_nested_passes([loss]):
            raise UsageError(
                "a named loss cannot go through torch.utils.checkpoint with use_reentrant=True, whose gradients do not "
                "pass through this graph: use use_reentrant=False"
            )
        self.take_back()
        one.is_used = True
        factors = Replicator(common / one.state.scale)
        findings, largests = Replicator(torch.zeros_like(one.found)), Replicator(torch.zeros_like(one.amax))
        hook = _leaf_hook(factors, findings, largests if one.state.statistics is not None else None)
        self._left = [(leaf, register_first_hook(leaf, hook)) for leaf in leaves_of([loss])]
        queue_callback(lambda: self._end(one, common, findings, largests))

    def _end(self, one: _Named, common: Tensor, findings: Replicator, largests: Replicator) -> None:
        self.take_back()
        found, tops = found_inf_of(findings).values(), found_inf_of(largests).values()
        device = common.device
        with torch.no_grad():
            for each in found:
                one.found = one.found + each.to(device, non_blocking=True)
            for top in tops:
                one.amax = torch.maximum(one.amax, top.to(device, non_blocking=True) / common)

    def take_back(self) -> None:
        """Remove the hooks of a pass that has ended, or was broken off."""
        left, self._left = self._left, []
        for leaf, handle in left:
            remove_hook(leaf, handle)


class _Begin:
    """A hook on the scaled loss, which its backward pass calls first; a copy of it does nothing."""

    def __init__(self, losses: NamedLosses, loss: Tensor, one: _Named, common: Tensor) -> None:
        self._arguments = losses, loss, one, common

    def __call__(self, _: Tensor) -> None:
        losses, loss, one, common = self._arguments
        losses.begin(loss, one, common)


def _leaf_hook(factors: Replicator, findings: Replicator, largests: Replicator | None) -> Callable[[Tensor], Tensor]:
    def rescale(grad: Tensor) -> Tensor:
        with internal():
            scaled = grad * factors.get(grad.device)
            with torch.no_grad():
                values = sparse_values(scaled) if scaled.is_sparse else scaled
                real = torch.view_as_real(values.detach().resolve_conj()) if values.is_complex() else values
                check_finite_([real], findings.get(grad.device))
                if largests is not None:
                    top = largests.get(grad.device)
                    top.copy_(torch.maximum(top, amax(real)))
        return scaled

    return rescale
