from dataclasses import replace

from ampwise.doctor.rules.dr110_bad_input import RULE
from ampwise.records.run import Role
from cases import bad_input, case, of, run, seen


def test_the_argument_its_count_and_its_range_are_told():
    (finding,) = RULE.check(case(inputs=(bad_input(),)))
    assert finding.message == (
        "The model is given 1 NaN and 0 infinities as argument 0 at step 0: precision cannot fix it."
    )
    assert finding.evidence == "fp32 8x4, finite numbers from -1 to 2; 1 such tensors seen"
    assert finding.plan_rule is None


def test_a_parameter_counts_where_somebody_looked_before_the_first_step():
    weight = bad_input("weight", module="net.fc", is_parameter=True)
    assert list(RULE.check(case(inputs=(weight,)))) == []
    traced = run(role=Role.TRACED, nonfinite=seen(inputs=(weight, replace(weight, name="bias"))))
    (finding,) = RULE.check(case(reruns=[traced]))
    assert finding.message.startswith("net.fc has a weight that held 1 NaN and 0 infinities before its first step")


def test_it_is_silent_where_all_was_finite_or_nobody_looked():
    assert list(RULE.check(case())) == []
    assert list(RULE.check(of(run()))) == []
