"""What kernels take for themselves, and what a reduced loss keeps."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 # torch's own habit
from torch.profiler import ProfilerActivity, profile

from imagining import imagining

LOSSES = [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy, F.soft_margin_loss]
ROWS, COLUMNS = 100, 200


def kernels_own(imagination, start):
    return [one.num_bytes for one in imagination.ledger.storages if one.is_kernels_own and one.born >= start]


def on_cpu(loss):
    """The bytes at most while it is computed, and those that its result keeps, as the profiler counts them."""
    prediction, target = torch.rand(ROWS, COLUMNS), torch.rand(ROWS, COLUMNS)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = loss(prediction, target)
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    live = peak = 0
    for event in events:
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak, result.untyped_storage().nbytes()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_takes_and_keeps_what_it_does_on_the_cpu(loss):
    peak, kept = on_cpu(loss)
    with imagining() as imagination:
        prediction, target = (torch.rand(ROWS, COLUMNS, device="cuda") for _ in range(2))
        start = imagination.ledger.time
        result = loss(prediction, target)
        assert result.shape == ()
        assert result.untyped_storage().nbytes() == kept
        taken = kept + sum(kernels_own(imagination, start))
    # the blocks for the sum are a GPU's
    assert taken - 2 * 512 == pytest.approx(peak, abs=16)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_of_every_element_takes_nothing_beside_its_result(loss):
    with imagining() as imagination:
        prediction, target = (torch.rand(ROWS, COLUMNS, device="cuda") for _ in range(2))
        result = loss(prediction, target, reduction="none")
        assert result.untyped_storage().nbytes() == ROWS * COLUMNS * 4
        assert kernels_own(imagination, 0) == []


@pytest.mark.parametrize(
    ("num", "expected"),
    [
        (3072, []),
        # sorted, whence, segments, two counts, partial sums per segment and per row of each
        (8192, [8192 * 8] * 3 + [512] * 2 + [100 * 8] * 2 + [919 * 8, 919 * 64 * 4]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_an_embedding(num, expected, dtype):
    with imagining() as imagination:
        table = torch.randn(100, 64, device="cuda", dtype=dtype, requires_grad=True)
        rows = F.embedding(torch.zeros(num, dtype=torch.long, device="cuda"), table)
        start = imagination.ledger.time
        rows.backward(torch.ones_like(rows))
        assert kernels_own(imagination, start) == expected


def test_the_gradient_of_an_indexed_tensor():
    with imagining() as imagination:
        tensor = torch.randn(10, 20, device="cuda", requires_grad=True)
        rows = tensor[torch.zeros(50, dtype=torch.long, device="cuda")]
        start = imagination.ledger.time
        rows.backward(torch.ones_like(rows))
        assert kernels_own(imagination, start) == [50 * 8] * 4


def attention(dtype, *, heads=8, capability=(8, 0)):
    """What the backward pass of attention over 2 samples, 8 heads, 100 rows of 40 numbers takes."""
    with imagining(capability) as imagination:
        query = torch.randn(2, 8, 100, 40, device="cuda", dtype=dtype, requires_grad=True)
        key = torch.randn(2, heads, 100, 40, device="cuda", dtype=dtype, requires_grad=True)
        out = F.scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=heads != 8)
        start = imagination.ledger.time
        out.backward(torch.ones_like(out))
        (assumed,) = imagination.notes.texts
        return kernels_own(imagination, start), assumed


def test_the_backward_pass_of_flash_attention():
    rows = 2 * 8 * 128 * 4
    taken, assumed = attention(torch.bfloat16)
    assert taken == [rows, rows * 64]
    assert "flash" in assumed


def test_flash_attention_serves_fewer_heads_of_keys():
    rows, of_every_head = 2 * 8 * 128 * 4, 2 * 8 * 100 * 40 * 2
    taken, assumed = attention(torch.bfloat16, heads=2)
    assert taken == [rows, rows * 64, of_every_head, of_every_head]
    assert "flash" in assumed


def test_the_memory_efficient_kernel_does_not():
    assert "plain products" in attention(torch.float16, heads=2, capability=(7, 5))[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_backward_pass_of_memory_efficient_attention(dtype):
    delta, tiles = 2 * 8 * 100 * 4, 2 * 8 * 128 * 64 * 4
    deltas = [delta] if dtype is torch.float16 else [2 * 8 * 100 * 40 * 4, delta, delta]
    assert attention(dtype, capability=(7, 5))[0] == [*deltas, tiles]


def test_the_backward_pass_of_group_norm():
    with imagining() as imagination:
        tensor = torch.randn(4, 6, 5, 5, device="cuda", requires_grad=True)
        made = F.group_norm(tensor, 3)
        start = imagination.ledger.time
        made.sum().backward()
        assert kernels_own(imagination, start) == [4 * 6 * 4] * 3 + [4 * 3 * 4] * 2
