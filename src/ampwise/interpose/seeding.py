"""Rows for the functions that seed a generator: repeats of a run differ, variants with the same number do not."""

from collections.abc import Callable
from typing import Any

from ampwise.interpose.internal import internal
from ampwise.interpose.row import Row
from ampwise.interpose.seam import Undo, intercept


def _row(owner: str, attribute: str) -> Row:
    return Row(
        name=f"seeding.{owner}.{attribute}",
        owner=owner,
        attribute=attribute,
        why="runs repeated with the script's own fixed seed would not show its run-to-run noise",
    )


TORCH_ROWS = (
    _row("torch", "manual_seed"),
    _row("torch.random", "manual_seed"),
    _row("torch.cuda", "manual_seed"),
    _row("torch.cuda", "manual_seed_all"),
)
PYTHON_ROWS = (_row("random", "seed"),)
NUMPY_ROWS = (_row("numpy.random", "seed"), _row("numpy.random", "default_rng"))


def shift_seeds(row: Row, offset: int) -> Undo:
    """Add ``offset`` to every whole-number seed given to the row's function until the returned undo is called."""

    def shifted(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        args = tuple(_shift(value, offset) if index == 0 else value for index, value in enumerate(args))
        kwargs = {name: _shift(value, offset) if name in {"seed", "a"} else value for name, value in kwargs.items()}
        with internal():  # manual_seed seeds each device through the other rows' functions
            return proceed(*args, **kwargs)

    return intercept(row, shifted)


def _shift(value: Any, offset: int) -> Any:
    return value + offset if isinstance(value, int) and not isinstance(value, bool) else value
