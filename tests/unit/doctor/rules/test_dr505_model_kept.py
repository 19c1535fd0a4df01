import memories
from ampwise.doctor.rules.dr505_model_kept import RULE
from ampwise.records.memory import MemoryRecord


def found(*kept):
    return list(RULE.check(memories.case(MemoryRecord(kept=kept))))


def test_a_variable_of_a_model_done_with_is_told_with_its_bytes():
    (finding,) = found(memories.kept("loss", 7, 7, 7, is_of_other_model=True))
    assert finding.message == "`loss` keeps the weights of a model alive that is gone."
    assert finding.evidence.startswith("its graph of 7 nodes holds 3.00 MiB of parameters")
    assert finding.remedy.startswith("`del loss`")
    assert finding.site.where == "train.py:14"


def test_a_growing_graph_is_another_rules_and_nothing_is_nothing():
    assert found(memories.kept("total", 7, 9, 11, is_of_other_model=True)) == []
    assert found(memories.kept("loss", 7, 7, 7)) == []
    assert list(RULE.check(memories.case())) == []
