"""``ampwise.autocast`` is torch's."""

import torch

import ampwise


def test_it_is_the_same_class():
    assert ampwise.autocast is torch.autocast


def test_it_is_a_context_manager_a_decorator_and_compiles():
    layer = torch.nn.Linear(2, 2)

    @ampwise.autocast("cpu", dtype=torch.bfloat16)
    def decorated(x):
        return layer(x)

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(x):
        with ampwise.autocast("cpu", dtype=torch.bfloat16):
            return layer(x)

    assert decorated(torch.ones(1, 2)).dtype is torch.bfloat16
    assert compiled(torch.ones(1, 2)).dtype is torch.bfloat16
