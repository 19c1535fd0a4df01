import re

import pytest

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.formats import FORMATS
from ampwise.plan.plan import Plan
from ampwise.plan.presets import PRECISIONS, get_precision, presets


def test_rows():
    assert list(PRECISIONS) == ["fp32", "tf32", "bf16", "fp16"]
    assert [name for name, row in PRECISIONS.items() if row.needs_loss_scaling] == ["fp16"]
    assert all(row.compute in FORMATS and row.needs for row in PRECISIONS.values())


@pytest.mark.parametrize(
    ("said", "meant"), [("fp16", "fp16"), ("half", "fp16"), ("bfloat16", "bf16"), ("FP32", "fp32")]
)
def test_a_precision_is_found_by_any_name_of_its_format(said, meant):
    assert get_precision(said) is PRECISIONS[meant]


def test_an_unknown_precision_is_refused_with_what_was_meant():
    text = '"bf61" is not a precision; did you mean "bf16"? (one of: auto, fp32, tf32, bf16, fp16)'
    with pytest.raises(UsageError, match=re.escape(text)):
        get_precision("bf61")


def test_a_format_that_autocast_lacks_cannot_run_and_names_emulation_where_there_is_one():
    with pytest.raises(CannotRunError, match=r"autocast cannot compute in fp8_e4m3.*--emulate fp8_e4m3"):
        get_precision("fp8_e4m3")
    with pytest.raises(CannotRunError, match=r"autocast cannot compute in fp64; choose one of auto, .*fp16$"):
        get_precision("fp64")


def test_every_preset_says_what_it_is_where_it_is_from_and_why():
    assert {"fp32", "tf32", "bf16", "fp16", "fp16-safe", "bf16-pure", "fp8"} <= presets().keys()
    for name, row in presets().items():
        assert row.name == name
        assert row.about
        assert row.sources
        assert all(rule.because for rule in row.plan.rules)


def test_a_precision_computes_as_the_preset_of_its_name():
    for name, row in PRECISIONS.items():
        assert presets()[name].plan == Plan(default=row.compute)


@pytest.mark.parametrize(
    ("preset", "module", "op", "compute"),
    [
        ("t5", "encoder.block.3.layer.1.DenseReluDense.wo", None, "fp32"),
        ("t5", "decoder.final_layer_norm", None, "fp32"),
        ("t5", "encoder.block.3.layer.0.SelfAttention.o", None, "fp16"),
        ("sdxl-vae", "vae.decoder.up_blocks.2", "conv2d", "fp32"),
        ("sdxl-vae", "unet.conv_in", "conv2d", "fp16"),
        ("rotary", "model.rotary_emb", None, "fp32"),
        ("rotary", "model.layers.1", None, "bf16"),
        ("moe", "model.layers.1.block_sparse_moe.gate", None, "fp32"),
        ("moe", "model.layers.1.mlp.gate_proj", None, "bf16"),
        ("fp8", "model.layers.1.mlp.up_proj", "linear", "fp8_e4m3"),
        ("fp8", "lm_head", "linear", "bf16"),
        ("fp8", "model.layers.1.mlp.up_proj", "softmax", "bf16"),
        ("fp16-safe", "h.0.attn", "softmax", "fp32"),
        ("fp16-safe", "h.0.ln_1", "layer_norm", "fp32"),
        ("fp16-safe", "h.0.mlp.c_fc", None, "fp16"),
        ("bf16-pure", "h.0.ln_1", "layer_norm", "bf16"),
    ],
)
def test_what_presets_decide(preset, module, op, compute):
    assert presets()[preset].plan.resolve(module, op).compute == compute


def test_a_plan_is_no_precision():
    with pytest.raises(
        CannotRunError, match='"fp16-safe" is a plan, more than a precision: give it as plan="fp16-safe"'
    ):
        get_precision("fp16-safe")
