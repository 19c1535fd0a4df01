"""Peaks that others measured on real GPUs and published."""

import torch
from torch import nn

from imagining import imagining, recipe_model


def test_the_amp_recipe_on_a_t4():
    """https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html with torch 1.11.

    cuBLAS took no workspace then, and gradients were set to zero and stayed. The script's names matter: until the AMP
    run's first loss the name ``loss`` still holds the fp32 model's graph.
    """
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
