# pyright: reportPrivateImportUsage=false
"""Takes nested lists, tuples, dicts and dataclasses of tensors apart, by torch's private pytrees."""

from collections.abc import Sequence
from typing import Any

from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

Structure = TreeSpec
"""How the leaves were nested; equal structures nest alike."""

__all__ = ["Structure", "flatten", "unflatten"]


def flatten(nested: Any) -> tuple[list[Any], Structure]:
    """The leaves, and how they were nested."""
    return tree_flatten(nested)


def unflatten(leaves: Sequence[Any], structure: Structure) -> Any:
    """The leaves nested again."""
    return tree_unflatten(leaves, structure)
