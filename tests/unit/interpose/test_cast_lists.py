import os
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.checkpoint import checkpoint

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.compat.dispatch import registered
from ampwise.interpose.cast_lists import use_cuda_lists
from ampwise.plan.operators import CastPolicy, cast_lists

x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def lists():
    undo = use_cuda_lists("cpu")
    yield
    undo()


def autocast(**options):
    return torch.autocast("cpu", torch.bfloat16, **options)


def is_softmax_in_fp32():
    with autocast():
        return torch.softmax(x.bfloat16(), -1).dtype is torch.float32


def test_undo_leaves_nothing():
    before, tag = registered("cpu"), torch.compiler.config.cache_key_tag
    for _ in range(2):
        undo = use_cuda_lists("cpu")
        assert is_softmax_in_fp32()
        assert registered("cpu") - before == set(cast_lists().added("cpu"))
        undo()
        undo()
        assert not is_softmax_in_fp32()
        assert (registered("cpu"), torch.compiler.config.cache_key_tag) == (before, tag)


def test_without_the_remedies():
    before = registered("cpu")
    undo = use_cuda_lists("cpu", extra=False)
    added = registered("cpu") - before
    undo()
    lists = cast_lists()
    assert added == set(lists.added("cpu")) - set(lists.remedies)
    assert {"softmax.int", "layer_norm", "scatter_add"} <= added


def test_on_cuda_only_the_remedies_are_added(recwarn):
    before = registered("cuda")
    undo = use_cuda_lists("cuda")
    added = registered("cuda") - before
    undo()
    assert added == set(cast_lists().added("cuda")) - {"binary_cross_entropy"}
    assert registered("cuda") == before
    assert not recwarn.list


def test_twice_on_one_device_is_refused(lists):
    before, tag = registered("cpu"), torch.compiler.config.cache_key_tag
    with pytest.raises(CannotRunError, match="in use for cpu already; undo them"):
        use_cuda_lists("cpu")
    assert (registered("cpu"), torch.compiler.config.cache_key_tag) == (before, tag)


def test_two_devices_side_by_side(lists):
    undo = use_cuda_lists("cuda")
    cpu_tag, cuda_tag = torch.compiler.config.cache_key_tag.split("+")
    undo()
    assert torch.compiler.config.cache_key_tag == cpu_tag
    assert "cuda" in cuda_tag
    assert is_softmax_in_fp32()


def test_the_users_own_cache_tag_survives():
    with torch.compiler.config.patch(cache_key_tag="mine"):
        undo = use_cuda_lists("cpu")
        assert torch.compiler.config.cache_key_tag.startswith("mine+ampwise-lists-cpu-")
        undo()
        assert torch.compiler.config.cache_key_tag == "mine"


def test_all_threads_have_the_tag_and_any_may_take_it_back():
    tags, undos = [], []

    def elsewhere(action):
        thread = threading.Thread(target=action)
        thread.start()
        thread.join()

    def note():
        tags.append(torch.compiler.config.cache_key_tag)

    elsewhere(lambda: undos.append(use_cuda_lists("cpu")))
    elsewhere(note)
    with pytest.raises(CannotRunError, match="in use for cpu already"):
        use_cuda_lists("cpu")
    elsewhere(undos.pop())
    elsewhere(note)
    assert tags[0].startswith("ampwise-lists-cpu-")
    assert tags[1:] == [""]


def test_a_thread_that_had_a_tag_of_its_own_for_a_while_follows_the_others_again():
    with torch.compiler.config.patch(cache_key_tag="mine"):
        pass
    thread = threading.Thread(target=use_cuda_lists("cpu"))
    assert torch.compiler.config.cache_key_tag.startswith("ampwise-lists-cpu-")
    thread.start()
    thread.join()
    assert torch.compiler.config.cache_key_tag == ""


def test_a_kernel_that_somebody_else_registered_is_left_to_them():
    library = torch.library.Library("aten", "IMPL")
    library.impl("exp", lambda tensor: tensor.new_full((1,), 7.0), "AutocastCPU")
    try:
        undo = use_cuda_lists("cpu")
        with autocast():
            assert x.exp().item() == 7
        undo()
        assert "exp" in registered("cpu")
    finally:
        library._destroy()


def test_a_device_without_autocast():
    with pytest.raises(UsageError, match=r'"toaster" has no autocast in torch .*; name a device such as cpu'):
        use_cuda_lists("toaster")


def test_nothing_happens_where_autocast_is_off(lists):
    low = x.bfloat16()
    assert low.softmax(-1).dtype is torch.bfloat16
    with autocast():
        assert low.softmax(-1).dtype is torch.float32
        with autocast(enabled=False):
            assert low.softmax(-1).dtype is torch.bfloat16
            assert low.mean().dtype is torch.bfloat16
        assert low.softmax(-1).dtype is torch.float32
    buffer = torch.zeros(4, 8)
    with pytest.raises(RuntimeError):
        buffer[torch.tensor([0])] = low[:1]


def test_what_runs_inside_a_composite_operator_is_not_cast_again(lists):
    with autocast():
        assert torch.cdist(x.bfloat16(), x.bfloat16()).dtype is torch.float32
        attention = F.scaled_dot_product_attention(*[x[None, None]] * 3)
    assert attention.dtype is torch.bfloat16


def test_threads_follow_their_own_autocast(lists):
    found = {}

    def work():
        found["off"] = x.bfloat16().softmax(-1).dtype
        with autocast():
            found["on"] = x.bfloat16().softmax(-1).dtype

    with autocast():
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {"off": torch.bfloat16, "on": torch.float32}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        hidden = self.inner(x)
        buffer = torch.zeros(4, 8).index_add(0, torch.arange(4), hidden.softmax(-1))
        return self.norm(buffer).sigmoid() * hidden


def loss_and_gradients(model, call):
    model.zero_grad()
    with autocast(cache_enabled=False):
        loss = call(x).mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Block()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_computes_the_same(lists, model, use_reentrant):
    expected = loss_and_gradients(model, model)
    got = loss_and_gradients(
        model, lambda x: checkpoint(model, x.requires_grad_(use_reentrant), use_reentrant=use_reentrant)
    )
    x.requires_grad_(False)
    assert all(map(torch.equal, got, expected))
    assert all(tensor.dtype is torch.float32 for tensor in got)


def test_second_derivatives(lists):
    point = x.clone().requires_grad_()
    with autocast():
        out = (point.bfloat16().softmax(-1) * point).sum()
    (first,) = torch.autograd.grad(out, point, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), point)
    assert second.dtype is torch.float32
    assert second.isfinite().all()


def test_vmap_and_functional_gradients(lists):
    def per_row(row):
        return row.softmax(-1)[0].mean()

    with autocast():
        assert torch.func.vmap(per_row)(x.bfloat16()).dtype is torch.float32
        assert torch.func.vmap(torch.func.grad(lambda row: per_row(row).float()))(x.bfloat16()).dtype is torch.bfloat16


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript_meets_the_lists(lists):
    @torch.jit.script
    def scripted(x):
        return torch.softmax(x, -1)

    with autocast():
        assert scripted(x.bfloat16()).dtype is torch.float32


def test_forward_mode_and_tensor_subclasses(lists):
    class Tagged(torch.Tensor):
        pass

    with autocast():
        got = x.bfloat16().as_subclass(Tagged).softmax(-1)
    assert (type(got), got.dtype) == (Tagged, torch.float32)


@pytest.mark.parametrize(
    "layer", [nn.LSTM(8, 8), nn.GRU(8, 8), nn.MultiheadAttention(8, 2)], ids=["lstm", "gru", "mha"]
)
@pytest.mark.parametrize("training", [True, False])
def test_composite_layers_run_and_learn(lists, layer, training):
    layer.train(training)
    with autocast():
        out = layer(*[x[:, None]] * (3 if isinstance(layer, nn.MultiheadAttention) else 1))[0]
        loss = out.mean()
    assert loss.dtype is torch.float32
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


def test_encoder_layers_fast_path(lists):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.inference_mode(), autocast():
        got = layer(x[None])
    with torch.inference_mode():
        torch.testing.assert_close(got.float(), layer(x[None]), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(lists, reduction):
    low = x.bfloat16()
    with autocast():
        for loss in (
            F.cross_entropy(low, torch.arange(4), reduction=reduction),
            F.binary_cross_entropy(low.sigmoid(), torch.zeros_like(low), reduction=reduction),
            F.mse_loss(low, x, reduction=reduction),
            F.smooth_l1_loss(low, x, reduction=reduction),
        ):
            assert loss.dtype is torch.float32
        certain = F.binary_cross_entropy(torch.full((1,), 8.0, dtype=torch.bfloat16).sigmoid(), torch.zeros(1))
    assert certain.item() == pytest.approx(8.0003, abs=1e-3)


def test_compiled_code_follows_and_forgets(model):
    compiled = torch.compile(lambda x: model.inner(x).softmax(-1), backend="aot_eager", fullgraph=True)

    def dtype():
        with autocast():
            return compiled(x).dtype

    assert dtype() is torch.bfloat16
    undo = use_cuda_lists("cpu")
    try:
        assert dtype() is torch.float32
        eager = loss_and_gradients(model, model)
        got = loss_and_gradients(model, torch.compile(model, backend="aot_eager", fullgraph=True))
        assert all(map(torch.equal, got, eager))
    finally:
        undo()
    assert dtype() is torch.bfloat16
    torch.compiler.reset()


def test_dynamo_does_not_compile_our_kernels(lists):
    from torch._dynamo.testing import CompileCounter

    @torch.compiler.disable(recursive=False)
    def eager(x):
        return torch.softmax(x.bfloat16(), -1), F.layer_norm(x.bfloat16(), (8,), torch.ones(8)), x.bfloat16().norm()

    counter = CompileCounter()
    with autocast():
        outputs = torch.compile(lambda x: eager(x), backend=counter)(x)  # noqa: PLW0108 - the frame is what is compiled
    assert all(tensor.dtype is torch.float32 for tensor in outputs)
    assert counter.frame_count == 0
    torch.compiler.reset()


@pytest.mark.slow
def test_the_disk_cache_of_compiled_code_knows_the_lists(tmp_path):
    code = textwrap.dedent("""
        import sys, torch
        from ampwise.interpose.cast_lists import use_cuda_lists
        if sys.argv[1] == "lists":
            use_cuda_lists("cpu")
        @torch.compile
        def f(x):
            return torch.softmax(x.bfloat16(), -1)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            print(f(torch.ones(2, 4)).dtype)
    """)
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    run = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, how], env=env, check=True, capture_output=True, text=True
        )
        for how in ("stock", "lists")
    ]
    assert [done.stdout.strip() for done in run] == ["torch.bfloat16", "torch.float32"]


def test_every_policy_it_adds_has_a_kernel():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        undo = use_cuda_lists("cpu")
    undo()
    assert {CastPolicy.FP32, CastPolicy.PROMOTE, CastPolicy.TO_SELF} <= set(cast_lists().added("cpu").values())


SPARSE_PRODUCTS = {
    "sparse.mm": torch.sparse.mm,
    "sparse.addmm": lambda matrix, dense: torch.sparse.addmm(dense, matrix, dense),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("product", list(SPARSE_PRODUCTS))
@pytest.mark.usefixtures("lists")
def test_a_sparse_matrix_times_a_dense_one_has_a_gradient(product, layout, dtype):
    matrix = (2 * torch.eye(4)).to_sparse(layout=layout)
    weight = torch.ones(8, 8, requires_grad=True)
    with autocast():
        result = SPARSE_PRODUCTS[product](matrix, torch.nn.functional.linear(x, weight).to(dtype))
    result.sum().backward()
    assert result.dtype is torch.float32
    assert torch.isfinite(weight.grad).all()
