import pytest
import torch

from ampwise.runtime.hardware.environment import environment
from ampwise.runtime.hardware.gather import device_facts, measured_facts
from ampwise.runtime.hardware.machine import advise, list_devices


def test_gpus_first_then_the_cpu_with_the_current_one_marked(fake_gpus, gpu):
    fake_gpus(
        gpu("NVIDIA A100-SXM4-80GB", (8, 0), total_bytes=80 * 2**30, free_bytes=79 * 2**30), gpu("GTX 1080", (6, 1))
    )
    first, second, cpu = list_devices(torch.device("cuda", 1))
    assert (first.device, first.index, first.name) == ("cuda:0", 0, "NVIDIA A100-SXM4-80GB")
    assert (first.compute_capability, first.tensor_cores) == ("8.0", True)
    assert (first.total_bytes, first.free_bytes) == (80 * 2**30, 79 * 2**30)
    assert first.uuid == "GPU-00000000-aaaa-bbbb-cccc-dddddddddddd"
    assert (first.pci_bus, second.pci_bus) == ("00000000:3B:00.0", "00000000:3C:00.0")
    assert (second.compute_capability, second.tensor_cores) == ("6.1", False)
    assert [row.current for row in (first, second, cpu)] == [False, True, False]
    assert (cpu.device, cpu.index, cpu.compute_capability, cpu.tensor_cores) == ("cpu", None, None, None)


def test_a_gpu_that_cannot_be_reached_is_still_listed(fake_gpus, gpu):
    fake_gpus(gpu("?", (8, 0), unreachable="CUDA error: device is lost"))
    row, _ = list_devices(torch.device("cuda", 0))
    assert (row.device, row.name, row.total_bytes, row.compute_capability) == ("cuda:0", "cuda:0", None, None)


def test_memory_that_the_driver_does_not_tell(fake_gpus, gpu, monkeypatch):
    fake_gpus(gpu("A", (8, 0)))

    def refuse(device):
        raise RuntimeError("no memory left to ask")

    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    assert list_devices(torch.device("cuda", 0))[0].free_bytes is None


def test_advice_on_a_gpu(fake_gpus, gpu):
    machine = fake_gpus(gpu("Tesla V100", (7, 0), ratios={"fp16": 6.0, "bf16": 0.5}))
    advice = advise(torch.device("cuda", 0))
    assert advice.recommended == "fp16"
    assert "6.00x as fast" in advice.reason
    rows = {row.name: row for row in advice.formats}
    assert list(rows) == ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2"]
    assert (rows["fp16"].native, rows["fp16"].ratio_to_fp32) == (True, 6.0)
    assert (rows["bf16"].native, rows["bf16"].ratio_to_fp32) == (False, 0.5)
    assert (rows["tf32"].native, rows["tf32"].ratio_to_fp32) == (False, None)
    assert machine.num_probes == 1


def test_the_convolution_is_checked_only_where_it_may_be_wrong(fake_gpus, gpu):
    fake_gpus(gpu("Tesla T4", (7, 5), wrong_conv="wrong"), gpu("NVIDIA A100", (8, 0), wrong_conv="not asked for"))
    assert measured_facts(torch.device("cuda", 0)).wrong_conv == "wrong"
    assert measured_facts(torch.device("cuda", 1)).wrong_conv is None


def test_an_amd_gpu_has_an_architecture_and_no_compute_capability(fake_gpus, gpu):
    fake_gpus(gpu("AMD Instinct MI300X", (9, 4), arch="gfx942:sramecc+", ratios={"bf16": 6.0}), hip="6.3")
    facts = device_facts(torch.device("cuda"))
    assert (facts.device, facts.kind, facts.capability) == ("cuda:0", "rocm", None)
    assert facts.instructions == {"gfx942:sramecc+"}
    assert advise(torch.device("cuda", 0)).recommended == "bf16"
    assert environment(torch.device("cuda", 0), allocator="system").cuda == "torch built with ROCm 6.3"


def test_another_accelerator_is_known_by_its_kind():
    facts = device_facts(torch.device("xpu", 0))
    assert (facts.device, facts.kind, facts.name) == ("xpu:0", "other", "XPU")


def test_the_environment_of_a_cpu_run():
    here = environment(torch.device("cpu"), allocator="tuned")
    assert (here.device, here.allocator, here.torch) == ("cpu", "tuned", torch.__version__)
    assert here.num_threads == torch.get_num_threads()
    assert here.device_name
    if not torch.cuda.is_available():
        assert here.cuda is None


@pytest.mark.parametrize(
    ("driver", "serves", "expected"),
    [
        ("570.86.15", "12.8", "torch built with CUDA 12.8, driver 570.86.15 for CUDA 12.8"),
        (None, None, "torch built with CUDA 12.8, driver of unknown version"),
    ],
)
def test_the_environment_of_a_gpu_run(fake_gpus, gpu, monkeypatch, driver, serves, expected):
    fake_gpus(gpu("NVIDIA H200", (9, 0)))
    monkeypatch.setattr("ampwise.runtime.hardware.environment.driver_version", lambda: driver)
    monkeypatch.setattr("ampwise.runtime.hardware.environment.driver_cuda_version", lambda: serves)
    here = environment(torch.device("cuda", 0), allocator="system")
    assert (here.device, here.device_name, here.cuda) == ("cuda:0", "NVIDIA H200", expected)
