import dataclasses

import pytest

from ampwise.records.memory import AllocatorState, CategoryBytes, KeptTensor, MemoryCategory, MemoryPoint
from ampwise.records.site import Phase

KEPT = KeptTensor(name="total", file="a.py", line=3, num_nodes=(), leaf_bytes=0, is_of_other_model=False)


@pytest.mark.parametrize(
    ("nodes", "grows"), [((3, 6, 9), True), ((3, 6), False), ((3, 3, 3), False), ((3, 6, 6), False), ((), False)]
)
def test_a_graph_grows_if_it_did_at_every_step(nodes, grows):
    assert dataclasses.replace(KEPT, num_nodes=nodes).is_growing is grows


def test_a_category_that_is_not_named_holds_nothing():
    parts = (CategoryBytes(category=MemoryCategory.CAST, bytes=8),)
    point = MemoryPoint(event=0, phase=Phase.FORWARD, total_bytes=8, categories=parts)
    assert point.bytes_of(MemoryCategory.CAST) == 8
    assert point.bytes_of(MemoryCategory.GRADIENT) == 0


def test_fragmentation_is_what_cannot_be_handed_back():
    names = [field.name for field in dataclasses.fields(AllocatorState) if field.default is dataclasses.MISSING]
    state = AllocatorState(**{**dict.fromkeys(names, 0), "device": "cuda:0"})
    assert state.fragmentation == 0.0
    assert dataclasses.replace(state, reserved_bytes=100, inactive_split_bytes=25).fragmentation == 0.25
