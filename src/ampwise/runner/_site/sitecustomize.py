# ruff: noqa: INP001 - a folder on the path of other processes, not a package
"""Lets a Python process that a script started take part in the run; then does what the user's sitecustomize does."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def _chain() -> None:
    """Execute the sitecustomize that this one stands in front of, if there is one."""
    here = str(Path(__file__).parent)
    spec = PathFinder.find_spec("sitecustomize", [folder for folder in sys.path if folder != here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _start() -> None:
    try:
        from ampwise.runner.bootstrap import start
    except ModuleNotFoundError:
        return  # another Python, without ampwise: it runs as it would
    start()


_chain()
_start()
