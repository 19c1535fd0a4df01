"""Train a small character-level GPT on English text: Python's own help topics."""

import argparse
import math
import time
from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--context", type=int, default=128)
parser.add_argument("--width", type=int, default=384)
parser.add_argument("--layers", type=int, default=6)
parser.add_argument("--heads", type=int, default=6)
parser.add_argument("--lr", type=float, default=3e-4)
parser.add_argument("--warmup", type=int, default=20)
parser.add_argument("--clip", type=float, default=1.0)
parser.add_argument("--seed", type=int, default=1337)
args = parser.parse_args()

torch.manual_seed(args.seed)
device = "cuda" if torch.cuda.is_available() else "cpu"

text = "\n".join(topics[name] for name in sorted(topics))
chars = sorted(set(text))
encode = {c: i for i, c in enumerate(chars)}
data = torch.tensor([encode[c] for c in text])
train_data, val_data = data[: int(0.9 * len(data))], data[int(0.9 * len(data)) :]


def get_batch(source):
    starts = torch.randint(len(source) - args.context - 1, (args.batch,)).tolist()
    x = torch.stack([source[i : i + args.context] for i in starts])
    y = torch.stack([source[i + 1 : i + args.context + 1] for i in starts])
    return x.to(device), y.to(device)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(len(chars), args.width)
        self.pos = nn.Embedding(args.context, args.width)
        self.blocks = nn.Sequential(*[Block(args.width, args.heads) for _ in range(args.layers)])
        self.ln = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, len(chars))
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1], device=idx.device))
        return self.head(self.ln(self.blocks(x)))


model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)


def lr_at(step):
    if step < args.warmup:
        return (step + 1) / args.warmup
    progress = (step - args.warmup) / max(1, args.steps - args.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_at)


@torch.no_grad()
def validation_loss():
    model.eval()
    losses = []
    for _ in range(5):
        x, y = get_batch(val_data)
        losses.append(F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item())
    model.train()
    return sum(losses) / len(losses)


print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {len(data)} characters, on {device}")
start = time.time()
for step in range(args.steps):
    x, y = get_batch(train_data)
    logits = model(x)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    optimizer.step()
    scheduler.step()
    if step % 20 == 0 or step == args.steps - 1:
        print(f"step {step:4d}  loss {loss.item():.4f}  {(time.time() - start) / (step + 1) * 1000:.0f} ms/step")
print(f"validation loss {validation_loss():.4f}")
