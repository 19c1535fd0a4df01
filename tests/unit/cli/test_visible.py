import pytest

from ampwise.cli.visible import checks, renumbering
from ampwise.runtime.hardware.machine import DeviceRow


def row(device):
    return DeviceRow(
        device=device,
        index=None,
        name="x",
        compute_capability=None,
        total_bytes=None,
        free_bytes=None,
        tensor_cores=None,
        uuid=None,
        pci_bus=None,
        current=False,
    )


def test_nothing_to_say_without_the_variable():
    assert renumbering({}, num_visible=2) == ()
    assert renumbering({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, num_visible=2) == ()


def test_what_each_number_means():
    environ = {"CUDA_VISIBLE_DEVICES": "2, 0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert renumbering(environ, num_visible=2) == (
        "CUDA_VISIBLE_DEVICES=2, 0: cuda:0 is the machine's GPU 2, cuda:1 is the machine's GPU 0",
    )


def test_without_the_bus_order_nvidia_smi_counts_otherwise():
    first, second = renumbering({"CUDA_VISIBLE_DEVICES": "1"}, num_visible=1)
    assert "cuda:0 is the machine's GPU 1" in first
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in second


def test_uuids_mean_the_same_in_every_order():
    (sentence,) = renumbering({"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, num_visible=1)
    assert "cuda:0 is the machine's GPU GPU-8932f937" in sentence


@pytest.mark.parametrize("setting", ["", "  ", "-1", "-1,0"])
def test_a_setting_that_hides_all(setting):
    (sentence,) = renumbering({"CUDA_VISIBLE_DEVICES": setting}, num_visible=0)
    assert "hides every GPU" in sentence


def test_an_entry_that_ends_the_list():
    sentences = renumbering({"CUDA_VISIBLE_DEVICES": "0,7,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, num_visible=1)
    assert '"7" is not one it can use' in sentences[1]
    assert "lists 3 GPUs and torch sees 1" in sentences[1]


def test_a_setting_of_which_torch_sees_nothing():
    assert "sees none of these" in renumbering({"CUDA_VISIBLE_DEVICES": "3"}, num_visible=0)[0]


def test_amds_variable():
    assert renumbering({"HIP_VISIBLE_DEVICES": "1"}, num_visible=1)[0].startswith("HIP_VISIBLE_DEVICES=1: cuda:0")


def test_no_checks_where_a_gpu_is_seen():
    assert checks((row("cuda:0"), row("cpu")), cuda="12.8") == ()
    assert checks((row("mps:0"), row("cpu")), cuda=None) == ()


@pytest.mark.parametrize(("cuda", "words"), [(None, "built without CUDA"), ("12.8", "built for 12.8")])
def test_the_checks_where_none_is_seen(cuda, words):
    found = checks((row("cpu"),), cuda=cuda)
    commands = [check.command for check in found]
    assert "nvidia-smi --query-gpu=name,compute_cap --format=csv" in commands
    assert any("docker run" in command and "--gpus all" in command for command in commands)
    assert any("nvidia-container-toolkit" in check.why for check in found)
    assert any(words in check.why for check in found)
