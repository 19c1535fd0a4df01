"""Lets compiled functions run as plain Python for a while: an operator in compiled code cannot be watched."""

import sys
from collections.abc import Callable

import torch


def has_dynamo() -> bool:
    """Whether this process has loaded TorchDynamo: without it nothing is compiled."""
    return "torch._dynamo" in sys.modules


def run_uncompiled() -> Callable[[], None]:
    """Run compiled functions in eager mode until the undo is called. Call it outside of a compiled function."""
    stance = torch.compiler.set_stance("force_eager")
    stance.__enter__()
    return lambda: stance.__exit__(None, None, None)
