"""DR406: matrix products whose sizes are no multiples of 8."""

from collections.abc import Iterator
from typing import Final

from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.doctor.speed import in_format, low_format, num_flops, shape_words
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.kernels import MatrixProduct

_SHARE: Final = 0.25
_LEAST_FLOPS: Final = 100_000
"""A step that multiplies less is no matter of tensor cores."""
_SHOWN: Final = 4

INFO = RuleInfo(
    id="DR406",
    name="sizes-off-8",
    severity=Severity.INFO,
    why="Tensor cores multiply tiles whose sides are multiples of 8 numbers of 16 bits. Other sizes are padded within "
    "the kernel, or run on a slower one.",
    remedy="Round batch, channels, hidden and vocabulary sizes up to multiples of 8; leave the last, smaller batch out "
    "with `DataLoader(..., drop_last=True)`.",
    evidence="NVIDIA's guide to training with mixed precision asks for multiples of 8; pytorch issues 45420, 43544.",
    bad=(
        Example(
            title="odd layers",
            source="""
import torch

model = torch.nn.Sequential(torch.nn.Linear(37, 53), torch.nn.ReLU(), torch.nn.Linear(53, 11))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(30, 37)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Where a quarter of the low format's operations are in such products: the largest, with the sizes to use."""
    format_, kernels = low_format(case), case.run.kernels
    if format_ is None or kernels is None:
        return
    products = in_format(kernels.products, format_)
    odd = sorted((one for one in products if one.padded is not None), key=lambda one: one.num_flops, reverse=True)
    share = num_flops(odd) / num_flops(products)
    if share < _SHARE or num_flops(odd) < _LEAST_FLOPS:
        return
    on_cpu = " On a CPU this costs little; on a GPU's tensor cores it does." if case.is_on_cpu else ""
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity if case.is_on_cpu else Severity.WARNING,
        confidence=Confidence.POSSIBLE if case.is_on_cpu else Confidence.LIKELY,
        message=f"{share:.0%} of the {format_} products' operations have a size that is no multiple of 8.{on_cpu}",
        evidence=f"rows x columns x inner: {'; '.join(map(_padding, odd[:_SHOWN]))}{_more(odd)}",
        remedy=f"{_sizes(odd)} {INFO.remedy}".strip(),
    )


def reassure(case: Case) -> Iterator[str]:
    """Say which share of the operations has sizes that fit."""
    format_, kernels = low_format(case), case.run.kernels
    if format_ is not None and kernels is not None:
        products = in_format(kernels.products, format_)
        share = num_flops(one for one in products if one.padded is None) / num_flops(products)
        others = "" if 1 - share < _SHARE else "; the others are too small to matter"
        yield f"{share:.0%} of the {format_} products' operations have sizes that are multiples of 8{others}"


def _padding(product: MatrixProduct) -> str:
    m, n, k = product.padded or (product.m, product.n, product.k)
    return f"{shape_words(product)} ({product.ms:.3g} ms) fits as {m}x{n}x{k}"


def _more(odd: list[MatrixProduct]) -> str:
    return f"; and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""


def _sizes(odd: list[MatrixProduct]) -> str:
    """Each odd size with the one to use, the most costly first; a convolution's inner size is channels times taps."""
    pairs = (
        (size, padded)
        for one in odd
        if one.padded is not None
        for size, padded in zip((one.m, one.n, one.k), one.padded, strict=True)
        if size != padded
    )
    shown = [f"{size} to {padded}" for size, padded in dict.fromkeys(pairs)]
    return f"Change {', '.join(shown[:_SHOWN])}." if shown else ""


RULE = Rule(info=INFO, check=check, reassure=reassure)
