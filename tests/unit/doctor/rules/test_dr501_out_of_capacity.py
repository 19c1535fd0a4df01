import pytest

import memories
from ampwise.doctor.rules.dr501_out_of_capacity import RULE

FULL = memories.allocator(allocated=22.5, reserved=22.8, pieces=0.1, free=0.2)


def test_a_gpu_that_is_too_small_is_told_by_how_much_and_what_fills_it():
    peak = memories.peak(activation=14, parameter=3, optimizer_state=5)
    (finding,) = RULE.check(memories.out_of_memory(FULL, peak=peak))
    assert finding.message == "cuda:0 is too small by 1.50 GiB at train.py:12."
    assert finding.evidence == (
        "2.00 GiB asked of cuda:0: 22.5 GiB in tensors, 102 MiB in pieces between them, 205 MiB free, 1.00 GiB held by "
        "CUDA and others, of 24.0 GiB; the step's peak before: activation 14.0 GiB, optimizer state 5.00 GiB, "
        "parameter 3.00 GiB"
    )
    assert finding.remedy.startswith("Activations take the most: halve the batch")


def test_weights_are_not_shrunk_by_a_smaller_batch():
    peak = memories.peak(activation=2, parameter=5, optimizer_state=10)
    (finding,) = RULE.check(memories.out_of_memory(FULL, peak=peak))
    assert "a smaller batch does not shrink them" in finding.remedy


def test_a_gpu_full_of_others_is_not_blamed_on_the_tensors():
    others = memories.allocator(allocated=10.0, reserved=13.0, pieces=0.2, free=0.3, releasable_bytes=0)
    (finding,) = RULE.check(memories.out_of_memory(others))
    assert finding.message == "cuda:0 is full at train.py:12, and 10.7 GiB of it is not this script's tensors."
    assert "nvidia-smi" in finding.remedy


@pytest.mark.parametrize(
    "case",
    [
        memories.out_of_memory(memories.allocator(allocated=15.0, reserved=22.8, pieces=7.5, free=0.2)),
        memories.out_of_memory(None),
        memories.out_of_memory(FULL, message="DefaultCPUAllocator: can't allocate memory"),
        memories.case(),
    ],
    ids=["fragmented", "no figures", "another message", "no crash"],
)
def test_it_is_silent_where_it_cannot_know_or_another_rule_does(case):
    assert list(RULE.check(case)) == []
