"""The files of a sharded checkpoint: which they are, and whether each is as it was written."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ampwise._base.errors import UsageError
from ampwise.compat.collectives import gathered
from ampwise.compat.distributed import rank, world_size

_INDEX: Final = ".metadata"
_CHUNK: Final = 2**22


def digests_of_all(folder: Path) -> tuple[dict[str, str], list[str]]:
    """Of every file that any rank wrote, and why some cannot be read; the same on every rank."""
    try:
        own, faults = _digests_of_own(folder), []
    except OSError as error:
        own, faults = {}, [f"rank {rank()}: {error}"]
    every = gathered((own, faults))
    digests = {name: digest for one, _ in every for name, digest in one.items()}
    return digests, [fault for _, several in every for fault in several]


def fault_of_index(folder: Path, digests: Mapping[str, str]) -> str | None:
    """Why the index is not the one that was written: each rank looks before it reads it."""
    return _fault(folder, _INDEX, digests.get(_INDEX, ""))


def damaged(folder: Path, digests: Mapping[str, str]) -> Iterator[str]:
    """Why the files are not those that were written. Each rank reads its part of them; together they read all."""
    for place, (name, digest) in enumerate(sorted(digests.items())):
        if place % world_size() == rank():
            fault = _fault(folder, name, digest)
            if fault is not None:
                yield fault


def check_seen(folder: Path, digests: Mapping[str, str]) -> None:
    """Refuse a folder in which this rank does not find what all of them wrote.

    Raises:
        UsageError: it does not.
    """
    missing = [name for name in digests if not (folder / name).exists()]
    if missing:
        raise UsageError(
            f"rank {rank()} does not see {missing[0]}, which another rank wrote: give all ranks the same folder, on a "
            "file system that all of them see"
        )


def first_of_all(faults: list[str]) -> list[str]:
    """The faults that any rank found, each once: every rank gets the same and so does the same."""
    return list(dict.fromkeys(fault for several in gathered(faults) for fault in several))


def _digests_of_own(folder: Path) -> dict[str, str]:
    """Of what this rank wrote: its shards, and of the first rank the index too."""
    own = sorted(folder.glob(f"__{rank()}_*"))
    return {one.name: _digest(one) for one in [*own, *([folder / _INDEX] if rank() == 0 else [])]}


def _fault(folder: Path, name: str, digest: str) -> str | None:
    try:
        is_whole = Path(name).name == name and _digest(folder / name) == digest
    except OSError as error:
        return f"{name} cannot be read: {error}"
    return None if is_whole else f"{name} is damaged: its checksum is not that of its content"


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
