import pytest
import torch
from torch import nn

from ampwise.compat.profiler import ProfiledEvent
from ampwise.instruments.kernel_analysis import analyse
from ampwise.instruments.kernel_names import kernel_kind, operator_kind, uses_tensor_cores
from ampwise.instruments.kernels import KernelWatch
from ampwise.instruments.products import sizes_of
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher
from ampwise.records.kernels import KernelKind


def train(make=None, *, low=True, num_steps=4, model=None, shape=(6, 30), watch=None):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(30, 50), nn.ReLU(), nn.Linear(50, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bus = EventBus()
    with LoopWatcher(bus, has_optimizer=True), (watch or KernelWatch(bus, step=2)) if make is None else make(bus) as w:
        for _ in range(num_steps):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
                loss = model(torch.randn(shape)).float().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return w


@pytest.fixture(scope="module")
def low():
    return train().record()


def test_a_step_on_a_cpu_is_profiled(low):
    assert low.note is None
    assert low.step == 2
    assert low.device == "cpu"
    assert low.instructions == torch.backends.cpu.get_cpu_capability()
    assert low.num_operators > 20
    assert 0 < low.operator_ms <= low.wall_ms
    assert low.kernels == ()
    assert low.device_busy_ms is None
    assert 0 <= low.idle_share < 1
    assert low.kernel_bytes > 0


def test_products_have_their_sizes_dtypes_and_padding(low):
    products = {(one.op, one.m, one.n, one.k): one for one in low.products}
    forward = products["aten.addmm", 6, 50, 30]
    assert (forward.dtype, forward.count, forward.batch) == ("bf16", 1, 1)
    assert forward.padded == (8, 56, 32)
    assert products["aten.mm", 6, 50, 10].dtype == "bf16"  # the gradient of the hidden layer
    assert sum(one.count for one in low.products) == 2 + 3


def test_without_autocast_products_are_fp32_and_nothing_is_cast():
    record = train(low=False).record()
    assert {one.dtype for one in record.products} == {"fp32"}
    assert record.cast_ms == 0.0
    assert record.cast_share == 0.0


def test_casts_have_their_share(low):
    assert 0 < low.cast_share < 1
    casts = [one for one in low.operators if one.kind is KernelKind.CAST]
    assert {one.op for one in casts} == {"aten.copy_"}
    assert {one.dtype for one in casts} == {"bf16+fp32"}


def test_sizes_that_are_multiples_of_8_are_not_padded():
    record = train(model=nn.Linear(16, 8), shape=(8, 16)).record()
    assert {one.padded for one in record.products} == {None}


@pytest.mark.parametrize(
    ("convolution", "shape", "expected"),
    [
        (nn.Conv2d(3, 6, 3), (2, 3, 9, 9), (2 * 7 * 7, 6, 3 * 9, (98, 8, 8 * 9))),
        (nn.Conv2d(8, 16, 3, padding=1), (2, 8, 9, 9), (2 * 81, 16, 8 * 9, None)),
        (nn.Conv1d(4, 8, 5, stride=2, groups=2), (3, 4, 17), (3 * 7, 4, 2 * 5, (21, 8, 8 * 5))),
        (nn.Conv3d(1, 2, 2), (1, 1, 4, 4, 4), (27, 2, 8, (27, 8, 64))),
    ],
)
def test_a_convolution_is_a_product_over_its_patches(convolution, shape, expected):
    record = train(model=convolution, shape=shape, low=False).record()
    (product,) = record.products
    assert (product.m, product.n, product.k, product.padded) == expected
    assert product.groups == convolution.groups
    assert product.num_spatial_dims == len(shape) - 2
    output = convolution(torch.zeros(shape))
    flops = 2 * output.numel() * convolution.weight[0].numel()
    assert product.num_flops == flops


def event(name, start, duration, *, number=0, shapes=(), dtypes=(), **more):
    return ProfiledEvent(
        name=name, start_ns=start, duration_ns=duration, number=number, shapes=shapes, dtypes=dtypes, **more
    )


def kernel(name, start, duration, launched_by):
    return event(name, start, duration, is_device=True, launched_by=launched_by)


BF16, F32 = "c10::BFloat16", "float"
GPU = (
    event("aten::linear", 0, 1_000, number=1, shapes=((64, 128), (256, 128)), dtypes=(F32, F32)),
    event("aten::copy_", 100, 100, number=2, shapes=((256, 128), (256, 128)), dtypes=(BF16, F32)),
    event("cudaLaunchKernel", 120, 50),
    event("aten::addmm", 300, 400, number=3, shapes=((256,), (64, 128), (128, 256)), dtypes=(BF16, BF16, BF16)),
    event("cudaLaunchKernel", 350, 200),
    event("aten::mm", 1_100, 100, number=4, shapes=((64, 128), (128, 256)), dtypes=(F32, F32)),
    event("aten::add_", 1_300, 100, number=5, shapes=((64, 256), (64, 256)), dtypes=(F32, F32)),
    event("Optimizer.step#SGD.step", 1_250, 300),
    event("autograd::engine::evaluate_function: AddmmBackward0", 1_050, 200),
    kernel("void at::native::bfloat16_copy_kernel_cuda", 2_000, 1_000, 2),
    kernel("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn", 3_500, 3_000, 3),
    kernel("ampere_sgemm_128x64_nn", 7_000, 1_000, 4),
    kernel("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", 7_500, 1_000, 5),
)


@pytest.fixture
def gpu():
    return analyse(GPU, step=3, wall_ms=0.010)


def test_on_a_gpu_the_kernels_are_the_time(gpu):
    assert gpu.device == "cuda"
    assert gpu.num_kernels == 4
    assert gpu.num_operators == 5  # neither autograd's frames nor the driver's functions
    assert gpu.device_busy_ms == pytest.approx(0.0055)  # two overlap by 500 ns
    assert gpu.idle_share == pytest.approx(0.45)
    assert gpu.cast_ms == pytest.approx(0.001)
    assert gpu.product_ms == pytest.approx(0.004)
    assert gpu.tensor_core_share == pytest.approx(0.75)


def test_kernels_are_told_by_name_and_by_who_launched_them(gpu):
    kinds = {one.name[:12]: (one.kind, one.tensor_cores) for one in gpu.kernels}
    assert kinds["void at::nat"] in {(KernelKind.CAST, None), (KernelKind.ELEMENTWISE, None)}
    assert kinds["ampere_bf16_"] == (KernelKind.MATMUL, True)
    assert kinds["ampere_sgemm"] == (KernelKind.MATMUL, False)


def test_an_operators_own_time_leaves_out_what_it_called(gpu):
    own = {one.op: one for one in gpu.operators}
    assert own["aten.linear"].host_ms == pytest.approx((1_000 - 100 - 400) / 1e6)
    assert own["aten.addmm"].host_ms == pytest.approx(400 / 1e6)
    assert own["aten.addmm"].device_ms == pytest.approx(0.003)
    assert own["aten.copy_"].kind is KernelKind.CAST


def test_products_on_a_gpu_have_their_kernels_time(gpu):
    products = {one.op: one for one in gpu.products}
    assert products["aten.addmm"].ms == pytest.approx(0.003)
    assert products["aten.addmm"].padded is None
    assert products["aten.mm"].dtype == "fp32"


@pytest.mark.parametrize(
    ("name", "kind", "cores"),
    [
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32", KernelKind.MATMUL, True),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT", KernelKind.MATMUL, True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_tn_align4>", KernelKind.MATMUL, True),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>", KernelKind.MATMUL, False),
        ("volta_sgemm_128x64_tn", KernelKind.MATMUL, False),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", KernelKind.MATMUL, True),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc", KernelKind.CONV, True),
        ("void implicit_convolve_sgemm<float, float, 128, 5, 5, 3>", KernelKind.CONV, False),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>", KernelKind.ATTENTION, True),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", KernelKind.COMMUNICATION, None),
        ("void at::native::multi_tensor_apply_kernel<AdamFunctor>", KernelKind.OPTIMIZER, None),
        ("void at::native::vectorized_layer_norm_kernel<float>", KernelKind.NORM, None),
        ("void at::native::reduce_kernel<512, 1, ReduceOp>", KernelKind.REDUCTION, None),
        ("Memcpy DtoH (Device -> Pageable)", KernelKind.COPY, None),
        ("my_own_thing", KernelKind.OTHER, None),
    ],
)
def test_names_of_kernels(name, kind, cores):
    assert kernel_kind(name) is kind
    assert uses_tensor_cores(name) is cores


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", KernelKind.MATMUL),
        ("aten::addcmul_", KernelKind.ELEMENTWISE),
        ("aten::convolution_backward", KernelKind.CONV),
        ("aten::_scaled_dot_product_flash_attention", KernelKind.ATTENTION),
        ("aten::native_layer_norm", KernelKind.NORM),
        ("aten::_log_softmax", KernelKind.NORM),
        ("aten::mul_", KernelKind.ELEMENTWISE),
        ("aten::_foreach_add_", KernelKind.OPTIMIZER),
        ("c10d::allreduce_", KernelKind.COMMUNICATION),
        ("aten::bernoulli_", KernelKind.OTHER),
    ],
)
def test_names_of_operators(name, kind):
    assert operator_kind(name) is kind


def test_shapes_that_do_not_tell_are_no_product():
    assert sizes_of(event("aten::mm", 0, 1, shapes=((3,), (3,)))) is None
    assert sizes_of(event("aten::mm", 0, 1)) is None
    assert sizes_of(event("aten::convolution", 0, 1, shapes=((1, 1, 3), (1, 1, 3)))) is None


def test_a_run_too_short_or_a_profiler_of_the_scripts_own_says_so(monkeypatch):
    assert train(num_steps=2).record().note == "not profiled: the run ended before step 3 did"
    monkeypatch.setattr("ampwise.instruments.kernels.is_profiling", lambda: True)
    assert train().record().note == "not profiled: the script's own profiler is running"


def test_a_script_that_raises_is_left_without_the_profiler():
    bus = EventBus()
    with pytest.raises(KeyError), LoopWatcher(bus), KernelWatch(bus, step=0):
        raise KeyError
    assert not torch.autograd._profiler_enabled()
