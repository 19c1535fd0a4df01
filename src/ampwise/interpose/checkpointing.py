"""Rows for activation checkpointing: both of its ways of running a function again during the backward pass."""

from ampwise.interpose.row import Row

_WHY = (
    "a checkpoint restores autocast for what it runs again in the backward pass, and nothing else: "
    "the rules of a plan's region, which was left by then, would not hold for it"
)

CHECKPOINT = Row(
    name="torch.utils.checkpoint.checkpoint",
    owner="torch.utils.checkpoint",
    attribute="_checkpoint_without_reentrant_generator",
    why=_WHY,
)
REENTRANT_CHECKPOINT = Row(
    name="torch.utils.checkpoint.CheckpointFunction.forward",
    owner="torch.utils.checkpoint:CheckpointFunction",
    attribute="forward",
    why=_WHY,
)
