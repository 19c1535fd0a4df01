"""Recognises mixed precision that a script already has, and libraries that take it as an argument."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ampwise.runner.placement.names import Names, calls_in_all
from ampwise.runner.placement.source import Source, dotted, last_part

_AMP_NAMES = frozenset({"autocast", "GradScaler", "set_autocast_enabled", "set_global_policy"})
_AMP_CALLS = frozenset({"apex.amp.initialize", "apex.amp.scale_loss", "deepspeed.initialize"})
_CASTS = frozenset({"half", "bfloat16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A library that runs the training loop, or its backward pass, and takes the precision as an argument."""

    title: str
    packages: tuple[str, ...]
    classes: tuple[str, ...]
    """Suffixes of the classes that take the argument."""
    keywords: tuple[str, ...]
    """Arguments by which the script may have chosen a precision itself."""
    bf16: str
    fp16: str

    def argument(self, precision: str) -> str:
        """What to pass for ``precision``."""
        return self.bf16 if precision == "bf16" else self.fp16


FRAMEWORKS = (
    Framework(
        title="Lightning",
        packages=("lightning", "pytorch_lightning", "lightning_fabric"),
        classes=("Trainer", "Fabric"),
        keywords=("precision", "plugins"),
        bf16='precision="bf16-mixed"',
        fp16='precision="16-mixed"',
    ),
    Framework(
        title="Transformers",
        packages=("transformers", "trl", "sentence_transformers"),
        classes=("TrainingArguments", "SFTConfig", "DPOConfig", "RewardConfig", "GRPOConfig"),
        keywords=("bf16", "fp16"),
        bf16="bf16=True",
        fp16="fp16=True",
    ),
    Framework(
        title="Accelerate",
        packages=("accelerate",),
        classes=("Accelerator",),
        keywords=("mixed_precision",),
        bf16='mixed_precision="bf16"',
        fp16='mixed_precision="fp16"',
    ),
    Framework(
        title="Composer",
        packages=("composer",),
        classes=("Trainer",),
        keywords=("precision",),
        bf16='precision="amp_bf16"',
        fp16='precision="amp_fp16"',
    ),
)


def find_own_amp(source: Source, names: Names) -> str | None:
    """Which mixed precision the script already has, with its line; None if none."""
    for line, what in sorted(_own_amp(source, names)):
        return f"line {line}: the script already uses {what}; nothing to add"
    for call in calls_in_all(source.tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _CASTS and names.is_model(call.func.value):
            return (
                f"line {call.lineno}: the whole model is cast with .{call.func.attr}(), its weights too; "
                "mixed precision keeps weights in fp32, so remove the cast first"
            )
    return None


def _own_amp(source: Source, names: Names) -> Iterator[tuple[int, str]]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            full = names.full(node)
            if last_part(full) in _AMP_NAMES or full in _AMP_CALLS or full.startswith("ampwise."):
                yield node.lineno, dotted(node) or full
        elif isinstance(node, ast.Attribute) and node.attr in _AMP_NAMES:
            yield node.lineno, node.attr


def framework_call(names: Names) -> tuple[Framework, ast.Call] | None:
    """The first call in the script that takes the precision as an argument."""
    for call in calls_in_all(names.source.tree):
        full = names.full(call.func)
        for framework in FRAMEWORKS:
            theirs = full.startswith(tuple(f"{package}." for package in framework.packages))
            if theirs and last_part(full).endswith(framework.classes):
                return framework, call
    return None


def imported_framework(names: Names) -> Framework | None:
    """The framework that the script imports, if any."""
    packages = {full.partition(".")[0] for full in names.imports.values()}
    return next((one for one in FRAMEWORKS if packages & set(one.packages)), None)


def set_argument(framework: Framework, call: ast.Call) -> str | None:
    """How the script itself set the precision in ``call``; None if it did not."""
    return next((word.arg for word in call.keywords if word.arg in framework.keywords), None)
