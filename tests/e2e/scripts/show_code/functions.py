"""Functions: the loss goes in as an argument, main() owns the optimizer, nothing imports torch itself."""
from torch import manual_seed, nn, optim, randn
from torch.nn.utils import clip_grad_norm_

losses = []


def forward(model, x, y):
    prediction = model(x)
    return (prediction - y).pow(2).mean()


def update(loss, model, opt):
    opt.zero_grad()
    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    losses.append(loss.item())


def train(model, opt, data):
    model.train()
    for x, y in data:
        update(forward(model, x, y), model, opt)


def main():
    manual_seed(0)
    data = [(randn(8, 16), randn(8, 1)) for _ in range(6)]
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = optim.SGD(model.parameters(), lr=0.1)
    train(model, opt, data)


if __name__ == "__main__":
    main()
