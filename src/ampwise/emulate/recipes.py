"""Which formats can be emulated, and how a run computes in each; without torch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ampwise._base.errors import UsageError
from ampwise._base.suggest import not_one_of
from ampwise._base.text import inert_line
from ampwise.formats.table import find_format


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What computes in an emulated format, and in what the rest is computed."""

    name: str
    """The format's name; the operands of forward products are rounded to it."""
    autocast: Literal["bf16", "fp16"] | None
    """The format that autocast casts to around the products; None leaves fp32."""
    gradients: str
    """The format of the gradients that enter the backward products."""
    words: str
    """The recipe in words."""


_ROWS = (
    Recipe(
        name="tf32",
        autocast=None,
        gradients="tf32",
        words="factors of fp32 products and convolutions rounded to tf32, sums in fp32",
    ),
    Recipe(name="bf16", autocast="bf16", gradients="bf16", words="autocast in bf16, sums of products in fp32"),
    Recipe(
        name="fp16",
        autocast="fp16",
        gradients="fp16",
        words="autocast in fp16 with loss scaling, sums of products in fp32",
    ),
    Recipe(
        name="fp8_e4m3",
        autocast="bf16",
        gradients="fp8_e5m2",
        words="products with weights in fp8_e4m3, their gradients in fp8_e5m2, one scale a tensor; the rest in bf16",
    ),
    Recipe(
        name="fp8_e5m2",
        autocast="bf16",
        gradients="fp8_e5m2",
        words="products with weights and their gradients in fp8_e5m2, one scale a tensor; the rest in bf16",
    ),
)

RECIPES: Mapping[str, Recipe] = MappingProxyType({row.name: row for row in _ROWS})
"""Every format that can be emulated, by its name."""


def get_recipe(name: str) -> Recipe:
    """How to emulate the format that users mean by ``name`` (``fp16``, ``half``, ``fp8``).

    Raises:
        UsageError: it is no format, an integer format, or one that every machine computes in.
    """
    format_ = find_format(name)
    if format_ is None:
        if re.fullmatch(r"u?int\d+", name.strip().lower().removeprefix("torch.")):
            raise UsageError(
                f'"{inert_line(name)}" is an integer format; floating-point ones are emulated: {", ".join(RECIPES)}'
            )
        raise UsageError(not_one_of(inert_line(name), RECIPES, kind="format that can be emulated"))
    recipe = RECIPES.get(format_.name)
    if recipe is None:
        instead = "--precision fp32" if format_.name == "fp32" else "float64 tensors"
        raise UsageError(f"{format_.name} needs no emulation, every machine computes in it; use {instead}")
    return recipe
