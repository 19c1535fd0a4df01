"""A backward pass seen from the loss scale: what goes in at its roots, which leaves it ends in."""

from typing import Any

import torch
from torch import Tensor

from ampwise.compat.autograd import leaves_of
from ampwise.interpose.backward import Pass


def leaves(call: Pass) -> list[Tensor]:
    """The leaves that the pass will accumulate into."""
    if call.inputs is None:
        return list(leaves_of(call.roots))
    return [leaf for one in call.inputs if (leaf := leaf_of(one)) is not None]


def leaf_of(wanted: Any) -> Tensor | None:
    """The leaf whose gradient is wanted; None where it is no leaf's."""
    if isinstance(wanted, Tensor):
        return wanted if wanted.is_leaf and wanted.requires_grad else None
    return getattr(wanted.node, "variable", None)


def scaled_seeds(call: Pass, scale: float) -> tuple[Tensor | None, ...] | None:
    """The roots' gradients times ``scale``; None where one cannot be made, and torch is left to say why."""
    seeds = [_scaled_seed(root, seed, scale) for root, seed in zip(call.roots, call.seeds, strict=False)]
    return None if len(seeds) != len(call.roots) or any(seed is None for seed in seeds) else tuple(seeds)


def _scaled_seed(root: Any, seed: Tensor | None, scale: float) -> Tensor | None:
    if seed is not None:
        return seed * scale
    if not isinstance(root, Tensor) or root.numel() != 1 or not root.is_floating_point() or not root.requires_grad:
        return None
    return torch.full_like(root, scale, requires_grad=False)
