"""Recordings written by hand of what a training keeps in memory."""

import recordings
from ampwise.doctor.case import Case
from ampwise.records.memory import (
    AllocatorState,
    CategoryBytes,
    KeptTensor,
    MemoryCategory,
    MemoryPoint,
    MemoryRecord,
    StepEnd,
)
from ampwise.records.run import Failure, Role, RunEnd
from ampwise.records.site import Phase

GIB = 2**30


def peak(**gib):
    """A peak of so many GiB of each category."""
    parts = {MemoryCategory(name): round(size * GIB) for name, size in gib.items()}
    return MemoryPoint(
        event=9,
        phase=Phase.BACKWARD,
        total_bytes=sum(parts.values()),
        categories=tuple(CategoryBytes(category=category, bytes=parts[category]) for category in sorted(parts)),
    )


def allocator(*, allocated=20.0, reserved=22.0, pieces=0.5, free=1.0, total=24.0, **fields):
    """A GPU's allocator, in GiB."""
    given = {
        "device": "cuda:0",
        "allocated_bytes": round(allocated * GIB),
        "max_allocated_bytes": round(allocated * GIB),
        "reserved_bytes": round(reserved * GIB),
        "max_reserved_bytes": round(reserved * GIB),
        "active_bytes": round(allocated * GIB),
        "inactive_split_bytes": round(pieces * GIB),
        "requested_bytes": round(allocated * GIB),
        "free_bytes": round(free * GIB),
        "total_bytes": round(total * GIB),
        "num_alloc_retries": 0,
        "num_ooms": 0,
        **fields,
    }
    return AllocatorState(**given)


def kept(name="total", *nodes, is_of_other_model=False):
    return KeptTensor(
        name=name,
        file="train.py",
        line=14,
        num_nodes=nodes or (40, 60, 80),
        leaf_bytes=3 * 2**20,
        is_of_other_model=is_of_other_model,
    )


def ends(*live, casts=0):
    return tuple(StepEnd(step=5 + place, live_bytes=size, cached_cast_bytes=casts) for place, size in enumerate(live))


def run(memory=None, *, precision="bf16", **fields):
    return recordings.run(precision, precision, role=Role.WATCHED, num_steps=20, memory=memory, **fields)


def case(memory=None, **fields):
    return Case(recordings.recording([run(memory, **fields)], []))


def out_of_memory(state, *, message="CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...", **fields):
    """A run that ended because a request failed; by default one of 2 GiB."""
    states = () if state is None else (state,)
    failure = Failure(kind="OutOfMemoryError", message=message, where="train.py:12")
    return case(MemoryRecord(allocators=states, **fields), end=RunEnd.OUT_OF_MEMORY, failure=failure)
