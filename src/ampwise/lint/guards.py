"""Which frameworks a file hands its training to: they scale, unscale, clip and step themselves."""

import ast
from enum import StrEnum
from typing import Final

from ampwise.lint.names import Names
from ampwise.lint.tree import Tree


class Framework(StrEnum):
    """A library that takes the scaler's protocol over from the script."""

    ACCELERATE = "accelerate"
    LIGHTNING = "lightning"
    IGNITE = "ignite"
    DEEPSPEED = "deepspeed"
    COMPOSER = "composer"
    TRANSFORMERS = "transformers trainer"
    APEX = "apex"
    WRAPPER = "scaler wrapper"
    PADDLE = "paddle"
    """Not torch at all, but its scaler has methods of the same names."""


ALL_FRAMEWORKS: Final = frozenset(Framework)
TRAINERS: Final = ALL_FRAMEWORKS - {Framework.APEX, Framework.WRAPPER}
"""Those that own the whole loop."""

_CALLS: Final = {
    "accelerate.Accelerator": Framework.ACCELERATE,
    "deepspeed.initialize": Framework.DEEPSPEED,
    "composer.Trainer": Framework.COMPOSER,
    "ignite.engine.create_supervised_trainer": Framework.IGNITE,
    "transformers.Trainer": Framework.TRANSFORMERS,
    "transformers.Seq2SeqTrainer": Framework.TRANSFORMERS,
    "apex.amp.initialize": Framework.APEX,
    "apex.amp.scale_loss": Framework.APEX,
}
_LIGHTNING: Final = ("lightning.", "pytorch_lightning.")
_WRAPPERS: Final = ("NativeScaler", "NativeScalerWithGradNormCount", "ApexScaler", "ApexScaler_SAM")


def frameworks(tree: Tree, names: Names) -> frozenset[Framework]:
    """The frameworks whose entry points the file calls or whose classes it extends."""
    found: set[Framework] = set()
    for call in tree.nodes(ast.Call):
        name = names.resolve(call.func)
        if name is None:
            continue
        if name in _CALLS:
            found.add(_CALLS[name])
        elif name.startswith(_LIGHTNING):
            if name.endswith((".Trainer", ".Fabric")):
                found.add(Framework.LIGHTNING)
        elif name.rpartition(".")[2] in _WRAPPERS:
            found.add(Framework.WRAPPER)
    imported = (alias.name for node in tree.nodes(ast.Import) for alias in node.names)
    if any(name.partition(".")[0] == "paddle" for name in imported):
        found.add(Framework.PADDLE)
    for node in tree.nodes(ast.ClassDef):
        found |= {framework for base in names.bases(node) if (framework := _extends(base)) is not None}
    return frozenset(found)


def _extends(base: str) -> Framework | None:
    if base.startswith(_LIGHTNING) and base.endswith(("LightningModule", "LightningLite")):
        return Framework.LIGHTNING
    return _CALLS.get(base)


def is_unit_test(tree: Tree, node: ast.AST) -> bool:
    """Whether ``node`` runs in a unit test: what looks wrong there is often what is tested, on tiny models."""
    for outer in tree.ancestors(node):
        if isinstance(outer, ast.FunctionDef) and outer.name.lstrip("_").startswith("test_"):
            return "loader" not in {argument.arg.rpartition("_")[2] for argument in outer.args.args}
        if isinstance(outer, ast.ClassDef) and any("TestCase" in ast.unparse(base) for base in outer.bases):
            return True
    return False
