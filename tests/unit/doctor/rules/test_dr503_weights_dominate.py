import pytest

import memories
import speeds
from ampwise.doctor.rules.dr503_weights_dominate import RULE
from ampwise.records.memory import MemoryRecord

ADAM = memories.peak(parameter=1, gradient=1, optimizer_state=2, activation=0.5, cast=0.5)


def case(peak, *, dtype="bf16"):
    return memories.case(MemoryRecord(peak=peak), kernels=speeds.on_cpu(speeds.product(dtype=dtype)))


def test_the_bytes_of_a_parameter_and_what_could_be_saved_are_told():
    (finding,) = RULE.check(case(ADAM))
    assert finding.message == (
        "bf16 cannot save much memory here: 80% of the peak is weights, gradients and optimizer state, 16 bytes for "
        "each of 268 M parameters."
    )
    assert finding.evidence.startswith("peak 5.00 GiB: optimizer state 2.00 GiB, ")
    assert "In bf16 they would take 2.00 GiB less; to halve the activations saves 256 MiB at most." in finding.remedy


@pytest.mark.parametrize(
    ("peak", "dtype"),
    [
        (memories.peak(parameter=1, gradient=1, optimizer_state=2, activation=5), "bf16"),
        (memories.peak(parameter=0.01, gradient=0.01, optimizer_state=0.02), "bf16"),
        (ADAM, "fp32"),
        (None, "bf16"),
    ],
    ids=["activations", "small", "fp32", "no timeline"],
)
def test_other_peaks_small_models_and_fp32_are_no_finding(peak, dtype):
    assert list(RULE.check(case(peak, dtype=dtype))) == []


def test_the_peak_is_told_with_its_largest_part():
    told = list(RULE.reassure(case(memories.peak(parameter=1, activation=3))))
    assert told == ["a step takes 4.00 GiB at its peak, 75% of it activation"]
    bare = memories.case()
    assert list(RULE.check(bare)) == list(RULE.reassure(bare)) == []
