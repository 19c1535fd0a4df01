"""A linear layer with its own backward, as in PyTorch's tutorial on extending autograd."""
import torch


class LinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.mm(weight.t())

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output.mm(weight), grad_output.t().mm(x)


torch.manual_seed(0)
first, weight = torch.nn.Linear(8, 16), torch.nn.Parameter(torch.randn(4, 16) / 4)
optimizer = torch.optim.SGD([*first.parameters(), weight], lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    LinearFunction.apply(first(torch.randn(32, 8)), weight).pow(2).mean().backward()
    optimizer.step()
