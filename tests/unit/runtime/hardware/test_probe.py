from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ampwise.interpose.internal import is_internal
from ampwise.runtime.hardware.conv_check import find_wrong_conv
from ampwise.runtime.hardware.host import wait_for
from ampwise.runtime.hardware.probe import probe


@pytest.fixture
def fresh():
    probe.cache_clear()
    yield
    probe.cache_clear()


def test_the_cpu_is_measured_in_every_format_it_can_compute_in(fresh):
    found = probe("cpu")
    assert found.measured["fp32"].ratio == 1.0
    assert found.measured["bf16"].ratio > 0
    assert set(found.measured) | set(found.failed) == {"fp32", "bf16", "fp16"}


def test_measured_once_in_a_process(fresh):
    assert probe("cpu") is probe("cpu")


def test_nothing_of_the_scripts_is_touched(fresh):
    torch.set_num_threads(2)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    seen = []

    class Spy(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Spy(), torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        probe("cpu")
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == 2
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(torch.get_num_threads).result() == 2
    assert torch.is_grad_enabled()
    assert torch.nn.functional.linear not in seen


def test_watchers_and_autograd_see_nothing_of_it(fresh, monkeypatch):
    seen = set()

    def time_product(x):
        seen.add((is_internal(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return 1e-6

    monkeypatch.setattr("ampwise.runtime.hardware.probe._time_product", time_product)
    probe("cpu")
    assert seen == {(True, False, False)}


def test_the_device_measured_is_the_one_waited_for(fresh, monkeypatch):
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    wait_for(torch.device("cuda", 1))
    wait_for(torch.device("cpu"))
    assert waited == [torch.device("cuda", 1)]


def test_a_gpu_is_measured_in_tf32_too_with_the_switch_set_for_it_only(fresh, monkeypatch):
    seen = {}

    def time_product(x):
        switch = torch.backends.cuda.matmul.fp32_precision
        seen.setdefault((x.dtype, switch), set()).add(x.shape[0])
        return 1e-7

    monkeypatch.setattr(torch.Tensor, "to", lambda x, *to: x.type(to[0]) if isinstance(to[0], torch.dtype) else x)
    monkeypatch.setattr("ampwise.runtime.hardware.probe.GPU_SIZES", (64, 256))
    monkeypatch.setattr("ampwise.runtime.hardware.probe._time_product", time_product)
    found = probe("cuda:0")
    assert set(found.measured) == {"fp32", "tf32", "bf16", "fp16"}
    assert {key for key in seen if key[0] == torch.float32} == {(torch.float32, "ieee"), (torch.float32, "tf32")}
    assert max(seen[torch.bfloat16, "ieee"]) == 256
    assert torch.backends.cuda.matmul.fp32_precision == "none"


def test_an_fp16_convolution_of_the_cpu_is_right():
    assert find_wrong_conv("cpu") is None


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda y, gradient: (y * float("nan"), gradient), "not finite"),
        (lambda y, gradient: (y, gradient * float("inf")), "not finite"),
        (lambda y, gradient: (y * 1.5, gradient), "off by 50%"),
        (lambda y, gradient: (y, gradient * 0), "off by 100%"),
    ],
)
def test_a_wrong_convolution_is_found_forward_and_backward(monkeypatch, spoil, words):
    def conv(x, weight):
        exact = torch.ones(4), torch.ones(4)
        return spoil(*exact) if x.dtype == torch.float16 else exact

    monkeypatch.setattr("ampwise.runtime.hardware.conv_check._conv_and_gradient", conv)
    find_wrong_conv.cache_clear()
    assert words in find_wrong_conv("cpu")
    find_wrong_conv.cache_clear()


def test_a_convolution_that_raises_is_wrong_too(monkeypatch):
    def conv(x, weight):
        if x.dtype == torch.float16:
            raise RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED\nsecond line")
        return torch.ones(4), torch.ones(4)

    monkeypatch.setattr("ampwise.runtime.hardware.conv_check._conv_and_gradient", conv)
    find_wrong_conv.cache_clear()
    assert find_wrong_conv("cpu") == "an fp16 convolution failed: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"
    find_wrong_conv.cache_clear()
