"""Where a gradient scaler asks other ranks, and what it keeps of their answers."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampwise.runtime.ranks.distributed import Agreement, Ballot, Found, Ranks


class Accord:
    """One scaler's part in what all ranks decide together; alone it decides by itself, at no cost.

    Args:
        ranks: who trains together.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._agreement: Agreement | None = None
        self._is_settled_outside = self._has_looked = False

    @contextmanager
    def settled_by_caller(self, agreement: Agreement) -> Generator[None]:
        """Within it no rank is asked: the caller settles the ballots of all optimizers together."""
        self._agreement, self._is_settled_outside = agreement, True
        try:
            yield
        finally:
            self._is_settled_outside = False

    def agreed(self, optimizer: Optimizer, found: Found, scale: Tensor) -> Found:
        """What all ranks found, where their gradients differ; one without gradients takes part."""
        if self._is_settled_outside:
            return found
        self._agreement = self.ranks.of(optimizer)
        if self._agreement is None:
            return found
        ballot = Ballot(found=found or {scale.device: torch.zeros_like(scale)}, has_gradients=bool(found))
        self._agreement.settle([ballot], device=scale.device, scale=scale, looks=not self._has_looked)
        self._has_looked = True
        return ballot.found

    def largest(self, own: Tensor | None, scale: Tensor) -> Tensor | None:
        """The largest unscaled gradient of all ranks that the last step was agreed with.

        Args:
            own: this rank's; None where it has none.
            scale: of its shape and device.
        """
        if self._agreement is None:
            return own
        return self._agreement.max(torch.zeros_like(scale) if own is None else own)

    def peers(self) -> Agreement | None:
        """All ranks that train together; None where this one trains alone.

        Raises:
            UsageError: there are several ranks, and nothing says which train together.
        """
        return self._agreement or self.ranks.peers()
