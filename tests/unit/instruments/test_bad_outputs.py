import torch
from torch import nn

from ampwise.instruments.nonfinite import NonFiniteWatch
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher


class Net(nn.Module):
    def __init__(self, spoils):
        super().__init__()
        self.head, self.spoils = nn.Linear(4, 2), spoils

    def forward(self, x):
        out = self.head(x)
        return {"logits": out if self.training else self.spoils(out)}


def evaluated(spoils, x):
    """What is recorded of two steps with an evaluation behind the first."""
    model = Net(spoils)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), NonFiniteWatch(bus) as watch:
        for step in range(2):
            model.train()(torch.ones(3, 4))["logits"].sum().backward()
            optimizer.step()
            if not step:
                with torch.no_grad():
                    model.eval()(x)
    return watch.record()


def test_nan_in_an_evaluation_is_noted_with_its_place():
    record = evaluated(lambda out: out * torch.nan, torch.ones(3, 4))
    (one,) = record.outputs
    assert (one.step, one.module, one.value.num_nan) == (1, "", 6)
    assert one.file.endswith("test_bad_outputs.py")
    assert record.loss_steps == ()


def test_nan_of_bad_arguments_infinities_and_finite_numbers_are_none():
    assert evaluated(lambda out: out, torch.full((3, 4), torch.nan)).outputs == ()
    assert evaluated(lambda out: out - torch.inf, torch.ones(3, 4)).outputs == ()
    assert evaluated(lambda out: out, torch.ones(3, 4)).outputs == ()
