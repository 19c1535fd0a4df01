"""Each example, trained on this CPU with its allocations counted by torch's profiler, holds what was predicted.

What CUDA's kernels keep and the CPU's do not is made alike for it: dropout's mask has a byte an element in both runs,
and attention drops nothing.
"""

import gc
import runpy
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 # torch's own habit
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.profiler import ProfilerActivity, profile

from imagining import imagining

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = {
    "char_gpt.py": "--batch 4 --context 32 --width 64 --layers 2 --heads 4",
    "digits_cnn.py": "--epochs 1 --batch 16 --width 16",
    "bert_classify.py": "--batch 4 --length 32 --width 64 --layers 2 --passages 40",
}
NUM_STEPS = 3


class EnoughError(Exception):
    """Enough steps were made."""


class Moments:
    """Calls ``at`` when the first module is made, and at each step before and after its backward pass and its end."""

    def __init__(self, at, monkeypatch):
        self._at = at
        self._num_steps = 0
        own = {"init": nn.Module.__init__, "backward": torch.Tensor.backward}
        has_begun = False

        def init(module, *args, **kwargs):
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                at()
            own["init"](module, *args, **kwargs)

        def backward(tensor, *args, **kwargs):
            at()
            own["backward"](tensor, *args, **kwargs)

        monkeypatch.setattr(nn.Module, "__init__", init)
        monkeypatch.setattr(torch.Tensor, "backward", backward)
        self._hooks = (
            register_optimizer_step_pre_hook(lambda *_: at()),
            register_optimizer_step_post_hook(lambda *_: self._stepped()),
        )

    def _stepped(self):
        self._at()
        self._num_steps += 1
        if self._num_steps == NUM_STEPS:
            raise EnoughError

    def stop(self):
        for hook in self._hooks:
            hook.remove()


def run(name, at):
    """Run the example to its third step."""
    attention = F.scaled_dot_product_attention

    def without_dropout(*args, dropout_p=0.0, **kwargs):
        del dropout_p
        return attention(*args, **kwargs)

    def dropout(tensor, p, training, inplace=False):  # noqa: FBT002 # torch's own signature
        del inplace
        return torch.native_dropout(tensor, p, training)[0] if training else tensor

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "argv", [name, *EXAMPLES[name].split()])
        monkeypatch.setattr(F, "scaled_dot_product_attention", without_dropout)
        monkeypatch.setattr(F, "dropout", dropout)
        moments = Moments(at, monkeypatch)
        try:
            with pytest.raises(EnoughError):
                runpy.run_path(str(FOLDER / name), run_name="__main__")
        finally:
            moments.stop()


def real(name):
    """Live bytes at each moment, by the profiler's count; data that was made before the model is not the GPU's."""
    gc.collect()
    num_moments = 0

    def at():
        nonlocal num_moments
        num_moments += 1
        with torch.profiler.record_function("a moment"):
            pass

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run(name, at)
    live, found = 0, []
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
        elif event.name() == "a moment":
            found.append(live)
    assert len(found) == num_moments
    return [one - found[0] for one in found[1:]]


def predicted(name):
    found = []
    with imagining(is_watched=False) as imagination:
        run(name, lambda: found.append(sum(one.num_bytes for one in imagination.ledger.alive())))
    return found[1:]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_live_byte_of_an_example_is_accounted_for(name):
    pytest.importorskip("transformers" if name.startswith("bert") else "sklearn")
    theirs, ours = real(name), predicted(name)
    assert len(ours) == 3 * NUM_STEPS
    assert ours == [pytest.approx(one, rel=0.001) for one in theirs]
