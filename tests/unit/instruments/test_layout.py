import gc

import torch
from torch import nn

from ampwise.instruments.layout import LayoutWatch
from ampwise.observe.modules import ModuleStack


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.body(x)


def layout(work):
    gc.collect()
    with LayoutWatch() as watch:
        work()
    return [(one.root, one.path, one.name, one.kind) for one in watch.record().modules]


def test_every_module_of_a_model_is_written_down_once_called_or_not():
    net = Net()

    def work():
        for _ in range(2):
            net(torch.ones(1, 2))

    assert layout(work) == [
        ("net", "", "", "Net"),
        ("net", "body", "body", "Sequential"),
        ("net", "body.0", "body.0", "Linear"),
        ("net", "body.1", "body.1", "ReLU"),
        ("net", "unused", "unused", "Linear"),
    ]


def test_several_models_are_named():
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    found = layout(lambda: critic(generator(torch.ones(1, 2))))
    assert [(root, name) for root, _, name, _ in found] == [("generator", "generator"), ("critic", "critic")]


def test_nothing_called_is_an_empty_layout():
    assert layout(lambda: None) == []


def test_names_are_shared_with_a_stack():
    net, stack = Net(), ModuleStack()
    stack.names.add_root(net, name="model")
    with LayoutWatch(stack=stack) as watch:
        net(torch.ones(1, 2))
    assert {one.root for one in watch.record().modules} == {"model"}
    assert not watch.slowed_steps
