"""Mixed-precision training of PyTorch models: right, fast and explained.

Public names are imported when first used, so that ``import ampwise`` costs nothing and leaves torch out.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ampwise._base.version import __version__

if sys.version_info < (3, 11):  # noqa: UP036 - pip refuses an older Python, a source tree on the path does not
    raise ImportError(f"ampwise needs Python 3.11 or newer; this is {sys.version.partition(' ')[0]}")

if TYPE_CHECKING:
    from ampwise._base.errors import AmpwiseError, CannotRunError, PlanError, RecordError, UsageError
    from ampwise.adapt.schedule import Schedule
    from ampwise.adapt.scheduler import PrecisionScheduler
    from ampwise.adapt.triggers import (
        AbsoluteLossCurvature,
        GradNormSpike,
        LossCurvature,
        LossSpike,
        NonFinite,
        OverflowShare,
        UnderflowShare,
    )
    from ampwise.doctor.diagnose import diagnose
    from ampwise.emulate.emulation import emulated
    from ampwise.emulate.rounding import round_to
    from ampwise.estimate.call import estimate_memory
    from ampwise.examine.memory_summary import memory_summary
    from ampwise.examine.watch import watch
    from ampwise.instruments.record_casts import record_casts
    from ampwise.plan.file import load_plan
    from ampwise.plan.plan import Plan, Rule
    from ampwise.plan.writing import save_plan
    from ampwise.runtime.casts.autocast import autocast
    from ampwise.runtime.casts.casting import apply_plan, plan_in_effect
    from ampwise.runtime.casts.custom_function import custom_bwd, custom_fwd
    from ampwise.runtime.casts.small_updates import keep_small_updates
    from ampwise.runtime.ranks.compressed import compress_gradients
    from ampwise.runtime.ranks.fsdp import fsdp_policy
    from ampwise.runtime.saving.checkpoint import load_checkpoint, save_checkpoint
    from ampwise.runtime.saving.sharded_checkpoint import load_sharded_checkpoint, save_sharded_checkpoint
    from ampwise.runtime.scaling.headroom import HeadroomLossScale
    from ampwise.runtime.scaling.loss_scale import DynamicLossScale, StaticLossScale
    from ampwise.runtime.scaling.overflow import LossScaleWarning
    from ampwise.runtime.scaling.scaler import GradScaler
    from ampwise.runtime.step.evaluate import evaluate
    from ampwise.runtime.step.step import TrainStep
    from ampwise.runtime.step.uneven import joinable
    from ampwise.tune.call import tune_script

_HOMES = {
    "diagnose": "ampwise.doctor.diagnose",
    "estimate_memory": "ampwise.estimate.call",
    "memory_summary": "ampwise.examine.memory_summary",
    "watch": "ampwise.examine.watch",
    "AmpwiseError": "ampwise._base.errors",
    "CannotRunError": "ampwise._base.errors",
    "PlanError": "ampwise._base.errors",
    "RecordError": "ampwise._base.errors",
    "UsageError": "ampwise._base.errors",
    "AbsoluteLossCurvature": "ampwise.adapt.triggers",
    "GradNormSpike": "ampwise.adapt.triggers",
    "LossCurvature": "ampwise.adapt.triggers",
    "LossSpike": "ampwise.adapt.triggers",
    "NonFinite": "ampwise.adapt.triggers",
    "OverflowShare": "ampwise.adapt.triggers",
    "UnderflowShare": "ampwise.adapt.triggers",
    "PrecisionScheduler": "ampwise.adapt.scheduler",
    "Schedule": "ampwise.adapt.schedule",
    "emulated": "ampwise.emulate.emulation",
    "round_to": "ampwise.emulate.rounding",
    "apply_plan": "ampwise.runtime.casts.casting",
    "Plan": "ampwise.plan.plan",
    "Rule": "ampwise.plan.plan",
    "load_plan": "ampwise.plan.file",
    "save_plan": "ampwise.plan.writing",
    "autocast": "ampwise.runtime.casts.autocast",
    "custom_bwd": "ampwise.runtime.casts.custom_function",
    "custom_fwd": "ampwise.runtime.casts.custom_function",
    "keep_small_updates": "ampwise.runtime.casts.small_updates",
    "compress_gradients": "ampwise.runtime.ranks.compressed",
    "evaluate": "ampwise.runtime.step.evaluate",
    "fsdp_policy": "ampwise.runtime.ranks.fsdp",
    "joinable": "ampwise.runtime.step.uneven",
    "load_sharded_checkpoint": "ampwise.runtime.saving.sharded_checkpoint",
    "save_sharded_checkpoint": "ampwise.runtime.saving.sharded_checkpoint",
    "load_checkpoint": "ampwise.runtime.saving.checkpoint",
    "plan_in_effect": "ampwise.runtime.casts.casting",
    "record_casts": "ampwise.instruments.record_casts",
    "save_checkpoint": "ampwise.runtime.saving.checkpoint",
    "DynamicLossScale": "ampwise.runtime.scaling.loss_scale",
    "GradScaler": "ampwise.runtime.scaling.scaler",
    "HeadroomLossScale": "ampwise.runtime.scaling.headroom",
    "LossScaleWarning": "ampwise.runtime.scaling.overflow",
    "StaticLossScale": "ampwise.runtime.scaling.loss_scale",
    "TrainStep": "ampwise.runtime.step.step",
    "tune_script": "ampwise.tune.call",
}

_HOOKS = {
    "load_ipython_extension": ("ampwise.integrations.jupyter", "load_extension"),
    "unload_ipython_extension": ("ampwise.integrations.jupyter", "unload_extension"),
}
"""What ``%load_ext ampwise`` looks for; nobody imports them."""

__all__ = [
    "AbsoluteLossCurvature",
    "AmpwiseError",
    "CannotRunError",
    "DynamicLossScale",
    "GradNormSpike",
    "GradScaler",
    "HeadroomLossScale",
    "LossCurvature",
    "LossScaleWarning",
    "LossSpike",
    "NonFinite",
    "OverflowShare",
    "Plan",
    "PlanError",
    "PrecisionScheduler",
    "RecordError",
    "Rule",
    "Schedule",
    "StaticLossScale",
    "TrainStep",
    "UnderflowShare",
    "UsageError",
    "__version__",
    "apply_plan",
    "autocast",
    "compress_gradients",
    "custom_bwd",
    "custom_fwd",
    "diagnose",
    "emulated",
    "estimate_memory",
    "evaluate",
    "fsdp_policy",
    "joinable",
    "keep_small_updates",
    "load_checkpoint",
    "load_plan",
    "load_sharded_checkpoint",
    "memory_summary",
    "plan_in_effect",
    "record_casts",
    "round_to",
    "save_checkpoint",
    "save_plan",
    "save_sharded_checkpoint",
    "tune_script",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in _HOOKS:
        module, attribute = _HOOKS[name]
        return getattr(import_module(module), attribute)
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ampwise' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES})
