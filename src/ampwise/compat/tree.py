# pyright: reportPrivateImportUsage=false
"""Takes nested lists, tuples, dicts and dataclasses of tensors apart, by torch's private pytrees."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten

Structure = TreeSpec
"""How the leaves were nested; equal structures nest alike."""

__all__ = ["Structure", "flatten", "map_tensors", "unflatten"]


def flatten(nested: Any) -> tuple[list[Any], Structure]:
    """The leaves, and how they were nested."""
    return tree_flatten(nested)


def unflatten(leaves: Sequence[Any], structure: Structure) -> Any:
    """The leaves nested again."""
    return tree_unflatten(leaves, structure)


def map_tensors(change: Callable[[Tensor], Any], nested: Any) -> Any:
    """The same nest with ``change`` of each tensor in its place."""
    return tree_map_only(Tensor, change, nested)
