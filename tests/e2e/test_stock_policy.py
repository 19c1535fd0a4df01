"""A plan with torch's own lists and no rules is ``torch.autocast``, bit for bit, on the examples."""

import runpy
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import nn

from ampwise.plan.plan import Lists, Plan
from ampwise.runtime.casts.casting import apply_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
STOCK = Plan(default="bf16", lists=Lists.STOCK)
RUNS = {
    "char_gpt": "--steps 3 --width 32 --heads 2 --layers 1 --context 16 --batch 4 --warmup 1",
    "digits_cnn": "--epochs 1 --width 4 --batch 256",
    "bert_classify": "--epochs 1 --width 64 --layers 1 --length 16 --batch 16 --passages 60",
}


def with_torchs_autocast(model):
    """The way torch documents: autocast around the forward, the loss in fp32."""
    forward = model.forward

    def in_autocast(*args, **kwargs):
        with torch.autocast("cpu", torch.bfloat16):
            out = forward(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            return out.float()
        return type(out)(**{name: one.float() for name, one in out.items()})

    model.forward = in_autocast
    return lambda: None


def with_plan(model):
    return apply_plan(model, STOCK)


def trained(name, prepare, monkeypatch):
    """The losses and the last weights of an example whose model goes through ``prepare`` first."""
    prepared, losses, undos = [], [], ExitStack()
    to, backward = nn.Module.to, torch.Tensor.backward

    def to_with_preparation(module, *args, **kwargs):
        prepared.append(module)
        undos.callback(prepare(module))
        return to(module, *args, **kwargs)

    def noted(loss, *args, **kwargs):
        losses.append(loss.detach().clone())
        return backward(loss, *args, **kwargs)

    with monkeypatch.context() as patch, undos:
        patch.setattr(nn.Module, "to", to_with_preparation)
        patch.setattr(torch.Tensor, "backward", noted)
        patch.setattr(sys, "argv", [name, *RUNS[name].split()])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    (model,) = prepared
    return [*losses, *(one.detach() for one in model.state_dict().values())]


@pytest.mark.parametrize("name", RUNS)
def test_the_stock_policy_is_torchs_autocast_on_the_examples(name, monkeypatch, capsys):
    expected = trained(name, with_torchs_autocast, monkeypatch)
    found = trained(name, with_plan, monkeypatch)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert "loss" in capsys.readouterr().out
