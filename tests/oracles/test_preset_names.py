"""The modules that presets name, in the models that transformers builds."""

import pytest
import torch

from ampwise.plan.presets import presets
from ampwise.runtime.casts.casting import plan_in_effect

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
T5 = {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
MOE = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
MODELS = {
    "T5Model": T5,
    "MT5Model": T5,
    "UMT5Model": T5,
    "LlamaForCausalLM": SIZES,
    "Gemma3ForCausalLM": {**SIZES, "head_dim": 8},
    "GPTNeoXForCausalLM": SIZES,
    "MixtralForCausalLM": {**SIZES, "num_local_experts": 2},
    "Qwen2MoeForCausalLM": {**SIZES, **MOE, "shared_expert_intermediate_size": 16},
    "Qwen3MoeForCausalLM": {**SIZES, **MOE, "head_dim": 8},
    "OlmoeForCausalLM": {**SIZES, "num_experts": 2, "num_experts_per_tok": 1},
    "GptOssForCausalLM": {**SIZES, "num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8},
    "PhimoeForCausalLM": {**SIZES, "num_local_experts": 2},
    "DeepseekV3ForCausalLM": {
        **SIZES,
        **LATENT,
        "n_routed_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
}
NAMED = {"rms-norm": ("RMSNorm", "T5LayerNorm"), "rotary": ("RotaryEmbedding",), "moe": ("Router",), "t5": ()}
"""How the classes end that each preset is about."""


def built(name):
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    return kind(kind.config_class(**MODELS[name])).eval()


def is_about(preset, path, module):
    return type(module).__name__.endswith(NAMED[preset]) or (preset == "t5" and path.endswith(".wo"))


@pytest.mark.filterwarnings("ignore:plan. no module for")
@pytest.mark.parametrize("name", MODELS)
def test_every_preset_reaches_the_modules_it_is_about_and_the_model_runs(name):
    model = built(name)
    seen = {}
    inputs = {"input_ids": torch.arange(8)[None]}
    if "T5" in name:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    for preset in NAMED:
        meant = {path: one for path, one in model.named_modules() if is_about(preset, path, one)}
        hooks = [
            one.register_forward_hook(lambda _, __, out, path=path: seen.update({path: dtypes_of(out)}))
            for path, one in meant.items()
        ]
        plan = presets()[preset].plan
        with plan_in_effect(model, plan), torch.no_grad():
            out = model(**inputs)[0]
        assert out.isfinite().all()
        for path in meant:
            assert seen.pop(path, {torch.float32}) == {torch.float32}, (preset, path)
        assert not seen
        for hook in hooks:
            hook.remove()


def dtypes_of(out):
    return {one.dtype for one in (out if isinstance(out, tuple) else (out,)) if one.is_floating_point()}


def test_the_models_are_those_that_the_presets_are_for():
    kinds = dict.fromkeys(NAMED, 0)
    for name in ("T5Model", "MixtralForCausalLM"):
        for preset in NAMED:
            kinds[preset] += sum(is_about(preset, path, one) for path, one in built(name).named_modules())
    assert all(kinds.values())
