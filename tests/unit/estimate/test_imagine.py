import copy
import io
import threading
from inspect import getattr_static

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from ampwise import CannotRunError
from ampwise.estimate import canary
from ampwise.estimate.canary import check_mechanism
from ampwise.estimate.whereabouts import Whereabouts
from ampwise.records.memory import MemoryCategory as Kind
from imagining import imagining, recipe_model, train

PLACES = (
    torch,
    torch.cuda,
    torch.cuda.nvtx,
    torch.accelerator,
    torch.Tensor,
    torch.compiler,
    torch.nn.Module,
    nn.RNNBase,
)


def everything():
    return {(place, name): getattr_static(place, name) for place in PLACES for name in vars(place)}


def test_torch_is_as_it_was():
    with imagining():  # torch imports some of its modules late
        pass
    before = everything()
    with imagining():
        assert torch.cuda.is_available()
        assert everything() != before
    after = everything()
    assert after.keys() == before.keys()
    assert [key for key, value in after.items() if value is not before[key]] == []
    assert torch.Tensor.to(torch.ones(1), "cpu").device.type == "cpu"


def test_an_error_inside_leaves_nothing_behind():
    before = everything()
    with pytest.raises(ZeroDivisionError), imagining():
        1 / 0  # noqa: B018
    assert [key for key, value in everything().items() if value is not before.get(key)] == []


def test_the_canary_lives():
    check_mechanism()


def test_the_canary_refuses_where_bytes_are_not_what_they_should_be(monkeypatch):
    monkeypatch.setattr(canary, "_WEIGHT_BYTES", 4)
    with pytest.raises(CannotRunError, match="--params"):
        check_mechanism()


def test_the_canary_refuses_where_torch_lacks_what_it_takes(monkeypatch):
    monkeypatch.setattr("ampwise.compat.imaginary.imagine", lambda *_, **__: 1 / 0)
    monkeypatch.setattr("ampwise.estimate.device.imagine", lambda *_, **__: 1 / 0)
    with pytest.raises(CannotRunError, match="ZeroDivisionError"):
        check_mechanism()


# what scripts do, each in a function that raises if it cannot


def lstm():
    for is_on in (False, True):
        layer = nn.LSTM(16, 32, 2, batch_first=True, dropout=0.1).cuda()
        with torch.autocast("cuda", dtype=torch.float16, enabled=is_on):
            out, (hidden, cell) = layer(torch.randn(4, 10, 16, device="cuda"))
        assert out.dtype is (torch.float16 if is_on else torch.float32)
        assert (out.shape, hidden.shape, cell.shape) == ((4, 10, 32), (2, 4, 32), (2, 4, 32))
        out.float().sum().backward()
        assert layer.weight_hh_l1.grad.shape == layer.weight_hh_l1.shape


def gru_both_ways():
    out, _ = nn.GRU(16, 32, bidirectional=True).cuda()(torch.randn(10, 4, 16, device="cuda"))
    assert out.shape == (10, 4, 64)
    out.sum().backward()


def packed_sequences():
    layer = nn.LSTM(16, 32, batch_first=True).cuda()
    lengths = torch.tensor([10, 8, 5, 2])
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 10, 16).cuda(), lengths, batch_first=True)
    assert packed.data.shape == (25, 16)
    assert packed.batch_sizes.tolist() == [4, 4, 3, 3, 3, 2, 2, 2, 1, 1]
    out, found = nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)
    assert out.shape == (4, 10, 32)
    assert found.tolist() == lengths.tolist()
    out.sum().backward()


def masks():
    labels = torch.tensor([1, 0, 1, 0, 1, 1, 0, 0]).cuda()
    x = torch.randn(8, 4, device="cuda", requires_grad=True)
    assert x[labels > 0].shape == (4, 4)
    assert torch.where(labels > 0)[0].tolist() == [0, 2, 4, 5]
    assert (labels > 0).sum().item() == 4
    assert x[x > 0].shape == (32,)  # nobody knows; all is the most there can be
    assert x.masked_select(x > 0).shape == (32,)
    assert torch.unique(labels).tolist() == [0, 1]
    assert torch.bincount(labels).shape == (2,)
    assert nn.functional.one_hot(labels).shape == (8, 2)
    assert labels.repeat_interleave(labels).shape == (4,)
    assert torch.equal(labels, labels.clone())
    x[labels.bool()].sum().backward()


def answers_to_the_host():
    x = torch.randn(3, device="cuda")
    assert (x.sum().item(), float(x[0]), x.tolist()) == (0.0, 0.0, [0.0] * 3)
    assert x.cpu().numpy().tolist() == [0.0] * 3
    assert (bool(x[0] > 0), int(x[0]), f"{x[0]:.1f}", len(x)) == (False, 0, "0.0", 3)
    assert bool(torch.isfinite(x).all())
    assert not bool(torch.isnan(x).any())
    assert "cuda:0" in repr(x)
    assert (x.is_cuda, x.is_cpu, x.is_meta, x.get_device(), x.type()) == (
        True,
        False,
        False,
        0,
        "torch.cuda.FloatTensor",
    )
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        x.numpy()
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.randn(3)
    assert (x + torch.tensor(1.0)).is_cuda


def loss_scaling():
    net = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = net(torch.randn(4, 8).cuda()).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    assert net.weight.grad.dtype is torch.float32


def channels_last():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).to("cuda", memory_format=torch.channels_last)
    out = net(torch.randn(2, 3, 8, 8).to("cuda", memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)
    out.sum().backward()


def both_checkpoints():
    net, x = nn.Linear(8, 8).cuda(), torch.randn(4, 8, device="cuda", requires_grad=True)
    for use_reentrant in (True, False):
        checkpoint(net, x, use_reentrant=use_reentrant).sum().backward()


def loader_with_pinned_memory():
    data = TensorDataset(torch.randn(16, 8), torch.arange(16))
    for x, y in DataLoader(data, batch_size=8, pin_memory=True):
        assert x.to("cuda", non_blocking=True).is_cuda
        assert y.cuda().sum().item() in {28, 92}


def threads():
    found = []
    thread = threading.Thread(target=lambda: found.append((torch.randn(3, device="cuda") * 2).device))
    thread.start()
    thread.join()
    assert found == [torch.device("cuda", 0)]


def copies_of_a_model():
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, batch_first=True), 2).cuda()
    average = copy.deepcopy(net)
    assert all(one.is_cuda for one in average.parameters())
    net(torch.randn(2, 5, 64, device="cuda")).sum().backward()
    with torch.no_grad():
        for ours, theirs in zip(average.parameters(), net.parameters(), strict=True):
            ours.mul_(0.9).add_(theirs, alpha=0.1)


def loading(saved):
    for where in ("cuda", torch.device("cuda:0"), lambda storage, _: storage.cuda()):
        saved.seek(0)
        loaded = torch.load(saved, map_location=where)
        assert loaded["n"] == 3
        assert loaded["a"][0].is_cuda or callable(where)
    saved.seek(0)
    assert torch.load(saved)["a"][0].tolist() == [[1.0] * 4] * 3


def who_shares_memory():
    x = torch.zeros(8, device="cuda")
    assert x.data_ptr() == x.view(2, 4).data_ptr() == x.untyped_storage().data_ptr() != 0
    assert x[2:].data_ptr() == x.data_ptr() + 8
    assert x.clone().data_ptr() != x.data_ptr()
    large = nn.Linear(512, 512)
    assert large.weight.data_ptr() != nn.Linear(512, 512).weight.data_ptr()
    assert torch.ones(3).data_ptr() < 2**64  # the host's own
    assert torch.cuda.random.get_rng_state().shape == torch.cuda.get_rng_state().shape
    assert torch.cuda.memory.memory_allocated() == torch.cuda.memory_allocated() > 0


def default_devices():
    torch.set_default_device("cuda")
    try:
        net = nn.Linear(3, 3)
        assert net.weight.is_cuda
        net(torch.randn(2, 3)).sum().backward()
    finally:
        torch.set_default_device(None)
    with torch.device("cuda"):
        assert torch.tensor([1.0]).is_cuda
        assert torch.arange(3).is_cuda
    with torch.device("meta"):
        net = nn.Linear(30, 30)
    assert net.weight.is_meta
    assert net.weight.device.type == "meta"
    assert net.to_empty(device="cuda").weight.is_cuda


def streams_and_questions():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.randn(3, device="cuda", generator=torch.Generator(device="cuda").manual_seed(3))
    torch.cuda.current_stream().wait_stream(stream)
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    torch.cuda.synchronize()
    x.record_stream(stream)
    assert torch.cuda.memory_allocated() == 512
    assert torch.cuda.get_device_name() == "A100"
    assert torch.cuda.mem_get_info()[1] == 80 * 2**30
    assert torch.cuda.is_bf16_supported()


def compiling():
    net = torch.compile(nn.Linear(8, 8).cuda())
    net(torch.randn(2, 8, device="cuda")).sum().backward()

    @torch.compile(mode="max-autotune")
    def double(x):
        return x * 2

    assert double(torch.ones(2, device="cuda")).is_cuda


def losses_without_a_kernel_of_torchs():
    x, y = torch.randn(8, 10, device="cuda", requires_grad=True), torch.randint(0, 10, (8,), device="cuda")
    nn.functional.multi_margin_loss(x, y).backward()
    nn.functional.logsigmoid(x).sum().backward()
    nn.functional.multilabel_soft_margin_loss(x, torch.randn(8, 10, device="cuda")).backward()
    nn.EmbeddingBag(100, 16).cuda()(torch.zeros(2, 8, dtype=torch.long, device="cuda")).sum().backward()


def ctc_with_lengths_anywhere():
    for lengths in (torch.tensor([50] * 4), torch.tensor([50] * 4).cuda(), (50,) * 4):
        long = torch.tensor([10, 9, 8, 7])
        for long_targets in (long, long.cuda()) if torch.is_tensor(lengths) else ((10, 9, 8, 7),):
            for reduction in ("mean", "sum", "none"):
                x = torch.randn(50, 4, 20, device="cuda", requires_grad=True)
                targets = torch.ones(4, 10, dtype=torch.long, device="cuda")
                loss = nn.functional.ctc_loss(x.log_softmax(2), targets, lengths, long_targets, reduction=reduction)
                assert loss.shape == ((4,) if reduction == "none" else ())
                loss.sum().backward()
                assert x.grad.shape == x.shape


def attention():
    q = torch.randn(2, 4, 7, 16, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        nn.functional.scaled_dot_product_attention(
            q, q, q, attn_mask=torch.ones(7, 7, dtype=torch.bool).cuda()
        ).sum().backward()
    nn.MultiheadAttention(64, 4).cuda()(*[torch.randn(7, 2, 64, device="cuda")] * 3)[0].sum().backward()


def own_function():
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda")
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(_, gradient):
            return gradient * 2

    x = torch.randn(3, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.float16):
        Double.apply(x).sum().backward()
    gradient = torch.func.grad(lambda w: (x.detach() * w).sum())(torch.ones(3, device="cuda"))
    assert gradient.shape == (3,)


CALLS = (
    lstm, gru_both_ways, packed_sequences, masks, answers_to_the_host, loss_scaling, channels_last, both_checkpoints,
    loader_with_pinned_memory, threads, copies_of_a_model, who_shares_memory, default_devices, streams_and_questions,
    compiling, losses_without_a_kernel_of_torchs, attention, own_function, ctc_with_lengths_anywhere,
)  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_scripts_run_unmodified(call):
    with imagining():
        call()


def test_a_checkpoint_is_loaded_and_none_is_written(tmp_path):
    saved = io.BytesIO()
    torch.save({"a": [torch.ones(3, 4)], "n": 3}, saved)
    with imagining():
        loading(saved)
        torch.save({}, tmp_path / "best.pt")
    assert not (tmp_path / "best.pt").exists()


def test_a_tensor_of_a_layout_that_is_not_counted_ends_the_estimate():
    with imagining():
        words = nn.Embedding(100, 16, sparse=True).cuda()
        with pytest.raises(NotImplementedError, match="sparse_coo"):
            words(torch.zeros(8, dtype=torch.long, device="cuda")).sum().backward()


def test_an_operator_that_torch_knows_no_size_of_is_named():
    with imagining(), pytest.raises(NotImplementedError, match=r"aten\._ctc_loss\.|aten\..*ends here"):
        torch.histogram(torch.randn(5, device="cuda"), 3)


# models built on the host


def test_a_large_model_on_the_host_takes_no_memory():
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with imagining() as imagination:
        net = nn.Sequential(*[nn.Linear(8192, 8192) for _ in range(16)])  # 4 GiB
        assert net[0].weight.device.type == "cpu"
        assert not imagination.ledger.storages
        net.load_state_dict(copy.deepcopy(net).state_dict())
        net.cuda()
        assert net[0].weight.is_cuda
        held = imagination.ledger.allocator.allocated_bytes
        assert held >= 16 * 8192 * 8192 * 4
        net.cpu()
        assert imagination.ledger.allocator.allocated_bytes == 0
        assert net[0].weight.device.type == "cpu"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


def test_what_may_be_asked_of_a_weight_without_data():
    with imagining():
        net = nn.Linear(512, 512)
        weight = net.weight
        nn.init.trunc_normal_(weight)
        nn.init.orthogonal_(weight)
        assert (weight.is_cpu, weight.is_meta, weight.is_cuda) == (True, False, False)
        assert "device='cpu'" in repr(weight)
        assert weight.sum().item() == 0
        assert weight.detach().numpy().shape == (512, 512)
        assert weight[0].tolist() == [0.0] * 512
        assert weight.to("cpu") is weight
        assert weight.half().dtype is torch.float16
        assert net(torch.randn(3, 512)).shape == (3, 512)
        small = torch.zeros(512)
        small.copy_(weight[0].detach())
        assert small.sum() == 0


def test_data_of_the_host_stays_real():
    with imagining():
        x = torch.arange(4.0)
        assert (x * 2).tolist() == [0.0, 2.0, 4.0, 6.0]
        assert torch.randn(1000, 100).std() > 0.5
    assert x.sum() == 6


# what is counted


def test_a_weight_is_cast_once_while_autocast_lasts():
    with imagining() as imagination:
        net, x = nn.Linear(1024, 1024, bias=False).cuda(), torch.randn(1, 1024, device="cuda")
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                net(net(x))
        casts = [one for one in imagination.ledger.storages if one.is_cast and one.num_bytes == 1024 * 1024 * 2]
        assert len(casts) == 2  # one a region
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            net(net(x))
        casts = [one for one in imagination.ledger.storages if one.is_cast and one.num_bytes == 1024 * 1024 * 2]
        assert len(casts) == 4


def test_gradients_are_summed_in_place_as_the_engine_does_on_a_gpu():
    size = 2**20
    with imagining() as imagination:
        x = torch.randn(size, device="cuda", requires_grad=True)
        out = (x * 2).sum() + (x * 3).sum() + (x * 4).sum() + (x * 5).sum()
        start = len(imagination.ledger.storages)
        out.backward()
        born = [one for one in imagination.ledger.storages[start:] if one.num_bytes == size * 4]
    # of each branch the product's gradient; sums of them take no storage of their own
    assert len(born) == 4


def distance(net, batch):
    return nn.functional.mse_loss(net(batch[0]), batch[1])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_categories_add_up_at_the_peak_and_at_every_moment(precision):
    with imagining(has_workspaces=True) as imagination:
        net = recipe_model(256)
        optimizer = torch.optim.AdamW(net.parameters())
        batch = torch.randn(64, 256, device="cuda"), torch.randn(64, 256, device="cuda")
        train(
            net,
            optimizer,
            batch,
            lambda net, batch: nn.functional.mse_loss(net(batch[0]), batch[1]),
            precision=precision,
        )
        estimate = imagination.estimate(precision=precision)
    assert sum(part.bytes for part in estimate.categories) == estimate.allocated_bytes
    assert all(sum(part.bytes for part in point.categories) == point.total_bytes for point in estimate.timeline)
    sizes = {part.category: part.bytes for part in estimate.categories}
    blocks = 3 * (256 * 256 * 4 + 1024)
    assert sizes[Kind.PARAMETER] == blocks
    assert sizes[Kind.OPTIMIZER_STATE] >= 2 * blocks
    assert sizes[Kind.WORKSPACE] == 2 * 8_519_680
    assert max(point.total_bytes for point in estimate.timeline) <= estimate.allocated_bytes
    assert sum(owner.bytes for owner in estimate.owners) <= estimate.allocated_bytes


def test_what_a_model_is_and_where_its_peak_lies():
    with imagining() as imagination:
        net = recipe_model(512)
        batch = torch.randn(4096, 512, device="cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        train(net, optimizer, batch, lambda net, batch: net(batch).square().mean())
        estimate = imagination.estimate(precision="fp32")
        assert isinstance(imagination.whereabouts, Whereabouts)
        assert imagination.whereabouts.num_parameters == 3 * (512 * 512 + 512)
    assert estimate.peak_phase == "backward"
    assert estimate.peak_line.endswith("imagining.py:" + estimate.peak_line.rpartition(":")[2])
    assert {"0", "2", "4"} <= {owner.site.module for owner in estimate.owners if owner.category is Kind.PARAMETER}


def test_a_gpu_without_hardware_for_bf16_computes_in_it_all_the_same():
    with imagining((7, 5)):
        assert torch.cuda.is_bf16_supported()
        assert not torch.cuda.is_bf16_supported(including_emulation=False)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert nn.Linear(4, 4).cuda()(torch.ones(2, 4, device="cuda")).dtype is torch.bfloat16


def test_modules_without_a_shape_yet_are_moved_and_get_it_there():
    with imagining() as imagination:
        model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2)).cuda()
        x = torch.randn(4, 16).cuda()
        model(x)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), x, lambda net, batch: net(batch).square().mean())
        assert {one.device.type for one in model.parameters()} == {"cuda"}
        assert imagination.whereabouts.num_parameters == 16 * 8 + 8 + 8 * 2 + 2
