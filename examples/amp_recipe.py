"""The well-known AMP recipe: the same Linear/ReLU stack trained in default precision and in mixed precision.

Prints the time and the peak memory of both, with ampwise.TrainStep: one loop, no branch on the precision.
"""

import argparse
import math
import time

import torch
import torch.nn as nn

import ampwise
from ampwise.instruments.memory import PeakMemory
from ampwise.observe.events import BUS

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batch", type=int, default=512)
parser.add_argument("--width", type=int, default=4096)
parser.add_argument("--layers", type=int, default=3)
parser.add_argument("--batches", type=int, default=50)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--precision", default="auto", help="the mixed precision to compare with fp32")
args = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_model():
    torch.manual_seed(0)
    layers = []
    for _ in range(args.layers - 1):
        layers += [nn.Linear(args.width, args.width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(args.width, args.width)).to(device)


def synchronize():
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_bytes(train_on):
    """The peak memory of one step, after a first: CUDA counts it itself, on a CPU ampwise counts every tensor.

    Not a number where something else watches every operator already, as ampwise doctor does.
    """
    train_on(0)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        train_on(1)
        return torch.cuda.max_memory_allocated()
    with PeakMemory(BUS, step=0) as memory:
        train_on(1)
    return memory.peak_tensor_bytes or math.nan


def train(precision):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    step = ampwise.TrainStep(optimizer, modules=[model], precision=precision)
    torch.manual_seed(1)
    data = [torch.randn(args.batch, args.width, device=device) for _ in range(4)]
    targets = [torch.randn(args.batch, args.width, device=device) for _ in range(4)]

    def train_on(i):
        with step.autocast():
            loss = nn.functional.mse_loss(model(data[i % 4]), targets[i % 4])
        step(loss)
        return loss

    peak = peak_bytes(train_on)
    times = []
    for epoch in range(args.epochs):
        for i in range(args.batches):
            synchronize()
            start = time.perf_counter()
            loss = train_on(i)
            synchronize()
            times.append(time.perf_counter() - start)
    median = sorted(times)[len(times) // 2] * 1000
    print(
        f"{precision} ({step.precision}): median {median:.2f} ms a step, peak memory {peak / 2**20:.1f} MiB, loss {loss:.6f}"
    )
    return median, peak


print(f"{args.layers} x Linear-{args.width}, batch {args.batch}, on {device}")
default_ms, default_peak = train("fp32")
mixed_ms, mixed_peak = train(args.precision)
print(f"mixed precision is {default_ms / mixed_ms:.2f}x as fast, in {mixed_peak / default_peak:.2f}x the memory")
