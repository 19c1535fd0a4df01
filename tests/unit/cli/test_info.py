import json

import pytest
import torch
from click.testing import CliRunner

from ampwise._base.errors import CannotRunError
from ampwise.cli.info import command


def info(*arguments, env=None):
    result = CliRunner().invoke(command, arguments, env={"COLUMNS": "80", **(env or {})})
    if result.exception:
        raise result.exception
    return result.stdout


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)


@pytest.fixture
def two_gpus(fake_gpus, gpu):
    return fake_gpus(
        gpu("NVIDIA H100 80GB HBM3", (9, 0), total_bytes=80 * 2**30, ratios={"tf32": 4.0, "bf16": 8.0, "fp16": 8.0}),
        gpu("Tesla T4", (7, 5), ratios={"fp16": 5.0, "bf16": 0.25}),
    )


def test_json_on_a_cpu(no_gpu):
    document = json.loads(info("--json"))
    assert document["recommended"] in {"fp32", "bf16"}
    assert document["reason"]
    assert document["device"] == "cpu"
    assert [row["name"] for row in document["formats"]][:2] == ["fp64", "fp32"]
    assert set(document["formats"][0]) == {"name", "native", "ratio_to_fp32"}
    assert [row["device"] for row in document["devices"]] == ["cpu"]
    assert document["environment"]["torch"] == torch.__version__
    assert document["tf32"]["clash"] is None
    assert len(document["checks"]) == 3


def test_json_on_gpus(two_gpus):
    document = json.loads(info("--json", env={"CUDA_VISIBLE_DEVICES": "3,1"}))
    assert document["recommended"] == "bf16"
    assert document["device"] == "cuda:0"
    by_name = {row["name"]: row for row in document["formats"]}
    assert by_name["bf16"] == {"name": "bf16", "native": True, "ratio_to_fp32": 8.0}
    assert by_name["fp8_e4m3"] == {"name": "fp8_e4m3", "native": True, "ratio_to_fp32": None}
    assert [row["current"] for row in document["devices"]] == [True, False, False]
    assert document["devices"][0]["compute_capability"] == "9.0"
    assert document["environment"]["cuda"] == "12.8"
    assert "cuda:0 is the machine's GPU 3" in document["environment"]["visible_devices"][0]
    assert document["checks"] == []


def test_another_device_for_once(two_gpus):
    document = json.loads(info("--json", "--device", "cuda:1"))
    assert (document["device"], document["recommended"]) == ("cuda:1", "fp16")
    assert [row["current"] for row in document["devices"]] == [False, True, False]
    assert two_gpus.current == 0


def test_a_device_that_is_not_there(no_gpu):
    with pytest.raises(CannotRunError, match="device cuda:1"):
        info("--device", "cuda:1")


def test_for_a_person_within_80_columns(two_gpus):
    text = info(env={"CUDA_VISIBLE_DEVICES": "3,1"})
    assert text.startswith("Use bf16 on cuda:0: compute capability 9.0 has bf16 tensor cores")
    assert all(len(line) <= 80 for line in text.splitlines())
    words = " ".join(text.split())
    for part in ("cuda:0 *", "NVIDIA H100", "Tesla T4", "80.0 GiB", "8.00x as fast", "cuda 12.8", "GPU 3"):
        assert part in words
    assert "No GPU is seen" not in text


def test_for_a_person_without_a_gpu(no_gpu):
    text = info(env={"CUDA_VISIBLE_DEVICES": ""})
    words = " ".join(text.split())
    assert "No GPU is seen" in words
    assert "nvidia-smi --query-gpu=name,compute_cap --format=csv" in words
    assert "nvidia-container-toolkit" in words
    assert 'CUDA_VISIBLE_DEVICES="" hides every GPU' in words


def test_a_slow_format_is_given_as_so_many_times_as_long(two_gpus):
    assert "4.00x as long" in info("--device", "cuda:1")


def test_a_clash_of_tf32s_switches_is_reported_not_raised(no_gpu):
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        document = json.loads(info("--json"))
        text = " ".join(info().split())
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert "torch.get_float32_matmul_precision()" in document["tf32"]["clash"]
    assert "TF32 was set through both of torch's interfaces" in text


def test_a_gpu_cannot_write_to_the_terminal(fake_gpus, gpu):
    fake_gpus(gpu("\x1b[31mEvil[bold] GPU", (8, 0), ratios={"bf16": 3.0}))
    text = info()
    assert "\x1b[31m" not in text
    assert "[bold]" in text
