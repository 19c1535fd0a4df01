# pyright: reportPrivateImportUsage=false, reportIncompatibleMethodOverride=false, reportMissingImports=false
"""Reads the folders of torch.distributed.checkpoint without running code that is in them.

Private: torch's reader unpickles the folder's index as it is; ours unpickles nothing but what an index is made of.
"""

import io
import os
import pickle
from typing import Any, Final

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, StorageMeta, TensorStorageMetadata

from ampwise.compat.collectives import explained

_CLASSES: Final = frozenset(
    {
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("collections", "OrderedDict"),
        *(("pathlib", name) for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        *(
            ("torch.distributed.checkpoint.metadata", name)
            for name in (
                "Metadata",
                "MetadataIndex",
                "ChunkStorageMetadata",
                "TensorStorageMetadata",
                "BytesStorageMetadata",
                "TensorProperties",
                "StorageMeta",
                "_MEM_FORMAT_ENCODING",
            )
        ),
    }
)


class StrangerError(Exception):
    """A folder's index holds something that no index is made of."""


class FailedError(Exception):
    """A rank could not write or read its shards."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise StrangerError(f"{module}.{name}")


class Reader(dcp.FileSystemReader):
    """Torch's, but for the index."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(folder)
        self._index_path = os.path.join(folder, ".metadata")  # noqa: PTH118 - torch's spelling of the place

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """The index."""
        with open(self._index_path, "rb") as file:  # noqa: PTH123
            metadata = _Unpickler(io.BytesIO(file.read())).load()
        if not isinstance(metadata, Metadata):
            raise StrangerError(type(metadata).__name__)
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        held = metadata.state_dict_metadata
        strangers = [name for name, one in held.items() if isinstance(one, BytesStorageMetadata)]
        if strangers:
            raise StrangerError(f"{strangers[0]} is no tensor")
        return metadata


def tensors_in(folder: str | os.PathLike[str]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and dtype of every tensor in the folder, by name.

    Raises:
        StrangerError: the index holds something else.
        OSError: it cannot be read.
    """
    found = Reader(folder).read_metadata().state_dict_metadata
    return {
        name: (one.size, one.properties.dtype) for name, one in found.items() if isinstance(one, TensorStorageMetadata)
    }


def write(tensors: dict[str, Any], folder: str | os.PathLike[str]) -> None:
    """Write tensors into a folder, every rank its shards.

    Raises:
        FailedError: a rank could not; on every rank.
    """
    try:
        with explained():
            dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder, sync_files=True, overwrite=True))
    except CheckpointException as error:
        raise FailedError(_reasons(error)) from error


def read_into(tensors: dict[str, Any], folder: str | os.PathLike[str]) -> None:
    """Fill these tensors, whole or sharded in another way, with those of the folder; every rank its shards.

    Raises:
        FailedError: a rank could not; on every rank.
    """
    try:
        with explained():
            dcp.load(tensors, storage_reader=Reader(folder))
    except CheckpointException as error:
        raise FailedError(_reasons(error)) from error


def _reasons(error: CheckpointException) -> str:
    """What torch says of each rank, without its tracebacks."""
    return "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in error.failures.items())
