"""Finds the files that a run changed, and keeps experiment trackers from reaching out."""

import os
from pathlib import Path

_PASSED_OVER = {".git", ".hg", ".svn", ".venv", "venv", ".tox", ".nox", ".hypothesis", ".idea", "node_modules"}
"""Folders of version control, environments and tools; besides those of caches (``__pycache__``, ``.ruff_cache``)."""
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
    """Which files below a folder change from now on, over all runs of a script.

    Args:
        folder: where to look.
        scratch: where each run has a folder to which what it saves is redirected; not looked at for changes.
        own: a file that ampwise itself keeps meanwhile.
    """

    def __init__(self, folder: str, *, scratch: str, own: Path | None = None) -> None:
        self._folder = folder
        self._own = None if own is None else os.path.relpath(own, folder)
        self._scratch = os.path.abspath(scratch)
        self._before = snapshot(folder, without=self._scratch)

    def notes(self) -> tuple[str, ...]:
        """What the reader should know, in words."""
        notes: list[str] = []
        saved = {str(Path(*Path(name).parts[1:])) for name in snapshot(self._scratch)}
        if saved:
            notes.append(f"what the script saved went to {self._scratch}, a folder a run: {_names(sorted(saved))}")
        changed = changes(self._before, snapshot(self._folder, without=self._scratch))
        changed = [name for name in changed if self._own is None or name.removesuffix(" (gone)") != self._own]
        if changed:
            notes.append(f"changed meanwhile in {self._folder}, by the script or another program: {_names(changed)}")
        if len(self._before) >= _MAX_FILES:
            notes.append(f"only {_MAX_FILES:,} files of {self._folder} were looked at for changes")
        return tuple(notes)


def snapshot(folder: str, *, without: str | None = None) -> Snapshot:
    """Time of change and size of each file below ``folder``, up to a limit."""
    found: Snapshot = {}
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_tools(name) and os.path.join(root, name) != without]
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


def _is_tools(folder: str) -> bool:
    return folder in _PASSED_OVER or (folder.startswith((".", "__")) and "cache" in folder)


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """Files that are new, changed or gone; of what a snapshot's limit may have hidden, nothing is said."""
    changed = [name for name, state in after.items() if name in before and before[name] != state]
    new = [] if len(before) >= _MAX_FILES else [name for name in after if name not in before]
    gone = [] if len(after) >= _MAX_FILES else [f"{name} (gone)" for name in before if name not in after]
    return sorted([*changed, *new, *gone])


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    return f"{shown} and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else shown
