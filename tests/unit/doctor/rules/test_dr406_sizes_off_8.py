import pytest

import speeds
from ampwise.doctor.rules.dr406_sizes_off_8 import RULE
from ampwise.records.finding import Severity

ODD = speeds.product(512, 1001, 1024, padded=(512, 1008, 1024))
CLASSES = speeds.product(512, 10, 1024, padded=(512, 16, 1024))


def case(*products, on=speeds.on_cpu, **fields):
    run = speeds.run(kernels=on(*products), **fields)
    return speeds.case(run) if on is speeds.on_cpu else speeds.on_cuda(run)


def test_the_size_and_the_one_to_use_are_told():
    (finding,) = RULE.check(case(ODD, on=speeds.on_gpu))
    assert finding.message == "100% of the bf16 products' operations have a size that is no multiple of 8."
    assert finding.evidence == "rows x columns x inner: aten.addmm 512x1001x1024 (60 ms) fits as 512x1008x1024"
    assert finding.remedy.startswith("Change 1001 to 1008.")
    assert finding.severity is Severity.WARNING


def test_on_a_cpu_it_is_news_of_a_gpu():
    (finding,) = RULE.check(case(ODD))
    assert finding.message.endswith("On a CPU this costs little; on a GPU's tensor cores it does.")
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(
    "products",
    [
        (speeds.PRODUCT,),
        (speeds.PRODUCT, CLASSES),
        (speeds.product(512, 1001, 1024, dtype="fp32", padded=(512, 1008, 1024)),),
        (speeds.product(4, 1, 8, padded=(8, 8, 8)),),
    ],
    ids=["even", "a small head", "fp32", "tiny"],
)
def test_even_sizes_small_parts_and_fp32_are_no_finding(products):
    assert list(RULE.check(case(*products))) == []


def test_without_a_profile_it_is_silent():
    bare = speeds.case(speeds.run())
    assert list(RULE.check(bare)) == list(RULE.reassure(bare)) == []


def test_sizes_that_fit_are_told():
    told = list(RULE.reassure(case(speeds.PRODUCT, CLASSES)))
    assert told == ["99% of the bf16 products' operations have sizes that are multiples of 8"]
    (tiny,) = RULE.reassure(case(speeds.product(4, 1, 8, padded=(8, 8, 8))))
    assert tiny.endswith("multiples of 8; the others are too small to matter")
