from ampwise.doctor.rules.dr107_poisoned_batch_norm import RULE
from ampwise.records.finding import Confidence
from cases import GOOD, LOST, case, fp32, of, operand, origin, run

PRODUCER = origin("aten.mm", operand(200.0, 202.0), module="fc")
SPOILT = ("bn.running_mean", "bn.running_var")


def test_the_producer_is_blamed_and_not_batch_norm():
    watched = run(losses=GOOD, skipped=(0, 3), scale=65536.0)
    (finding,) = RULE.check(case(PRODUCER, watched=watched, buffers=SPOILT))
    assert finding.message == (
        "bn.running_mean, bn.running_var hold infinities or NaN, so the model gives NaN in eval(). BatchNorm only "
        "averaged them: aten.mm in fc made them."
    )
    assert finding.site == PRODUCER.site
    assert finding.evidence.startswith(
        "2 buffers not finite after step 19; 2 skipped steps kept the weights finite, the first step 0; step 3: inputs "
    )
    assert finding.remedy.startswith("Compute fc in fp32, as its own finding says; then reset")


def test_an_unknown_producer_is_said_to_be_so():
    (finding,) = RULE.check(case(buffers=SPOILT))
    assert finding.confidence is Confidence.POSSIBLE
    assert "Which operator's infinities they averaged was not seen." in finding.message


def test_a_fault_of_fp32_is_not_for_a_precision_to_fix():
    (finding,) = RULE.check(case(PRODUCER, reruns=[fp32(losses=LOST)], buffers=SPOILT))
    assert finding.remedy.startswith("The same run in fp32 fails too")


def test_other_buffers_and_healthy_ones_are_none():
    assert list(RULE.check(case(PRODUCER, buffers=("rope.table",)))) == []
    assert list(RULE.check(case(PRODUCER))) == []
    assert list(RULE.check(of(run()))) == []
