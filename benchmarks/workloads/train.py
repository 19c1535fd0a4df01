"""A plain training loop over one of several models; its last line is its median step time as JSON.

With --autocast bf16 the loop is the same with torch.autocast written by hand, as the tutorials do.
"""

import argparse
import json
import statistics
import time
from contextlib import nullcontext

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", choices=["mlp60", "rnn", "gpt", "recipe", "bert", "resnet"], required=True)
parser.add_argument("--autocast", choices=["none", "bf16", "fp16"], default="none")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--warmup", type=int, default=3)
parser.add_argument("--batch", type=int)
parser.add_argument("--width", type=int)
parser.add_argument("--threads", type=int)
parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
args = parser.parse_args()

if args.threads:
    torch.set_num_threads(args.threads)
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


class RNN(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        h = torch.zeros(x.shape[0], x.shape[2], device=x.device)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)


class GPT(nn.Module):
    def __init__(self, width, layers=4, vocabulary=512, context=128):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, idx):
        x = self.tok(idx) + self.pos.weight[: idx.shape[1]]
        return self.head(self.blocks(x)).flatten(0, 1)


def classes(count, *shape):
    return torch.randint(count, shape, device=device)


def make(name):
    """The model, its input, its target and its loss."""
    if name == "mlp60":
        width, batch = args.width or 32, args.batch or 16
        model = nn.Sequential(*[m for _ in range(60) for m in (nn.Linear(width, width), nn.ReLU())])
        return model, torch.randn(batch, width), torch.randn(batch, width), F.mse_loss
    if name == "rnn":
        width, batch = args.width or 256, args.batch or 32
        return RNN(width), torch.randn(batch, 40, width), classes(10, batch), F.cross_entropy
    if name == "gpt":
        width, batch = args.width or 256, args.batch or 8
        return GPT(width), classes(512, batch, 128), classes(512, batch * 128), F.cross_entropy
    if name == "recipe":
        width, batch = args.width or 2048, args.batch or 512
        model = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
        )
        return model, torch.randn(batch, width), torch.randn(batch, width), F.mse_loss
    if name == "bert":
        from transformers import BertConfig, BertForSequenceClassification

        batch = args.batch or 8
        model = BertForSequenceClassification(BertConfig(num_labels=2))
        return model, classes(30000, batch, 128), classes(2, batch), lambda out, y: F.cross_entropy(out.logits, y)
    from transformers import ResNetConfig, ResNetForImageClassification

    batch = args.batch or 8
    model = ResNetForImageClassification(ResNetConfig(num_labels=1000))
    return model, torch.randn(batch, 3, 224, 224), classes(1000, batch), lambda out, y: F.cross_entropy(out.logits, y)


model, x, y, criterion = make(args.model)
model, x, y = model.to(device).train(), x.to(device), y.to(device)
if args.model == "recipe":
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
dtype = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}[args.autocast]
scaler = torch.amp.GradScaler(device, enabled=args.autocast == "fp16")
clock = time.process_time if args.clock == "cpu" else time.perf_counter

times, losses = [], []
for step in range(args.warmup + args.steps):
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    with torch.autocast(device, dtype=dtype) if dtype else nullcontext():
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if device == "cuda":
        torch.cuda.synchronize()
    if step >= args.warmup:
        times.append((clock() - start) * 1000)
    losses.append(loss.item())
print(json.dumps({"step_ms": statistics.median(times), "first_loss": losses[0], "last_loss": losses[-1]}))
