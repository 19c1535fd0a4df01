"""Lets this machine's CPU compute as if it had a format's hardware."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import assert_never

import torch

from ampwise._base.errors import CannotRunError
from ampwise.emulate.recipes import Recipe, get_recipe
from ampwise.emulate.rounding import to_nearest
from ampwise.emulate.scaled_product import scaled_product
from ampwise.formats.table import FORMATS
from ampwise.interpose.compile_caches import cache_tags, tag_caches
from ampwise.interpose.cpu_kernels import compute_in_fp32, round_factors
from ampwise.interpose.weight_products import replace_weight_products

_TAG = "ampwise-emulate"
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def emulated(format: str) -> Generator[None]:  # noqa: A002 - the field's word
    """Within it, this process's CPU computes as if it had ``format``'s hardware.

    ``fp16`` and ``bf16``: products and convolutions of tensors in the format are summed in fp32 and rounded once,
    forward and backward, as tensor cores do, and nearly as fast as fp32's; autocast stays the script's.
    ``tf32``: the factors of fp32 products and convolutions are rounded to tf32.
    ``fp8_e4m3``, ``fp8_e5m2``: where autocast is on, products with a 2-D weight take operands in the format, with one
    scale a tensor; the gradients that enter the backward products are in fp8_e5m2. What autocast casts to (bf16) is
    the format of the rest.

    All threads are meant, compiled functions too; they are compiled anew.

    Raises:
        UsageError: ``format`` is unknown or needs no emulation.
        CannotRunError: another emulation is on.
    """
    recipe = get_recipe(format)
    other = emulated_format()
    if other is not None:
        raise CannotRunError(f"{other} is emulated already; leave that emulation before you begin {recipe.name}'s")
    with ExitStack() as stack:
        _start(recipe, stack)
        stack.callback(tag_caches(f"{_TAG}-{recipe.name}"))
        yield


def emulated_format() -> str | None:
    """The format that this process's CPU is given the hardware of; None where none is."""
    return next((tag.removeprefix(f"{_TAG}-") for tag in cache_tags() if tag.startswith(_TAG)), None)


def _start(recipe: Recipe, stack: ExitStack) -> None:
    match recipe.autocast:
        case None:
            stack.callback(round_factors(partial(to_nearest, format_=FORMATS[recipe.name])))
        case "bf16" | "fp16":
            stack.callback(compute_in_fp32(_DTYPES[recipe.autocast]))
            if recipe.name != recipe.autocast:
                stack.callback(replace_weight_products(scaled_product(recipe)))
        case _:
            assert_never(recipe.autocast)
