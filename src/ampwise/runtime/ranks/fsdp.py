"""A plan as what FSDP2 (``fully_shard``) casts."""

from typing import TYPE_CHECKING, Final

import torch

from ampwise._base.errors import UsageError
from ampwise.formats import find_format
from ampwise.plan.find import AnyPlan, find_plan

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

_DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}


def fsdp_policy(plan: AnyPlan, *, module: str = "", reduce: str = "fp32") -> "MixedPrecisionPolicy":
    """The ``mp_policy`` of ``fully_shard`` that casts as a plan says.

    Example::

        for name, layer in model.layers.named_children():
            fully_shard(layer, mp_policy=fsdp_policy("bf16", module=f"layers.{name}"))
        fully_shard(model, mp_policy=fsdp_policy("bf16"))

    Parameters are gathered in the format computed in, the sharded ones and the optimizer stay in the plan's own. Where
    that is fp16 gradients need a loss scale: ``TrainStep(..., precision="fp32", loss_scale=DynamicLossScale())``.

    Args:
        plan: a plan, or what names one: a file, a preset, a format, ``p=fp32,c=bf16,o=fp32``.
        module: the path of the module that is sharded, so that the plan's rules over modules are asked.
        reduce: the format that gradients are summed over ranks in: ``fp32``, ``bf16`` or ``fp16``.

    Raises:
        UsageError: the plan asks for what FSDP2 does not cast: operators, or formats below 16 bits.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    known = find_plan(plan)
    about_operators = [rule.op for rule in known.rules if rule.op is not None]
    if about_operators:
        raise UsageError(
            f"the plan has rules about operators ({', '.join(map(str, about_operators[:3]))}), which FSDP2 does not "
            "cast; give it a plan with rules about modules, and put the rest on with apply_plan(model, plan)"
        )
    here = known.resolve(module, None)
    compute, sums = _dtype(here.compute, "computes in"), _dtype(reduce, "sums in")
    kept = _dtype(known.parameters, "keeps parameters in")
    whole = None if module else known.output
    output = whole if here.rule is None else here.output
    return MixedPrecisionPolicy(
        param_dtype=None if compute is kept else compute,
        reduce_dtype=sums,
        output_dtype=None if output is None else _dtype(output, "gives"),
    )


def _dtype(name: str, what: str) -> torch.dtype:
    format_ = find_format(name)
    dtype = None if format_ is None else _DTYPES.get(format_.name)
    if dtype is None:
        raise UsageError(f'FSDP2 {what} no "{name}"; possible are {", ".join(_DTYPES)}')
    return dtype
