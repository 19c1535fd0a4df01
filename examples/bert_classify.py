"""Fine-tune a BERT to tell which of four kinds of Python help topic a passage comes from. Nothing is downloaded."""

import argparse
from pydoc_data.topics import topics

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--length", type=int, default=64)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--passages", type=int, default=640)
parser.add_argument("--lr", type=float, default=3e-4)
args = parser.parse_args()

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

kinds = ["class", "except", "import", "string"]
words = {"[PAD]": 0, "[CLS]": 1, "[UNK]": 2}
passages = []
for name in sorted(topics):
    tokens = topics[name].lower().split()
    for start in range(0, len(tokens) - 20, 20):
        window = tokens[start : start + args.length - 1]
        counts = [sum(kind in word for word in window) for kind in kinds]
        if max(counts) > 0 and counts.count(max(counts)) == 1:
            for word in window:
                if len(words) < 4000:
                    words.setdefault(word, len(words))
            passages.append((window, counts.index(max(counts))))
order = torch.randperm(len(passages))[: args.passages].tolist()
passages = [passages[i] for i in order]
split = int(0.85 * len(passages))


def collate(batch):
    ids = torch.zeros(len(batch), args.length, dtype=torch.long)
    for row, (window, _) in enumerate(batch):
        tokens = [1] + [words.get(word, 2) for word in window]
        ids[row, : len(tokens)] = torch.tensor(tokens)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor([kind for _, kind in batch])}


train = DataLoader(passages[:split], batch_size=args.batch, shuffle=True, collate_fn=collate)
test = DataLoader(passages[split:], batch_size=args.batch, collate_fn=collate)

config = BertConfig(
    vocab_size=4000,
    hidden_size=args.width,
    num_hidden_layers=args.layers,
    num_attention_heads=args.width // 64,
    intermediate_size=4 * args.width,
    max_position_embeddings=args.length,
    num_labels=len(kinds),
)
model = BertForSequenceClassification(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
scheduler = get_linear_schedule_with_warmup(optimizer, 4, args.epochs * len(train))

for epoch in range(args.epochs):
    model.train()
    for step, batch in enumerate(train):
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"epoch {epoch}  step {step:3d}  loss {loss.item():.4f}")
    model.eval()
    right = 0
    with torch.no_grad():
        for batch in test:
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            right += (model(**batch).logits.argmax(-1) == batch["labels"]).sum().item()
    print(f"epoch {epoch}  test accuracy {right / (len(passages) - split):.3f}")
