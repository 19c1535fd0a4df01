"""Source that the rules' examples share: a training loop up to the loss."""

import textwrap
from typing import Final

TRAIN: Final = """
import torch
from torch.amp import GradScaler, autocast

def train(model, optimizer, loader, criterion, use_amp):
    scaler = GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
"""
_HEAD: Final = """
optimizer.zero_grad()
with autocast("cuda"):
    loss = criterion(model(x), y)
"""


def iteration(body: str) -> str:
    """A script whose loop over batches has exactly this body; ``scaler``, ``optimizer`` and ``model`` exist."""
    return TRAIN + textwrap.indent(body.strip("\n"), " " * 8) + "\n"


def after_loss(body: str) -> str:
    """A script whose loop zeroes the gradients, computes ``loss`` under autocast, and goes on with this body."""
    return iteration(_HEAD + body.strip("\n"))
