import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampwise.estimate.remedies import remedies_of
from ampwise.estimate.replay import replay
from imagining import imagining, train


class Blocks(nn.Module):
    def __init__(self, num=6, width=256, *, is_checkpointed=False):
        super().__init__()
        self.is_checkpointed = is_checkpointed
        parts = lambda: (nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))  # noqa: E731
        self.blocks = nn.ModuleList(nn.Sequential(*parts()) for _ in range(num))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        return x


def trained(*, batch=4096, fused=False, is_checkpointed=False, precision="fp32", kind=torch.optim.AdamW):
    with imagining() as imagination:
        net = Blocks(is_checkpointed=is_checkpointed).cuda()
        optimizer = kind(net.parameters(), lr=1e-3, **({"fused": True} if fused else {}))
        train(net, optimizer, torch.randn(batch, 256, device="cuda"), loss_of, precision=precision)
        torch.cuda.empty_cache()
        return imagination


def loss_of(net, x):
    return net(x).sum()


def reserved(imagination):
    return imagination.ledger.allocator.peak_reserved_bytes


def changes(imagination):
    found = remedies_of(imagination.ledger, imagination.whereabouts, is_expandable=False)
    assert list(found) == sorted(found, key=lambda one: -one.saved_bytes)
    assert all(one.saved_bytes + one.needed_bytes == reserved(imagination) for one in found)
    return {one.what.split(",")[0].split(" (")[0]: one.needed_bytes for one in found}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_replay_of_the_run_is_the_run(precision):
    imagination = trained(precision=precision)
    again = replay(imagination.ledger)
    ours = imagination.ledger.allocator
    assert (again.peak_allocated_bytes, again.peak_reserved_bytes) == (
        ours.peak_allocated_bytes,
        ours.peak_reserved_bytes,
    )


def test_half_the_batch_and_checkpoints_come_to_what_a_run_with_them_takes():
    found = changes(trained())
    assert found["half the batch"] == pytest.approx(reserved(trained(batch=2048)), rel=0.06)
    name = "activation checkpointing of the 6 blocks blocks.0 to 5"
    real = reserved(trained(is_checkpointed=True))
    assert real <= found[name] <= 1.25 * real < reserved(trained())


def test_a_fused_optimizer_comes_to_what_a_run_with_it_takes():
    few = trained(batch=8)
    found = changes(few)
    assert found["the optimizer with fused=True"] == reserved(trained(batch=8, fused=True))
    assert found["an optimizer whose state has 8 bits"] < reserved(few)
    assert "half the batch" not in found


def test_what_saves_nothing_is_not_advised():
    found = changes(trained(batch=8, kind=torch.optim.SGD))
    assert not any(name.startswith(("an optimizer", "activation")) for name in found)


def convolved(**layout):
    with imagining() as imagination:
        net = nn.Conv2d(64, 64, 3, padding=1, bias=False).to("cuda", **layout)
        x = torch.randn(16, 64, 64, 64).to("cuda", **layout)
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), x, loss_of)
    return imagination


def test_convolutions_widen_the_band_and_change_nothing_else():
    imagination = convolved()
    first = imagination.estimate(precision="fp32")
    least, most = first.band_bytes
    assert least <= first.allocated_bytes <= first.reserved_bytes <= most
    tensor, weight = 16 * 64 * 64 * 64 * 4, 64 * 64 * 9 * 4
    assert {size for _, size in imagination.ledger.convolutions} == {(2 * tensor + weight) * 36 // 16 + weight * 7 // 4}
    # the cache serves a part of it: the band is by what the allocator takes from the driver
    assert 2 * tensor < first.convolution_bytes == most - first.reserved_bytes < 5 * tensor
    assert any("convolution's workspace" in text for text in first.assumptions)


def test_tensors_that_lie_channels_last_already_are_not_copied():
    other = convolved(memory_format=torch.channels_last)
    # but for the gradient of a sum, which lies as it likes
    assert {size for _, size in other.ledger.convolutions} == {16 * 64 * 64 * 64 * 4}
    assert other.estimate(precision="fp32").reserved_bytes == convolved().estimate(precision="fp32").reserved_bytes


def test_a_step_without_convolutions_has_the_tensors_for_its_least():
    imagination = trained(batch=8, kind=torch.optim.SGD)
    estimate = imagination.estimate(precision="fp32")
    assert estimate.convolution_bytes == 0
    assert estimate.band_bytes == (estimate.least_bytes, estimate.reserved_bytes)
    assert 0.97 * estimate.allocated_bytes <= estimate.least_bytes <= estimate.allocated_bytes
