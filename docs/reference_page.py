"""The page of the reference: every public name, with its docstring; written when the documentation is built."""  # noqa: INP001 # Sphinx finds it beside conf.py

from pathlib import Path

GROUPS = {
    "Training": ["TrainStep", "autocast", "GradScaler", "custom_fwd", "custom_bwd", "keep_small_updates", "evaluate"],
    "Loss scales": ["DynamicLossScale", "HeadroomLossScale", "StaticLossScale", "LossScaleWarning"],
    "Plans": ["Plan", "Rule", "load_plan", "save_plan", "apply_plan", "plan_in_effect", "tune_script"],
    "Precision that moves": [
        "PrecisionScheduler",
        "Schedule",
        "AbsoluteLossCurvature",
        "GradNormSpike",
        "LossCurvature",
        "LossSpike",
        "NonFinite",
        "OverflowShare",
        "UnderflowShare",
    ],
    "Seeing what happens": ["watch", "diagnose", "memory_summary", "record_casts", "estimate_memory"],
    "Formats on any hardware": ["emulated", "round_to"],
    "Stopping and going on": [
        "save_checkpoint",
        "load_checkpoint",
        "save_sharded_checkpoint",
        "load_sharded_checkpoint",
    ],
    "Several processes": ["fsdp_policy", "compress_gradients", "joinable"],
    "Errors": ["AmpwiseError", "UsageError", "PlanError", "CannotRunError", "RecordError"],
}
"""Which public names stand together, in the order that a reader meets them."""
HEAD = """# Reference

All that `import ampwise` offers; what begins with an underscore, or stands in a module of its own, may change.
`ampwise.__version__` is the version. Warnings and errors say what was given, what is possible and what to do; every
error is an `AmpwiseError`.
"""


def write_reference(file: Path) -> None:
    """Write the page, if it is not as it should be: Sphinx reads what changed."""
    text = reference()
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


def reference() -> str:
    """The page's text."""
    parts = [HEAD]
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n\n~~~{{eval-rst}}\n{_directives(names)}\n~~~\n")
    return "\n".join(parts)


def _directives(names: list[str]) -> str:
    return "\n\n".join(_directive(name) for name in names)


def _directive(name: str) -> str:
    import ampwise

    if isinstance(getattr(ampwise, name), type):
        return f".. autoclass:: ampwise.{name}\n   :members:"
    return f".. autofunction:: ampwise.{name}"
