import subprocess
import sys

import pytest

from ampwise._base.errors import UsageError
from ampwise.plan.operators import CastPolicy, cast_lists, describe_operator, in_words, is_operator

LISTS = cast_lists("2.13.0+cpu")


def test_lists_of_a_known_version():
    assert (LISTS.torch_version, LISTS.note) == ("2.13", None)
    assert LISTS.devices["cpu"]["linear"] is CastPolicy.LOWER
    assert LISTS.devices["cuda"]["softmax.int"] is CastPolicy.FP32_SET_OPT_DTYPE
    assert "softmax.int" not in LISTS.devices["cpu"]


@pytest.mark.parametrize(("asked", "found"), [("2.14.1+cu130", "2.13"), ("3.0", "2.13"), ("2.2", "2.13")])
def test_another_version_gets_the_nearest_and_a_note(asked, found):
    lists = cast_lists(asked)
    assert lists.torch_version == found
    assert asked in lists.note
    assert found in lists.note


def test_not_a_version():
    with pytest.raises(UsageError, match=r'"two" is not a torch version; write it as in 2\.13'):
        cast_lists("two")


def test_every_overload_has_one_policy_and_one_remedy():
    import tomllib
    from importlib.resources import files

    data = tomllib.loads((files("ampwise.plan") / "lists" / "2.13.toml").read_text())
    for policies in data.values():
        names = [name for names in policies.values() for name in names]
        assert len(names) == len(set(names))
    rows = tomllib.loads((files("ampwise.plan") / "remedies.toml").read_text())["remedy"]
    names = [name for row in rows for name in row["operators"]]
    assert len(names) == len(set(names))
    assert all(row["because"] for row in rows)


def test_what_run_adds_to_the_cpu():
    added = LISTS.added("cpu")
    assert added["softmax.int"] is CastPolicy.FP32_SET_OPT_DTYPE
    assert added["mean"] is CastPolicy.FP32_SET_OPT_DTYPE
    assert added["index_put_"] is CastPolicy.TO_SELF
    assert not added.keys() & LISTS.devices["cpu"].keys()
    assert not set(added.values()) & {CastPolicy.LOWER, CastPolicy.BANNED}


def test_run_adds_to_cuda_only_remedies_and_lifts_the_ban():
    added = LISTS.added("cuda")
    assert added.keys() <= LISTS.remedies.keys()
    assert added["binary_cross_entropy"] is CastPolicy.FP32
    assert LISTS.in_force("cuda")["binary_cross_entropy"] is CastPolicy.FP32
    assert added.keys() & LISTS.devices["cuda"].keys() == {"binary_cross_entropy"}


@pytest.mark.parametrize(
    ("spellings", "operator"),
    [
        (
            "softmax F.softmax torch.softmax nn.Softmax torch.nn.functional.softmax Tensor.softmax aten::softmax.int",
            "softmax.int",
        ),
        ("layer_norm nn.LayerNorm layernorm F.layer_norm", "layer_norm"),
        ("attention sdpa F.scaled_dot_product_attention", "scaled_dot_product_attention"),
        ("matmul @ torch.matmul Tensor.__matmul__", "matmul"),
        ("CrossEntropyLoss F.cross_entropy cross_entropy_loss", "cross_entropy_loss"),
        ("BCELoss bce binary_cross_entropy", "binary_cross_entropy"),
        ("torch.linalg.svd linalg_svd", "linalg_svd"),
        ("linear nn.Linear", "linear"),
        ("Conv2d F.conv2d", "conv2d"),
        ("relu nn.ReLU F.relu", "relu"),
    ],
)
def test_one_operator_by_any_name(spellings, operator):
    for name in spellings.split():
        assert operator in {o for b in describe_operator(name).behaviours for o in b.operators}, name
        assert is_operator(name)


def test_description_says_what_differs_between_devices_and_why():
    (cpu, cuda) = describe_operator("cross_entropy").behaviours
    assert (cpu.device_type, cpu.stock, cpu.under_run, cpu.because) == ("cpu", CastPolicy.FP32, CastPolicy.FP32, None)
    assert (cuda.device_type, cuda.stock, cuda.under_run) == ("cuda", None, CastPolicy.FP32)
    assert "log_softmax" in cuda.because


def test_an_overload_that_calls_a_listed_one_is_not_called_unlisted():
    cuda = [b for b in describe_operator("conv2d").behaviours if b.device_type == "cuda"]
    assert [(b.operators, b.stock) for b in cuda] == [(("conv2d",), CastPolicy.LOWER)]


@pytest.mark.parametrize(("given", "meant"), [("sofmax", "softmax"), ("nn.LayerNrom", "layer_norm"), ("relo", "relu")])
def test_an_unknown_operator_names_the_nearest(given, meant):
    assert not is_operator(given)
    with pytest.raises(UsageError, match=f'"{given}" is not an operator that autocast treats; did you mean "{meant}"'):
        describe_operator(given)


def test_every_policy_has_words():
    assert len({in_words(policy) for policy in [None, *CastPolicy]}) == 6


def test_no_torch_is_imported():
    code = "import sys, ampwise.plan.operators as o; o.describe_operator('softmax'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
