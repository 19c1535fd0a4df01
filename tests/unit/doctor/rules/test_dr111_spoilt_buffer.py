from ampwise.doctor.rules.dr111_spoilt_buffer import RULE
from ampwise.records.run import Role
from cases import GOOD, case, of, run, seen


def test_a_buffer_that_became_infinite_is_named():
    (finding,) = RULE.check(case(watched=run(losses=GOOD), buffers=("net.scale",)))
    assert finding.message == "The buffer net.scale holds infinities or NaN, and did not at first."
    assert finding.site.module == "net"


def test_several_are_counted():
    (finding,) = RULE.check(case(buffers=("a", "b", "c", "d", "e")))
    assert finding.message.startswith("The buffers a, b, c and 2 more hold infinities")


def test_whether_fp32_keeps_it_finite_is_told():
    for buffers, words in ((("scale",), "in fp32 too"), ((), "in fp32 they stay finite")):
        rerun = run("fp32", role=Role.IN_FP32, losses=GOOD, nonfinite=seen(buffers=buffers))
        (finding,) = RULE.check(case(buffers=("scale",), reruns=[rerun]))
        assert finding.evidence.endswith(words)


def test_what_was_so_from_the_start_running_statistics_and_healthy_ones_are_none():
    assert list(RULE.check(case(buffers=("least",), buffers_before=("least",)))) == []
    assert list(RULE.check(case(buffers=("bn.running_mean",)))) == []
    assert list(RULE.check(case())) == []
    assert list(RULE.check(of(run()))) == []
