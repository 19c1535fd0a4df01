import pytest
import torch

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.runtime.hardware.device import Choice, choose_precision
from ampwise.runtime.hardware.facts import Measured
from ampwise.runtime.hardware.race import Probe


@pytest.fixture
def cpu_probe(monkeypatch):
    """The CPU, with the ratios and the instructions one wants."""

    def install(*, instructions=("avx512_bf16",), failed=None, **ratios):
        monkeypatch.setattr("ampwise.runtime.hardware.gather.cpu_instructions", lambda: frozenset(instructions))
        monkeypatch.setattr("ampwise.runtime.hardware.gather.cpu_name", lambda: "Test CPU")
        measured = {name: Measured(ratio=ratio, size=512) for name, ratio in {"fp32": 1.0, **ratios}.items()}
        monkeypatch.setattr(
            "ampwise.runtime.hardware.gather.probe", lambda _, **__: Probe(measured=measured, failed=failed or {})
        )

    return install


@pytest.fixture
def no_probe(monkeypatch):
    def fail(device, **_):
        raise AssertionError("measured where nothing needs measuring")

    monkeypatch.setattr("ampwise.runtime.hardware.gather.probe", fail)


CPU = torch.device("cpu")


def test_auto_on_a_cpu_follows_the_probe(cpu_probe):
    cpu_probe(bf16=2.5)
    choice = choose_precision(device=CPU)
    assert choice == Choice(
        precision="bf16",
        reason="the CPU has avx512_bf16, and 512 x 512 matrix products run 2.50x as fast in bf16 as in fp32",
        slow_factor=None,
        device="cpu",
    )
    cpu_probe(bf16=0.4)
    assert choose_precision("AUTO ", device=CPU).precision == "fp32"


def test_auto_is_measured_for_real_on_this_machine():
    choice = choose_precision(device=CPU)
    assert choice.precision in {"fp32", "bf16"}
    assert "matrix products" in choice.reason


def test_by_name_nothing_is_measured_where_the_hardware_has_it(cpu_probe, no_probe, monkeypatch):
    monkeypatch.setattr("ampwise.runtime.hardware.gather.cpu_instructions", lambda: frozenset({"amx_bf16"}))
    for name in ("fp32", "float32", "bf16", "bfloat16"):
        choice = choose_precision(name, device=CPU)
        assert choice.precision in {"fp32", "bf16"}
        assert choice.reason == "asked for"
        assert choice.slow_factor is None


def test_a_precision_without_hardware_runs_and_is_said_to_be_slow(cpu_probe):
    cpu_probe(fp16=0.01)
    choice = choose_precision("fp16", device=CPU)
    assert choice.precision == "fp16"
    assert choice.slow_factor == pytest.approx(100)
    assert choice.reason == (
        "asked for, but slow: Test CPU has no fp16 hardware, "
        "and 512 x 512 matrix products take 100.00x as long in fp16 as in fp32"
    )


def test_a_precision_without_hardware_that_is_not_slow_is_not_said_to_be(cpu_probe):
    cpu_probe(instructions=(), bf16=1.3)
    choice = choose_precision("bf16", device=CPU)
    assert choice.slow_factor is None
    assert choice.reason == "asked for; 512 x 512 matrix products run 1.30x as fast in bf16 as in fp32"


def test_a_precision_that_cannot_be_computed_in_is_refused(cpu_probe):
    cpu_probe(failed={"fp16": '"addmm" not implemented for Half'})
    with pytest.raises(CannotRunError, match=r'precision "fp16": Test CPU \(cpu\) cannot .* not implemented for Half'):
        choose_precision("fp16", device=CPU)


def test_tf32_on_a_cpu_is_refused_with_the_name_of_what_would_show_it(no_probe):
    with pytest.raises(CannotRunError, match="--emulate tf32 computes on a CPU as if it had it") as caught:
        choose_precision("tf32", device=CPU)
    assert "compute capability 8.0" in str(caught.value)
    assert caught.value.exit_status == 3


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2", "fp64"])
def test_a_format_autocast_does_not_have_is_refused(name, no_probe):
    with pytest.raises(CannotRunError, match=f"autocast cannot compute in {name}"):
        choose_precision(name, device=CPU)


def test_a_misspelt_precision_is_a_usage_error(no_probe):
    with pytest.raises(UsageError, match='did you mean "bf16"') as caught:
        choose_precision("bf61", device=CPU)
    assert "auto" in str(caught.value)
    assert caught.value.exit_status == 2


def test_auto_on_the_current_gpu(fake_gpus, gpu):
    machine = fake_gpus(
        gpu("NVIDIA H100", (9, 0), ratios={"bf16": 8.0}), gpu("Tesla T4", (7, 5), ratios={"fp16": 5.0, "bf16": 0.5})
    )
    assert choose_precision().device == "cuda:0"
    assert choose_precision().precision == "bf16"
    machine.current = 1
    assert choose_precision().device == "cuda:1"
    assert choose_precision().precision == "fp16"
    assert choose_precision(device=torch.device("cuda", 0)).precision == "bf16"


def test_a_gtx_1660_is_fp32_and_fp16_by_name_carries_the_warning(fake_gpus, gpu):
    fake_gpus(gpu("NVIDIA GeForce GTX 1660", (7, 5), ratios={"fp16": 1.9}, wrong_conv="an fp16 convolution gave NaN"))
    assert choose_precision().precision == "fp32"
    choice = choose_precision("fp16")
    assert choice.precision == "fp16"
    assert "an fp16 convolution gave NaN" in choice.reason


def test_tf32_by_name_needs_the_hardware(fake_gpus, gpu):
    fake_gpus(gpu("NVIDIA A100", (8, 0)), gpu("Tesla T4", (7, 5)))
    assert choose_precision("tf32").precision == "tf32"
    with pytest.raises(CannotRunError, match=r"Tesla T4 \(cuda:1\)"):
        choose_precision("tf32", device=torch.device("cuda", 1))


def test_bf16_by_name_on_a_t4_is_slow_whatever_torch_says_of_it(fake_gpus, gpu):
    fake_gpus(gpu("Tesla T4", (7, 5), ratios={"bf16": 0.25}))
    choice = choose_precision("bf16")
    assert (choice.precision, choice.slow_factor) == ("bf16", 4.0)


def test_a_gpu_that_cannot_be_reached_is_fp32_with_the_reason(fake_gpus, gpu):
    fake_gpus(gpu("?", (9, 0), unreachable="CUDA error: device is lost"))
    choice = choose_precision()
    assert choice.precision == "fp32"
    assert "could not be read" in choice.reason


def test_a_device_this_machine_lacks_is_refused_before_anything_is_measured(no_probe):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(CannotRunError, match="device cuda:0: this torch"):
        choose_precision("fp32", device=torch.device("cuda", 0))
