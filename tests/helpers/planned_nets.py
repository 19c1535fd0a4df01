"""Small models that say in which format they ran, and plans for them."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ampwise.plan.plan import Lists, Plan, Rule

BF16 = torch.bfloat16


class Seen(nn.Module):
    """A linear layer that says in which format it and its softmax ran."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.dtypes = {}

    def forward(self, x, *, scale=None):
        self.dtypes["x"] = x.dtype
        y = self.inner(x)
        self.dtypes["linear"] = y.dtype
        self.dtypes["softmax"] = F.softmax(y.bfloat16(), -1).dtype
        self.dtypes["matmul"] = (y @ y.mT.to(y.dtype)).dtype
        return y if scale is None else y * scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Seen(), Seen()])
        self.wo = Seen()

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.wo(x)


class Quiet(nn.Module):
    """As ``Net``, and compiles."""

    def __init__(self):
        super().__init__()
        self.a, self.wo, self.out = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        return F.softmax(self.out(self.wo(torch.relu(self.a(x)))), -1) @ torch.eye(4)


def net(kind=Net):
    torch.manual_seed(0)
    return kind()


def plan(*rules, default="bf16", **options):
    return Plan(default=default, rules=tuple(Rule(**rule) for rule in rules), **{"lists": Lists.STOCK, **options})


def state_of(model):
    return [(name, dict(vars(module))) for name, module in model.named_modules()]


def same_state(one, other):
    return all(
        a == b and c.keys() == d.keys() and all(c[key] is d[key] for key in c)
        for (a, c), (b, d) in zip(one, other, strict=True)
    )
