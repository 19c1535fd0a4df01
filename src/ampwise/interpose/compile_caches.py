"""Tells torch's compiler that kernels were replaced: what was compiled before would pass them by."""

import sys

import torch

from ampwise.interpose.seam import Undo, once


def cache_tags() -> list[str]:
    """The tags that the compile caches' key carries now."""
    tag = torch.compiler.config.cache_key_tag
    return tag.split("+") if tag else []


def tag_caches(tag: str) -> Undo:
    """Give torch's compile caches a key of their own until the undo is called; compiled functions are compiled anew."""
    _set_tags([*cache_tags(), tag])

    def undo() -> None:
        _set_tags([one for one in cache_tags() if one != tag])

    return once(undo)


def _set_tags(tags: list[str]) -> None:
    torch.compiler.config.cache_key_tag = "+".join(tags)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
