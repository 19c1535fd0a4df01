"""Peaks that others measured on real GPUs and published."""

import pytest
import torch
from torch import nn

from ampwise.estimate import device
from imagining import imagining, recipe_model


def test_the_amp_recipe_on_a_t4(monkeypatch):
    """https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html with torch 1.11.

    cuBLAS took no workspace then, gradients were set to zero and stayed, and a loss had no memory of its elements. The
    script's names matter: until the AMP run's first loss the name ``loss`` still holds the fp32 model's graph.
    """
    of_then = {name: kernel for name, kernel in device.KERNELS.items() if name != torch.ops.aten.mse_loss.default}
    monkeypatch.setattr(device, "KERNELS", of_then)
    with imagining((7, 5)) as imagination:
        allocator = imagination.ledger.allocator
        data = [torch.randn(512, 4096, device="cuda") for _ in range(50)]
        targets = [torch.randn(512, 4096, device="cuda") for _ in range(50)]
        net = recipe_model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        for inputs, target in zip(data[:2], targets[:2], strict=True):
            output = net(inputs)
            loss = nn.functional.mse_loss(output, target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        assert allocator.peak_allocated_bytes == 1_350_681_600
        allocator.peak_allocated_bytes = 0
        net = recipe_model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        scaler = torch.amp.GradScaler("cuda")
        for inputs, target in zip(data[:2], targets[:2], strict=True):
            with torch.autocast("cuda", dtype=torch.float16):
                output = net(inputs)
                loss = nn.functional.mse_loss(output, target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)
        assert allocator.peak_allocated_bytes == 1_577_232_384


def test_the_amp_recipe_by_hand():
    batch, weights, biases = 512 * 4096 * 4, 3 * 4096 * 4096 * 4, 3 * 4096 * 4
    new_gradients = 4096 * 4096 * 4 + 4096 * 4
    assert 100 * batch + 2 * (weights + biases) + new_gradients + 5 * batch + 2 * 512 == 1_350_681_600


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("base", torch.randn((41292, 64)))

    def forward(self, tensor):
        return self.base.expand(tensor.shape[0], -1, -1).bmm(tensor.unsqueeze(-1))


def test_bmm_of_an_expanded_operand():
    """https://github.com/pytorch/pytorch/issues/85698: autocast writes the expanded operand out."""
    with imagining((7, 5)):
        model = Base().to(torch.device("cuda"))
        found = []
        for use_amp in (True, False):
            for _ in range(2):
                with torch.autocast(device_type="cuda", dtype=torch.float16, enabled=use_amp):
                    output = model(torch.randn((1024, 64), requires_grad=True, device="cuda"))
                torch.cuda.empty_cache()
                found.append(torch.cuda.memory_allocated())
        del output
    assert found == [5_508_148_224] * 2 + [180_702_208] * 2


def unit(channels, out, kernel=1, *, stride=1, groups=1, is_bent=True):
    layers = [
        nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
    ]
    return [*layers, nn.ReLU6(inplace=True)] if is_bent else layers


class Inverted(nn.Module):
    """An inverted residual: made wider, filtered by depth, made narrow."""

    def __init__(self, channels, out, stride, factor):
        super().__init__()
        wide = channels * factor
        widened = unit(channels, wide) if factor > 1 else []
        depth = unit(wide, wide, 3, stride=stride, groups=wide)
        self.body = nn.Sequential(*widened, *depth, *unit(wide, out, is_bent=False))
        self.is_residual = stride == 1 and channels == out

    def forward(self, x):
        return x + self.body(x) if self.is_residual else self.body(x)


def mobilenet_v2():
    """Sandler et al. 2018, table 2: factor, channels, how often, the first one's stride."""
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    layers, channels = unit(3, 32, 3, stride=2), 32
    for factor, out, count, stride in table:
        for index in range(count):
            layers.append(Inverted(channels, out, stride if index == 0 else 1, factor))
            channels = out
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 1000))
    return nn.Sequential(*layers, *unit(channels, 1280), *head)


def test_mobilenet_v2():
    """https://github.com/facebookresearch/MODel_opt/pull/23: training in fp32 with a batch of 32."""
    with imagining((7, 0)) as imagination:
        model = mobilenet_v2().cuda()
        assert sum(one.numel() for one in model.parameters()) == 3_504_872
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        images, labels = torch.randn(32, 3, 224, 224).cuda(), torch.zeros(32, dtype=torch.long).cuda()
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        allocator = imagination.ledger.allocator
        found = allocator.peak_allocated_bytes, allocator.peak_reserved_bytes
        estimate = imagination.estimate(precision="fp32")
    assert found == (pytest.approx(2_581_472_256, rel=0.006), pytest.approx(2_864_709_632, rel=0.006))
    assert estimate.band_bytes[0] <= 2_864_709_632 <= estimate.band_bytes[1]
