import torch

from ampwise.compat.stance import run_uncompiled


def test_functions_run_compiled_again_after_the_last_undo_in_whatever_order():
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x.sin() + 1, backend=backend)
    first, second = run_uncompiled(), run_uncompiled()
    compiled(torch.zeros(2))
    first()
    compiled(torch.zeros(2))
    assert graphs == []
    second()
    compiled(torch.zeros(2))
    torch._dynamo.reset()
    assert len(graphs) == 1
    assert torch._dynamo.eval_frame._stance.stance == "default"
