"""Faults that people really hit, each as a tiny training whose answer is known: which module, which operator.

Shared by the tests of instruments, doctor and tune. Each is deterministic and holds for every seed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from ampwise.records.site import Phase

LOW = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(kw_only=True)
class Training:
    """A model, its batch and its loss; ``step`` is what a script would write."""

    model: nn.Module
    batch: tuple[Tensor, ...]
    format: str
    pure: bool = False
    """The model and its batch are in the format; else autocast is."""
    loss: Callable[[Tensor], Tensor] = lambda output: output.float().square().mean()
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self):
        if self.pure:
            self._cast(LOW[self.format])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def forward(self):
        with torch.autocast("cpu", LOW[self.format], enabled=not self.pure and self.format != "fp32"):
            return self.loss(self.model(*self.batch))

    def step(self):
        loss = self.forward()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def in_fp32(self):
        """The same training where everything is fp32."""
        self._cast(torch.float32)
        self.format, self.pure = "fp32", False
        return self

    def _cast(self, dtype):
        self.model.to(dtype)
        self.batch = tuple(one.to(dtype) if one.is_floating_point() else one for one in self.batch)


@dataclass(frozen=True, kw_only=True)
class KnownAnswer:
    name: str
    source: str
    make: Callable[[int], Training]
    module: str
    op: str | None = None
    """None for a fault that makes no infinity."""
    phase: Phase = Phase.FORWARD
    vanished: str | None = None
    """The operator that turns the infinity into a finite number again."""
    loss_is_finite: bool = False
    is_hidden: bool = False
    """Neither the loss nor a gradient shows it."""
    fails_in_fp32: bool = False
    """Precision cannot fix it."""


def randn(seed, *shape, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def linear(seed, d_in, d_out, *, scale=1.0, bias=False):
    """Weights of one sign: whatever the seed, sums grow as their length."""
    layer = nn.Linear(d_in, d_out, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(randn(seed, d_out, d_in).abs().clamp(0.5, 1.5) * scale / d_in)
    return layer


class FeedForward(nn.Module):
    """T5's: the sum in ``wo`` leaves fp16."""

    def __init__(self, seed, gain):
        super().__init__()
        self.wi, self.wo = linear(seed, 8, 16), linear(seed + 1, 16, 8, scale=gain)

    def forward(self, x):
        return x + self.wo(relu(self.wi(x)))


class Stack(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def t5_wo(seed):
    model = Stack(FeedForward(seed, 1.0), FeedForward(seed + 2, 800.0))
    return Training(model=model, batch=(randn(seed, 4, 8).abs() * 50 + 200,), format="fp16")


class Residual(nn.Module):
    def forward(self, x, y):
        return x + y


class ResidualBlock(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.fc, self.res = linear(seed, 4, 4), Residual()

    def forward(self, x):
        return self.res(x, self.fc(x))


def longt5_residual(seed):
    batch = randn(seed, 2, 4).abs().clamp(0, 0.1) * 1e4 + 36_000
    model = Stack(ResidualBlock(seed))
    with torch.no_grad():
        model.layers[0].fc.weight.fill_(0.25)
    return Training(model=model, batch=(batch,), format="fp16", pure=True)


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Normed(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.fc, self.norm = linear(seed, 4, 4), RMSNorm(4)

    def forward(self, x):
        return self.norm(self.fc(x))


def rms_norm_square(seed):
    return Training(model=Normed(seed), batch=(randn(seed, 2, 4).abs() + 700,), format="fp16", pure=True)


class Attention(nn.Module):
    """A causal mask of ``finfo.min`` and a padding mask of the same on scores below zero."""

    def __init__(self, seed):
        super().__init__()
        self.q, self.k, self.v = (linear(seed + i, 4, 4) for i in range(3))

    def forward(self, x, mask):
        scores = -self.q(x) @ self.k(x).transpose(-1, -2)
        scores = scores + mask.to(scores.dtype)
        return scores.softmax(-1) @ self.v(x)


class Encoder(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.attn, self.head = Attention(seed), linear(seed + 5, 4, 2)

    def forward(self, x, mask):
        return self.head(self.attn(x, mask))


def mask_overflow(seed):
    lowest = torch.finfo(torch.float16).min
    mask = torch.full((3, 3), lowest)
    mask[1:, 0] = 0.0
    return Training(model=Encoder(seed), batch=(randn(seed, 3, 4).abs() + 20, mask), format="fp16", pure=True)


class ConvBlock(nn.Module):
    def __init__(self, seed, gain):
        super().__init__()
        self.c = nn.Conv2d(2, 2, 1, bias=False)
        with torch.no_grad():
            self.c.weight.copy_(gain / 2 * (1 + 0.05 * randn(seed, 2, 2, 1, 1).clamp(-1, 1)))

    def forward(self, x):
        return relu(self.c(x))


class Decoder(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.up_blocks = nn.ModuleList(ConvBlock(seed + i, 60.0) for i in range(3))

    def forward(self, x):
        for block in self.up_blocks:
            x = block(x)
        return x


def vae_conv(seed):
    batch = 1 + 0.05 * randn(seed, 1, 2, 3, 3).clamp(-1, 1)
    return Training(model=Decoder(seed), batch=(batch,), format="fp16")


class SaturatedLoss(nn.Module):
    """Each branch of ``where`` has a gradient: that of the one not taken is 0 times infinity."""

    def forward(self, p, target):
        return -torch.where(target > 0, p.log(), torch.log1p(-p))


class Classifier(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.fc, self.loss = linear(seed, 4, 2), SaturatedLoss()

    def forward(self, x, target):
        return self.loss(torch.sigmoid(self.fc(x) + 14), target)


def saturated_log(seed):
    batch = (randn(seed, 2, 4).abs().clamp(0, 0.5), torch.ones(2, 2))
    return Training(model=Classifier(seed), batch=batch, format="bf16", pure=True, loss=lambda x: x.float().mean())


def adam_eps(seed):
    """A column of the input is zero: so are its gradient and its second moment, and fp16 has no 1e-8."""
    batch = randn(seed, 2, 4).abs()
    batch[:, 1] = 0
    model = nn.Sequential()
    model.add_module("fc", linear(seed, 4, 2))
    training = Training(model=model, batch=(batch,), format="fp16", pure=True)
    training.optimizer = torch.optim.Adam(training.model.parameters(), lr=1e-3)
    return training


def gradient_underflow(seed):
    model = nn.Sequential()
    model.add_module("fc", linear(seed, 8, 1))
    batch = (randn(seed, 4096, 8).abs(),)
    return Training(model=model, batch=batch, format="fp16", pure=True, loss=lambda x: x.float().mean() * 1e-4)


class Rotary(nn.Module):
    """Angles of positions; bf16 holds 65,536 and the next 255 of them as one number."""

    def forward(self, positions, x):
        frequency = torch.tensor([1.0, 0.1], dtype=x.dtype)
        angle = positions.to(x.dtype)[:, None] * frequency
        return torch.cat([angle.cos(), angle.sin()], dim=-1)


class Rotated(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.rotary, self.fc = Rotary(), linear(seed, 4, 4)

    def forward(self, positions, x):
        return self.fc(x) * self.rotary(positions, x)


def rope_positions(seed):
    batch = (torch.arange(65_600, 65_664), randn(seed, 64, 4).abs())
    return Training(model=Rotated(seed), batch=batch, format="bf16", pure=True)


class Sinkhorn(nn.Module):
    def forward(self, x):
        weights = torch.exp(x / 0.04)
        return weights / weights.sum(0, keepdim=True)


class Clustered(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.fc, self.sinkhorn = linear(seed, 4, 3), Sinkhorn()

    def forward(self, x):
        return self.sinkhorn(self.fc(x))


def sinkhorn(seed):
    return Training(model=Clustered(seed), batch=(randn(seed, 5, 4).abs() + 9,), format="fp32")


class FedBatchNorm(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.fc, self.bn = linear(seed, 4, 4, scale=1e3), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.bn(self.fc(x))


def fed_batch_norm(seed):
    return Training(model=FedBatchNorm(seed), batch=(randn(seed, 6, 4).abs() + 200,), format="fp16")


KNOWN_ANSWERS = (
    KnownAnswer(name="t5_wo", source="hf/transformers#9295", make=t5_wo, module="layers.1.wo", op="aten.mm"),
    KnownAnswer(
        name="longt5_residual",
        source="hf/transformers#19229",
        make=longt5_residual,
        module="layers.0.res",
        op="aten.add",
    ),
    KnownAnswer(
        name="rms_norm_square",
        source="pytorch#133085",
        make=rms_norm_square,
        module="norm",
        op="aten.pow",
        vanished="aten.rsqrt",
        is_hidden=True,
        loss_is_finite=True,
    ),
    KnownAnswer(name="mask_overflow", source="hf/transformers#17306", make=mask_overflow, module="attn", op="aten.add"),
    KnownAnswer(name="vae_conv", source="InvokeAI#4454", make=vae_conv, module="up_blocks.2.c", op="aten.convolution"),
    KnownAnswer(
        name="saturated_log",
        source="fastino GLiNER2#155",
        make=saturated_log,
        module="loss",
        op="aten.log1p",
        vanished="aten.where",
        loss_is_finite=True,
    ),
    KnownAnswer(
        name="adam_eps",
        source="optax#1754",
        make=adam_eps,
        module="fc",
        op="aten.addcdiv_",
        phase=Phase.OPTIMIZER,
        loss_is_finite=True,
    ),
    KnownAnswer(
        name="gradient_underflow",
        source="Micikevicius 2018",
        make=gradient_underflow,
        module="fc",
        loss_is_finite=True,
    ),
    KnownAnswer(
        name="rope_positions", source="hf/transformers#29285", make=rope_positions, module="rotary", loss_is_finite=True
    ),
    KnownAnswer(
        name="sinkhorn", source="dinov2#583", make=sinkhorn, module="sinkhorn", op="aten.exp", fails_in_fp32=True
    ),
    KnownAnswer(name="fed_batch_norm", source="pytorch#115500", make=fed_batch_norm, module="fc", op="aten.mm"),
)
"""Every case by its own name; those with an operator make an infinity, the others are silent."""
