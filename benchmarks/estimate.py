"""How long `ampwise estimate`'s imaginary run takes, beside torch's MemTracker, and how much RAM: four known models.

Every run is a process of its own, which makes two steps in bf16 with AdamW; its import of torch is not counted.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from importlib import import_module
from typing import Any

from _common import ROOT, Row, publish

GOALS = {"resnet50": 3.0, "gpt2-124m": 3.0, "bert-large": 3.0, "llama-7b": 15.0}
"""Seconds at most."""


def train(name: str, device: str, tracker: Any = None) -> None:
    """Two steps of the model on the device."""
    import torch
    from torch import nn

    from imagining import ResNet

    def words(length: int, batch: int) -> Any:
        return torch.zeros(batch, length, dtype=torch.long, device=device)

    with torch.device(device):
        if name == "resnet50":
            model, data = ResNet(), torch.zeros(32, 3, 224, 224)
            target = torch.zeros(32, dtype=torch.long)

            def loss_of() -> Any:
                return nn.functional.cross_entropy(model(data), target)
        else:
            import transformers as hf

            data = words(*{"gpt2-124m": (1024, 8), "bert-large": (512, 4), "llama-7b": (2048, 1)}[name])
            if name == "gpt2-124m":
                model = hf.GPT2LMHeadModel(hf.GPT2Config(use_cache=False, loss_type="ForCausalLM"))
            elif name == "llama-7b":
                model = hf.LlamaForCausalLM(hf.LlamaConfig(use_cache=False))
            else:
                sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
                model = hf.BertForSequenceClassification(hf.BertConfig(**sizes, intermediate_size=4096))

            def loss_of() -> Any:
                return model(input_ids=data, labels=data[:, 0] if name == "bert-large" else data).loss

    optimizer = torch.optim.AdamW(model.parameters())
    if tracker is not None:
        tracker.track_external(model, optimizer, data)
    for _ in range(2):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if tracker is not None:
            tracker.reset_mod_stats()


def child(name: str, side: str) -> None:
    """Print what one run took as JSON."""
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from imagining import imagining

    import_module("transformers.modeling_utils")  # so that it is not counted
    torch.set_num_threads(1)
    with imagining():  # the first one imports
        pass
    start = time.perf_counter()
    if side == "ampwise":
        with imagining():
            train(name, "cuda")
    else:  # fake tensors of a GPU cannot train where there is none; those of the CPU take as long
        with FakeTensorMode(), MemTracker() as tracker:
            train(name, "cpu", tracker)
    seconds = time.perf_counter() - start
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "rss_bytes": rss}))


def measured(name: str, side: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", name, side]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} by {side}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def row(name: str, *, runs: int) -> Row:
    pairs = []
    for number in range(runs):
        first, second = ("ampwise", "MemTracker") if number % 2 == 0 else ("MemTracker", "ampwise")
        made = {side: measured(name, side) for side in (first, second)}
        pairs.append((made["ampwise"], made["MemTracker"]))
    ratios = [theirs["seconds"] / ours["seconds"] for ours, theirs in pairs]
    rss = max(ours["rss_bytes"] for ours, _ in pairs)
    return Row(
        case=name,
        side=f"RSS {rss / 2**20:.0f} MiB",
        baseline="MemTracker",
        ms=statistics.median(ours["seconds"] for ours, _ in pairs) * 1e3,
        baseline_ms=statistics.median(theirs["seconds"] for _, theirs in pairs) * 1e3,
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        runs=runs,
        goal=f">= 2x, <= {GOALS[name]:g} s, RSS <= 1024 MiB",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one run each, without the largest model")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    names = [name for name in GOALS if not (arguments.quick and name == "llama-7b")]
    rows = [row(name, runs=1 if arguments.quick else arguments.runs) for name in names]
    publish("estimate", rows, note="Two steps in bf16 with AdamW; imports are not counted.")


if __name__ == "__main__":
    main()
