import pytest
import torch

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.runtime.hardware.placement import check_present, current_device, parse_device, use_device


def no_accelerator(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)


def test_the_current_device_is_the_cpu_where_there_is_nothing_else(monkeypatch):
    no_accelerator(monkeypatch)
    assert current_device() == torch.device("cpu")
    with use_device(None) as device:
        assert device == torch.device("cpu")


def test_the_device_asked_for_is_current_and_the_one_before_returns(fake_gpus, gpu):
    machine = fake_gpus(gpu("A", (8, 0)), gpu("B", (8, 0)), gpu("C", (8, 0)))
    machine.current = 2
    with use_device("cuda:1") as device:
        assert device == torch.device("cuda", 1)
        assert current_device() == device
    assert machine.current == 2
    with pytest.raises(KeyError), use_device("cuda:0"):
        raise KeyError
    assert machine.current == 2


def test_cuda_without_a_number_is_the_current_one(fake_gpus, gpu):
    machine = fake_gpus(gpu("A", (8, 0)), gpu("B", (8, 0)))
    machine.current = 1
    with use_device("cuda") as device:
        assert device == torch.device("cuda", 1)


def test_the_cpu_may_be_asked_for_beside_a_gpu(fake_gpus, gpu):
    machine = fake_gpus(gpu("A", (8, 0)))
    with use_device("cpu") as device:
        assert device == torch.device("cpu")
        assert machine.current == 0


def test_mps_has_no_number(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("mps"))
    assert current_device() == torch.device("mps")


def test_cuda_where_there_is_none(monkeypatch):
    no_accelerator(monkeypatch)
    monkeypatch.setattr(torch.version, "cuda", None)
    with (
        pytest.raises(CannotRunError, match=r"device cuda:1: this torch \(.*\) is built without CUDA") as caught,
        use_device("cuda:1"),
    ):
        pass
    assert "this machine has cpu" in str(caught.value)
    assert "ampwise info" in str(caught.value)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(CannotRunError, match="torch sees no CUDA device"):
        check_present(torch.device("cuda"))


def test_a_number_too_high(fake_gpus, gpu):
    fake_gpus(gpu("A", (8, 0)), gpu("B", (8, 0)))
    with (
        pytest.raises(CannotRunError, match="device cuda:2: torch sees 2 of this kind; the last one is cuda:1"),
        use_device("cuda:2"),
    ):
        pass


def test_another_kind_than_the_machine_has(fake_gpus, gpu):
    fake_gpus(gpu("A", (8, 0)))
    with pytest.raises(CannotRunError, match="torch sees no xpu device; this machine has cpu and cuda"):
        check_present(torch.device("xpu", 0))


@pytest.mark.parametrize("name", ["graphics", "cuda:one", "", "cuda:-1"])
def test_a_name_torch_does_not_know(name):
    with pytest.raises(UsageError, match="is not a device; write cpu, cuda"):
        parse_device(name)
