from ampwise.doctor.rules.dr112_nan_in_evaluation import RULE
from ampwise.records.nonfinite import BadOutput
from ampwise.records.run import Role
from cases import GOOD, case, of, operand, run, seen

OUTPUT = BadOutput(step=5, module="", value=operand(0.0, 1.0, num_nan=8), file="train.py", line=23)
WELL = run(losses=GOOD)


def test_the_model_its_numbers_and_the_line_of_the_call_are_told():
    (finding,) = RULE.check(case(watched=WELL, outputs=(OUTPUT,)))
    assert finding.message == ("The model gives 8 NaN where no gradients are asked for, while its training is finite.")
    assert finding.site.where == "train.py:23"
    assert finding.evidence == "before step 5: fp16 8x4, of finite arguments"


def test_whether_fp32_gives_it_too_is_told():
    for outputs, words in (((OUTPUT,), "in fp32 too"), ((), "in fp32 it is finite")):
        rerun = run("fp32", role=Role.IN_FP32, losses=GOOD, nonfinite=seen(outputs=outputs))
        (finding,) = RULE.check(case(watched=WELL, outputs=(OUTPUT,), reruns=[rerun]))
        assert finding.evidence.endswith(words)


def test_what_follows_a_lost_training_or_spoilt_statistics_is_theirs():
    assert list(RULE.check(case(outputs=(OUTPUT,), loss_steps=(3,)))) == []
    assert list(RULE.check(case(outputs=(OUTPUT,), weight_steps=(5,)))) == []
    assert list(RULE.check(case(outputs=(OUTPUT,), buffers=("bn.running_mean",)))) == []
    assert len(list(RULE.check(case(outputs=(OUTPUT,), loss_steps=(6,))))) == 1


def test_healthy_evaluations_are_none():
    assert list(RULE.check(case(watched=WELL))) == []
    assert list(RULE.check(of(run()))) == []
