import speeds
from ampwise.doctor.rules.dr411_graph_broken import RULE
from ampwise.records.compilation import CompileRecord, GraphBreak

BREAK = GraphBreak(reason="generic_jump TensorVariable()", count=2, file="net.py", line=11)


def case(*breaks, num_graphs=3, num_frames=2, num_left=0):
    seen = CompileRecord(num_graphs=num_graphs, num_frames=num_frames, num_left=num_left, breaks=breaks)
    return speeds.case(speeds.run(compilation=seen))


def test_a_break_is_told_at_its_line():
    (finding,) = RULE.check(case(BREAK, num_left=1))
    assert finding.message == "torch.compile breaks its graph here: a branch depends on a tensor's numbers."
    assert finding.site.where == "net.py:11"
    assert finding.evidence == "2 breaks at this line; 3 graphs of 2 functions, 1 left to Python"
    assert "fullgraph=True" in finding.remedy


def test_a_break_without_a_line_is_told_with_the_compilers_words():
    (finding,) = RULE.check(case(GraphBreak(reason="Unsupported Tensor.item() call", count=1)))
    assert finding.message.endswith("Unsupported Tensor.item() call")
    assert finding.site is None


def test_functions_compiled_over_and_over_are_told():
    (finding,) = RULE.check(case(num_graphs=20))
    assert "over and over" in finding.message
    assert "dynamic=True" in finding.remedy


def test_whole_graphs_are_told_and_are_no_finding():
    assert list(RULE.check(case())) == []
    assert list(RULE.reassure(case())) == ["torch.compile broke no graph: 3 graphs of 2 functions"]


def test_where_nothing_was_compiled_it_is_silent():
    bare = speeds.case(speeds.run())
    assert list(RULE.check(bare)) == list(RULE.reassure(bare)) == []
