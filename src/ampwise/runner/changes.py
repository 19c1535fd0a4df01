"""Finds the files that a run changed, and keeps experiment trackers from reaching out."""

import os
from pathlib import Path

_PASSED_OVER = {".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache"}
_MAX_FILES = 20_000
_MAX_NAMES = 8

Snapshot = dict[str, tuple[int, int]]


def tracker_environment(scratch: str) -> dict[str, str]:
    """Environment variables under which experiment trackers stay offline and write into ``scratch``."""
    return {
        "WANDB_MODE": "offline",
        "WANDB_DIR": scratch,
        "MLFLOW_TRACKING_URI": Path(scratch, "mlruns").as_uri(),
        "COMET_MODE": "disabled",
        "NEPTUNE_MODE": "debug",
        "CLEARML_OFFLINE_MODE": "1",
        "SWANLAB_MODE": "disabled",
        "DVCLIVE_TEST": "1",
    }


class ChangeWatch:
    """Which files below a folder change from now on.

    Args:
        folder: where to look.
        scratch: where what the run saves is redirected to; not looked at.
    """

    def __init__(self, folder: str, *, scratch: str) -> None:
        self._folder = folder
        self._scratch = os.path.abspath(scratch)
        self._before = snapshot(folder, without=self._scratch)

    def notes(self) -> tuple[str, ...]:
        """What the reader should know, in words."""
        notes: list[str] = []
        saved = snapshot(self._scratch)
        if saved:
            notes.append(f"what the script saved went to {self._scratch}: {_names(sorted(saved))}")
        changed = changes(self._before, snapshot(self._folder, without=self._scratch))
        if changed:
            notes.append(f"the script changed files in {self._folder}: {_names(changed)}")
        if len(self._before) >= _MAX_FILES:
            notes.append(f"{self._folder} holds more than the {_MAX_FILES} files looked at for changes")
        return tuple(notes)


def snapshot(folder: str, *, without: str | None = None) -> Snapshot:
    """Time of change and size of each file below ``folder``, up to a limit."""
    found: Snapshot = {}
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _PASSED_OVER and os.path.join(root, name) != without]
        for name in names:
            path = os.path.join(root, name)
            try:
                status = os.stat(path, follow_symlinks=False)
            except OSError:
                continue
            found[os.path.relpath(path, folder)] = (status.st_mtime_ns, status.st_size)
            if len(found) >= _MAX_FILES:
                return found
    return found


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """Files that are new, changed or gone."""
    gone = [] if len(after) >= _MAX_FILES else [f"{name} (gone)" for name in before if name not in after]
    return sorted([*(name for name, state in after.items() if before.get(name) != state), *gone])


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    return f"{shown} and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else shown
