import pytest
import torch

from ampwise.compat import devices


@pytest.fixture
def capabilities(monkeypatch):
    def install(**values):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: values)

    return install


def test_instructions_are_what_the_processor_has_by_the_kernels_names(capabilities):
    capabilities(avx512_bf16=True, amx_bf16=False, fp16_arith=True, l1d_cache_size=32768, num_sockets=1)
    assert devices.cpu_instructions() == {"avx512_bf16", "asimdhp"}


def test_this_processors_instructions_agree_with_the_kernel():
    try:
        text = devices._CPUINFO.read_text()
    except OSError:
        pytest.skip("no /proc/cpuinfo")
    for flag in ("avx512_bf16", "amx_bf16", "avx512_fp16"):
        assert (flag in devices.cpu_instructions()) == (flag in text.split())


def test_the_processors_name_comes_from_torch_else_from_the_system(capabilities, monkeypatch, tmp_path):
    capabilities(cpu_name="AMD EPYC")
    assert devices.cpu_name() == "AMD EPYC"
    capabilities()
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\nmodel name\t: Some CPU @ 3 GHz\n")
    monkeypatch.setattr(devices, "_CPUINFO", info)
    assert devices.cpu_name() == "Some CPU @ 3 GHz"
    monkeypatch.setattr(devices, "_CPUINFO", tmp_path / "missing")
    assert devices.cpu_name()


def test_memory(monkeypatch, tmp_path):
    info = tmp_path / "meminfo"
    info.write_text(
        "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\nHugePages_Total:    0\n"
    )
    monkeypatch.setattr(devices, "_MEMINFO", info)
    assert devices.cpu_memory_bytes() == (1000 * 1024, 400 * 1024)
    monkeypatch.setattr(devices, "_MEMINFO", tmp_path / "missing")
    assert devices.cpu_memory_bytes() == (None, None)


def test_the_drivers_version(monkeypatch, tmp_path):
    version = tmp_path / "version"
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs)\n"
        "GCC version:  gcc version 12.2.0\n"
    )
    monkeypatch.setattr(devices, "_NVIDIA_VERSION", version)
    assert devices.driver_version() == "570.86.15"
    monkeypatch.setattr(devices, "_NVIDIA_VERSION", tmp_path / "missing")
    assert devices.driver_version() is None


def test_the_cuda_that_the_driver_serves(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 12080, raising=False)
    assert devices.driver_cuda_version() == "12.8"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.driver_cuda_version() is None


def test_properties_of_an_older_torch_have_no_bus_and_no_uuid(monkeypatch):
    from types import SimpleNamespace

    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda _: SimpleNamespace(name="Tesla T4", major=7, minor=5, total_memory=1),
    )
    properties = devices.gpu_properties(0)
    assert (properties.name, properties.capability) == ("Tesla T4", (7, 5))
    assert (properties.uuid, properties.pci_bus, properties.arch) == (None, None, None)
