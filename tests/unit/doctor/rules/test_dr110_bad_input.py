from dataclasses import replace

from ampwise.doctor.rules.dr110_bad_input import RULE
from ampwise.records.run import Role
from cases import bad_input, case, of, origin, run, seen


def test_the_argument_its_count_and_its_range_are_told():
    (finding,) = RULE.check(case(inputs=(bad_input(),)))
    assert finding.message == "The model is given 1 NaN as argument 0 at step 0: precision cannot fix it."
    assert finding.evidence == "fp32 8x4, finite numbers from -1 to 2; 1 such tensor seen"
    assert finding.plan_rule is None


def test_the_rank_and_the_line_of_the_call_are_told():
    (finding,) = RULE.check(case(inputs=(replace(bad_input(), rank=1, file="train.py", line=8),)))
    assert "as argument 0 at step 0 of rank 1" in finding.message
    assert finding.site.where == "train.py:8"


def test_a_parameter_counts_where_somebody_looked_before_the_first_step():
    weight = bad_input("weight", module="net.fc", is_parameter=True)
    assert list(RULE.check(case(inputs=(weight,)))) == []
    traced = run(role=Role.TRACED, nonfinite=seen(inputs=(weight, replace(weight, name="bias"))))
    (finding,) = RULE.check(case(reruns=[traced]))
    assert finding.message.startswith("net.fc has a weight that held 1 NaN before its first step")


def test_it_is_silent_where_all_was_finite_or_nobody_looked():
    assert list(RULE.check(case())) == []
    assert list(RULE.check(of(run()))) == []


def test_what_spoilt_weights_or_an_operator_of_the_step_made_is_no_input():
    given = bad_input(module="net.distance", step=1)
    assert list(RULE.check(case(inputs=(given,), weight_steps=(0, 1)))) == []
    made = origin("aten.mm", module="net.encoder", step=1)
    assert list(RULE.check(case(made, inputs=(given,)))) == []
    assert len(list(RULE.check(case(inputs=(given,), weight_steps=(1,))))) == 1
