"""Steps of a single weight, and their loss scale."""

import torch

from ampwise import TrainStep
from ampwise.runtime.scaling.loss_scale import DynamicLossScale

INF = float("inf")


def weight_and_step(*, lr=1.0, value=1.0, **options):
    weight = torch.nn.Parameter(torch.tensor([value]))
    options.setdefault("precision", "fp32")
    return weight, TrainStep(torch.optim.SGD([weight], lr=lr), **options)


def dynamic(**options):
    return DynamicLossScale(**{"scale": 8.0, **options})


def sgd():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
