import memories
from ampwise.doctor.rules.dr504_graph_kept import RULE
from ampwise.records.finding import Severity
from ampwise.records.memory import MemoryRecord

ENDS = memories.ends(10 * 2**20, 12 * 2**20, 14 * 2**20)


def case(*kept, ends=ENDS):
    return memories.case(MemoryRecord(kept=kept, step_ends=ends))


def test_a_sum_that_keeps_graphs_is_told_with_its_nodes():
    (finding,) = RULE.check(case(memories.kept("total")))
    assert finding.message == "`total` keeps the autograd graph of every step."
    assert finding.site.where == "train.py:14"
    assert finding.evidence == (
        "its graph has 40, 60, 80 nodes at the ends of steps looked at; 4.00 MiB more live after step 7 than after 5"
    )
    assert "`total += loss.detach()`" in finding.remedy
    assert finding.severity is Severity.ERROR


def test_a_list_is_told_as_one():
    (finding,) = RULE.check(case(memories.kept("losses[]"), ends=()))
    assert finding.message == "The items of `losses` keep the autograd graph of every step."
    assert "`losses.append(loss.detach())`" in finding.remedy
    assert "more live" not in finding.evidence


def test_a_graph_that_does_not_grow_is_no_finding():
    assert list(RULE.check(case(memories.kept("loss", 40, 40, 40)))) == []
    assert list(RULE.check(memories.case())) == []


def test_what_steps_leave_behind_is_told():
    assert list(RULE.reassure(case(ends=memories.ends(2**20, 2**20)))) == [
        "no variable's graph grew: 1.00 MiB lived after step 5, 1.00 MiB after step 6"
    ]
    assert list(RULE.reassure(case(ends=()))) == list(RULE.reassure(memories.case())) == []
