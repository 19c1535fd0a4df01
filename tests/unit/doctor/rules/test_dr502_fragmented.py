import memories
from ampwise.doctor.rules.dr502_fragmented import RULE
from ampwise.records.finding import Severity
from ampwise.records.memory import MemoryRecord

PIECES = memories.allocator(allocated=15.0, reserved=22.8, pieces=7.5, free=0.2)


def running(**fields):
    return memories.case(MemoryRecord(allocators=(memories.allocator(**fields),)))


def test_a_request_that_the_pieces_would_have_served_is_told():
    (finding,) = RULE.check(memories.out_of_memory(PIECES))
    assert finding.message == "cuda:0 ran out of memory with enough of it free, in pieces too small."
    assert "2.00 GiB asked of cuda:0: 15.0 GiB in tensors, 7.50 GiB in pieces between them" in finding.evidence
    assert "export PYTORCH_ALLOC_CONF=expandable_segments:True" in finding.remedy
    assert finding.severity is Severity.ERROR


def test_where_segments_can_grow_already_another_remedy_is_given():
    state = memories.allocator(allocated=15.0, reserved=22.8, pieces=7.5, free=0.2, is_expandable=True)
    (finding,) = RULE.check(memories.out_of_memory(state))
    assert "expandable_segments" not in finding.remedy


def test_a_gpu_that_is_too_small_is_another_rules():
    assert list(RULE.check(memories.out_of_memory(memories.allocator(allocated=22.5, pieces=0.1)))) == []


def test_a_cache_emptied_to_serve_requests_is_the_edge():
    (finding,) = RULE.check(running(num_alloc_retries=7))
    assert "emptied 7 times to serve a request" in finding.message
    assert finding.evidence == "20.0 GiB in tensors at most, 22.0 GiB reserved of 24.0 GiB; 2% of it in pieces"
    assert "a batch a little smaller" in finding.remedy
    (pieces,) = RULE.check(running(num_alloc_retries=7, pieces=10.0))
    assert "expandable_segments" in pieces.remedy


def test_a_quiet_allocator_is_told():
    assert list(RULE.check(running())) == []
    assert list(RULE.reassure(running())) == ["2% of what cuda:0 has reserved lies in pieces, and no request failed"]
    for bare in (memories.case(), memories.case(MemoryRecord())):
        assert list(RULE.check(bare)) == list(RULE.reassure(bare)) == []
