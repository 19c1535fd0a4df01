import pytest

from ampwise.doctor.rules.dr205_gradient_underflow import RULE
from ampwise.records.finding import Severity
from ampwise.records.numerics import TensorKind
from cases import LOST, case, numerics, of, operand, origin, run, tensor

TINY = [2.0**-20] * 30
PLAIN = [2.0**-8] * 70
ALL_ZERO = numerics(
    tensor(TensorKind.GRADIENT, zeros=8192), tensor(TensorKind.WEIGHT_GRADIENT, zeros=16, module="net.head")
)


def test_gradients_that_are_all_zero_are_an_error():
    (finding,) = RULE.check(of(run(numerics=ALL_ZERO)))
    assert finding.message == "All 8208 gradients looked at are zero in fp16, while the loss is not."
    assert finding.severity is Severity.ERROR
    assert finding.evidence == ("without a loss scale, 8208 of 8208 numbers are zero and 0 below 6.1e-05, in 2 tensors")
    assert "scaler.scale(loss).backward()" in finding.remedy


def test_a_quarter_below_the_normal_numbers_is_a_warning():
    measured = numerics(
        tensor(TensorKind.GRADIENT, *TINY, module="net.deep", zeros=5), tensor(TensorKind.GRADIENT, *PLAIN)
    )
    (finding,) = RULE.check(of(run(scale=8.0, numerics=measured)))
    assert finding.severity is Severity.WARNING
    assert finding.message == (
        "30% of the gradients that are not zero lie below fp16's normal numbers; the most, 100%, in net.deep."
    )
    assert "at a loss scale of 8, 5 of 105 numbers are zero and 30 below 6.1e-05" in finding.evidence
    assert finding.remedy == "Raise the scale: `GradScaler(init_scale=2048)`; or use bf16."


@pytest.mark.parametrize(
    "record",
    [
        run(numerics=numerics(tensor(TensorKind.GRADIENT, *TINY[:10], *PLAIN))),
        run(numerics=numerics(tensor(TensorKind.GRADIENT, *TINY, dtype="bf16"))),
        run(numerics=numerics(tensor(TensorKind.ACTIVATION, *TINY))),
        run(numerics=numerics(tensor(TensorKind.GRADIENT, *TINY, amax=(float("inf"),)))),
        run(losses=[0.0] * 20, numerics=ALL_ZERO),
        run(numerics=numerics(*ALL_ZERO.tensors, tensor(TensorKind.WEIGHT_GRADIENT, *PLAIN, dtype="fp32"))),
        run(losses=LOST, numerics=ALL_ZERO),
        run(),
    ],
    ids=["few", "bf16", "activation", "not finite", "no loss", "a dead branch", "lost", "not measured"],
)
def test_others_are_none(record):
    assert list(RULE.check(of(record))) == []


def test_zeros_behind_an_overflow_are_its_doing():
    assert list(RULE.check(case(origin("aten.mm", operand(0.0, 9e3)), watched=run(numerics=ALL_ZERO)))) == []


def test_how_few_are_small_is_told():
    measured = numerics(tensor(TensorKind.GRADIENT, *TINY[:10], *PLAIN, *PLAIN[:20]))
    assert list(RULE.reassure(of(run(numerics=measured)))) == [
        "10.0% of the gradients lie below fp16's normal numbers (100 numbers looked at)"
    ]
    assert list(RULE.reassure(of(run()))) == []
