"""torch's own MemTracker, at work on the imaginary GPU's tensors, counts the same bytes."""

import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from ampwise.estimate.allocator import round_size
from imagining import ResNet, imagining, train


def mlp():
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 100))
    data = torch.randn(64, 512, device="cuda"), torch.randint(0, 100, (64,), device="cuda")
    return model, data, classify


def resnet(size=64, **sizes):
    data = torch.randn(2, 3, size, size, device="cuda"), torch.randint(0, 10, (2,), device="cuda")
    return ResNet(num_classes=10, **sizes), data, classify


def gpt2(length=64, **sizes):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(**sizes, use_cache=False, loss_type="ForCausalLM")
    words = torch.zeros(2, length, dtype=torch.long, device="cuda")
    return transformers.GPT2LMHeadModel(config), words, lambda model, words: model(input_ids=words, labels=words).loss


def bert(length=64, **sizes):
    transformers = pytest.importorskip("transformers")
    words = torch.zeros(2, length, dtype=torch.long, device="cuda")
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))
    return model, words, lambda model, words: model(input_ids=words, labels=words[:, 0]).loss


def classify(model, data):
    return nn.functional.cross_entropy(model(data[0]), data[1])


SMALL = {
    "mlp": mlp,
    "resnet": lambda: resnet(depths=(1, 1), width=16),
    "gpt2": lambda: gpt2(n_layer=2, n_embd=64, n_head=2, vocab_size=500, n_positions=64),
    "bert": lambda: bert(num_hidden_layers=2, hidden_size=64, num_attention_heads=2, vocab_size=500),
}
FULL = {"resnet50": lambda: resnet(224), "gpt2": lambda: gpt2(1024), "bert": lambda: bert(512)}


def peaks(make, precision, kind):
    """Of the second step, in whole blocks: as the ledger knows its tensors, and as MemTracker does."""
    with imagining(is_watched=False) as imagination:
        with torch.device("cuda"):
            model, data, loss_of = make()
        optimizer = kind(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
        train(model, optimizer, data, loss_of, precision=precision, scaler=scaler, num_steps=1)
        tracker = MemTracker()
        scale = (scaler._scale, scaler._growth_tracker) if precision == "fp16" else ()
        tracker.track_external(model, optimizer, *(data if isinstance(data, tuple) else (data,)), *scale)
        start = imagination.ledger.time
        with tracker:
            train(model, optimizer, data, loss_of, precision=precision, scaler=scaler, num_steps=1)
        theirs = tracker.get_tracker_snapshot("peak")[torch.device("cuda", 0)]["Total"]
        ours = peak_between(imagination.ledger, start, imagination.ledger.time)
    return ours, theirs


def peak_between(ledger, start, end):
    total = peak = sum(round_size(one.num_bytes) for one in ledger.alive_at(start) if one.num_bytes)
    tensors = [one for one in ledger.storages if not one.is_kernels_own]
    changes = [(one.born, one.num_bytes) for one in tensors if start <= one.born < end]
    changes += [(one.died, -one.num_bytes) for one in tensors if start <= (one.died or -1) < end]
    for _, size in sorted(changes):
        total += round_size(size) if size > 0 else -round_size(-size) if size else 0
        peak = max(peak, total)
    return peak


@pytest.mark.filterwarnings("ignore:Module is None")  # of MemTracker, where a scaled loss is dropped
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", SMALL)
def test_peak_equals_mem_trackers(name, precision, kind):
    ours, theirs = peaks(SMALL[name], precision, kind)
    assert ours == theirs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Module is None")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", FULL)
def test_peak_of_whole_models_equals_mem_trackers(name, precision):
    ours, theirs = peaks(FULL[name], precision, torch.optim.AdamW)
    assert ours == theirs
