import pytest

import speeds
from ampwise.doctor.rules.dr402_page_faults import RULE

FAULTS = {"minor_faults": 80_000, "system_ms": 200.0}


def case(allocator="system", **fields):
    return speeds.case(speeds.run(process=speeds.process(**fields)), allocator=allocator)


def test_faults_and_the_kernels_share_are_told_with_what_to_export():
    (finding,) = RULE.check(case(**FAULTS))
    assert finding.message == "Every step maps 39.1 MiB of memory anew."
    assert finding.evidence.startswith("10000 page faults a step, 22% of the CPU time in the kernel; allocator: system")
    assert "`ampwise run`" in finding.remedy
    assert "export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=68719476736" in finding.remedy


def test_where_the_allocator_is_tuned_already_the_script_is_asked():
    (finding,) = RULE.check(case("tuned (large tensors are kept between steps)", **FAULTS))
    assert "malloc_trim" in finding.remedy
    assert "export" not in finding.remedy


@pytest.mark.parametrize("fields", [{}, {"minor_faults": 80_000}, {"system_ms": 200.0}])
def test_few_faults_or_a_quiet_kernel_are_no_finding(fields):
    assert list(RULE.check(case(**fields))) == []


def test_it_is_silent_on_a_gpu_and_without_accounts():
    run = speeds.run(process=speeds.process(**FAULTS))
    assert list(RULE.check(speeds.on_cuda(run))) == []
    bare = speeds.case(speeds.run(process=None))
    assert list(RULE.check(bare)) == list(RULE.reassure(bare)) == []


def test_a_quiet_kernel_is_told_with_the_setting_it_stands_on():
    (told,) = RULE.reassure(case("tuned (kept)"))
    assert told.startswith("the allocator keeps its memory: 10 page faults a step, 0% of the CPU time in the kernel")
    assert told.endswith("with ampwise's setting of the allocator")
