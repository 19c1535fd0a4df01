"""Models that train on the imaginary GPU, within one test."""

import sys
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from ampwise.estimate.imagine import imagined
from ampwise.estimate.order import GpuSpec
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher


def gpu(capability=(8, 0), total_bytes=80 * 2**30):
    return GpuSpec(name="A100", compute_capability=capability, total_bytes=total_bytes, context_bytes=0)


@contextmanager
def imagining(capability=(8, 0), *, has_workspaces=False, is_watched=True, world_size=None):
    """An imaginary GPU. The watcher finds the steps, and holds the last scaled loss."""
    bus = EventBus()
    watcher = LoopWatcher(bus) if is_watched else nullcontext()
    made = imagined(gpu(capability), bus=bus, has_workspaces=has_workspaces, world_size=world_size)
    with made as imagination, watcher:
        yield imagination


@contextmanager
def processes(world_size):
    """An imaginary GPU of a process group of so many ranks."""
    hook = sys.excepthook  # torch.distributed sets one of its own
    with imagining(world_size=world_size) as imagination:
        torch.distributed.init_process_group("nccl")
        try:
            yield imagination
        finally:
            torch.distributed.destroy_process_group()
            sys.excepthook = hook


def recipe_model(width=4096):
    layers = (nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    return nn.Sequential(*layers).cuda()


class Block(nn.Module):
    def __init__(self, channels, width, stride=1):
        super().__init__()
        out = width * 4
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        is_same = channels == out and stride == 1
        self.shortcut = (
            nn.Identity()
            if is_same
            else nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-50 with ``depths=(3, 4, 6, 3)``."""

    def __init__(self, depths=(3, 4, 6, 3), width=64, num_classes=1000):
        super().__init__()
        layers = [nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        channels = width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                inner = width * 2**stage
                layers.append(Block(channels, inner, stride=2 if stage and not index else 1))
                channels = inner * 4
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))

    def forward(self, x):
        return self.layers(x)


def train(model, optimizer, batch, loss_of, *, precision="fp32", num_steps=2, scaler=None):
    """Steps in ``precision``; fp16 with a loss scale."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    scaler = scaler or torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    for _ in range(num_steps):
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            loss = loss_of(model, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
