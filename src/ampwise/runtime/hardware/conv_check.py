"""Checks that a GPU computes fp16 convolutions right: GTX 16xx and kin do not."""

from functools import cache

import torch
from torch.nn import functional

from ampwise.interpose.internal import internal


@cache
def find_wrong_conv(name: str) -> str | None:
    """What is wrong with an fp16 convolution on device ``name``, forward or backward; None if nothing is.

    GTX 16xx and kin give NaN (yolov5#7908, pytorch#58123), and a forward check alone can pass (ultralytics#5294).
    Kept for the life of the process, as ``probe`` is.
    """
    device = torch.device(name)
    generator = torch.Generator().manual_seed(0)
    with internal(), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        x = torch.randn(4, 16, 32, 32, generator=generator, device="cpu").to(device)
        weight = (torch.randn(32, 16, 3, 3, generator=generator, device="cpu") / 12).to(device).requires_grad_()
        exact = _conv_and_gradient(x, weight)
        try:
            half = _conv_and_gradient(x.half(), weight.detach().half().requires_grad_())
        except RuntimeError as error:
            return f"an fp16 convolution failed: {next(iter(str(error).splitlines()), '')}"
        return next((fault for h, e in zip(half, exact, strict=True) if (fault := _fault(h, e))), None)


def _conv_and_gradient(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = functional.conv2d(x, weight, padding=1)
    (gradient,) = torch.autograd.grad(y.float().square().mean(), weight)
    return y.detach(), gradient


def _fault(half: torch.Tensor, exact: torch.Tensor) -> str | None:
    if not bool(half.isfinite().all()):
        return "an fp16 convolution gave values that are not finite"
    error = float((half.float() - exact).norm() / exact.norm())
    return f"an fp16 convolution was off by {error:.0%}" if error > 0.05 else None
