"""What a precision means for a forward and for a backward pass."""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ampwise.compat.tf32 import tf32_enabled
from ampwise.plan.presets import get_precision
from ampwise.runtime.hardware.device import Choice, choose_precision
from ampwise.runtime.ranks.distributed import Agreement
from ampwise.runtime.scaling.loss_scale import DynamicLossScale, LossScale, NoLossScale, StaticLossScale, get_loss_scale

_AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """One of fp32, tf32, bf16 and fp16 on one kind of device."""

    precision: str
    device_type: str

    @property
    def casts(self) -> bool:
        """Whether autocast casts weights in it."""
        return self.precision in _AUTOCAST_DTYPES

    def forward(self) -> AbstractContextManager[object]:
        """The context of the forward pass and the loss."""
        dtype = _AUTOCAST_DTYPES.get(self.precision)
        return self._with_products(torch.autocast(self.device_type, dtype=dtype, enabled=dtype is not None))

    def backward(self) -> AbstractContextManager[object]:
        """The context of the backward pass: operators run in the formats the forward pass chose, so nothing casts."""
        if torch.is_autocast_enabled(self.device_type):
            return self._with_products(torch.autocast(self.device_type, enabled=False))
        return self._with_products(nullcontext())

    def loss_scale(self) -> LossScale:
        """The loss scale this precision needs."""
        return DynamicLossScale() if get_precision(self.precision).needs_loss_scaling else NoLossScale()

    def choose_loss_scale(self, given: Any) -> tuple[LossScale, Mapping[str, LossScale]]:
        """The common loss scale, and those of named losses, that a user means by ``given``; None is this precision's.

        Raises:
            UsageError: it is no loss scale, no name of one, and no dict of those.
        """
        own = self.loss_scale()
        if not isinstance(given, Mapping):
            return own if given is None else get_loss_scale(given), {}
        common = StaticLossScale(scale=1.0) if isinstance(own, NoLossScale) else own
        return common, {str(name): get_loss_scale(one) for name, one in given.items()}

    def _with_products(self, region: AbstractContextManager[object]) -> AbstractContextManager[object]:
        """The region, and in it how the hardware takes products of fp32 numbers."""
        return _in_tf32(region) if self.precision == "tf32" else region


@contextmanager
def _in_tf32(region: AbstractContextManager[object]) -> Generator[None]:
    with tf32_enabled(True), region:
        yield


def choose_together(precision: str, *, device: torch.device, peers: Agreement | None) -> Choice:
    """``choose_precision``; ``auto`` is measured, and so perhaps not the same on every rank: the first one's holds.

    Raises:
        UsageError: as ``choose_precision``.
        CannotRunError: as ``choose_precision``.
    """
    mine = choose_precision(precision, device=device)
    first = mine if peers is None else peers.first(mine, near=device)  # whatever a rank was given, it takes part
    return first if precision == "auto" else mine
