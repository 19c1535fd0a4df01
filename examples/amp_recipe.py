"""The well-known AMP recipe: the same Linear/ReLU stack trained in default precision and in mixed precision.

Prints the time and the peak memory of both, with ampwise.TrainStep: one loop, no branch on the precision.
"""

import argparse
import time

import torch
import torch.nn as nn

import ampwise

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


def train(precision):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    step = ampwise.TrainStep(optimizer, modules=[model], precision=precision)
    torch.manual_seed(1)
    data = [torch.randn(args.batch, args.width, device=device) for _ in range(4)]
    targets = [torch.randn(args.batch, args.width, device=device) for _ in range(4)]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for epoch in range(args.epochs):
        for i in range(args.batches):
            synchronize()
            start = time.perf_counter()
            with step.autocast():
                loss = nn.functional.mse_loss(model(data[i % 4]), targets[i % 4])
            step(loss)
            synchronize()
            times.append(time.perf_counter() - start)
    peak = f"{torch.cuda.max_memory_allocated() / 2**20:.0f} MiB" if device.type == "cuda" else "see ampwise compare"
    median = sorted(times)[len(times) // 2] * 1000
    print(
        f"{precision:8s} {step.precision:5s}  median {median:8.2f} ms a step  loss {loss.item():.6f}  peak memory {peak}"
    )
    return median


print(f"{args.layers} x Linear-{args.width}, batch {args.batch}, on {device}")
default = train("fp32")
mixed = train(args.precision)
print(f"mixed precision is {default / mixed:.2f}x as fast")
