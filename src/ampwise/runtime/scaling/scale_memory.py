"""What a moving scale remembers beside itself and its growth tracker."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ampwise.runtime.scaling.headroom import Statistics
from ampwise.runtime.scaling.headroom_update import from_device, to_device
from ampwise.runtime.scaling.scale_update import ScaleState
from ampwise.runtime.scaling.scaler_options import ScalerOptions


class ScaleMemory:
    """Overflows in a row, and headroom's statistics: numbers until a device is known, then tensors on it.

    A copy of it, or its file, holds numbers again.

    Attributes:
        num_overflows: 0-dim int32; None until a step was counted.
        statistics: as ``headroom_update.to_device`` makes them; None until then, or without headroom.
    """

    def __init__(self, options: ScalerOptions) -> None:
        self._counts_overflows, self._measures = options.hysteresis > 1, options.headroom is not None
        self._first_overflows, self._first_statistics = options.num_overflows, options.statistics
        self.forget()

    def forget(self) -> None:
        """Start from the numbers again, at the next step."""
        self.num_overflows: Tensor | None = None
        self.statistics: Tensor | None = None

    def with_scale(self, scale: Tensor, growth_tracker: Tensor) -> ScaleState:
        """All that a step moves, on the scale's device."""
        if self.num_overflows is None:
            self.num_overflows = torch.full((), self._first_overflows, dtype=torch.int32, device=scale.device)
        if self._measures and self.statistics is None:
            self.statistics = to_device(self._first_statistics, scale.device)
        return ScaleState(
            scale=scale, growth_tracker=growth_tracker, num_overflows=self.num_overflows, statistics=self.statistics
        )

    def state(self) -> dict[str, Any]:
        """Entries of a checkpoint: those that the scale's rules use. Waits for the device."""
        num_overflows, statistics = self._read()
        overflows = {"num_overflows": num_overflows} if self._counts_overflows else {}
        return {**overflows, **({"headroom": asdict(statistics)} if self._measures else {})}

    def load(self, state: dict[str, Any]) -> None:
        """Take over the entries that ``state`` gave; those that are missing start anew."""
        self._first_overflows = int(state.get("num_overflows", 0))
        self._first_statistics = Statistics(**state.get("headroom", {}))
        self.forget()

    def __getstate__(self) -> dict[str, Any]:
        num_overflows, statistics = self._read()
        numbers = {"_first_overflows": num_overflows, "_first_statistics": statistics}
        return {**self.__dict__, **numbers, "num_overflows": None, "statistics": None}

    def _read(self) -> tuple[int, Statistics]:
        overflows, statistics = self.num_overflows, self.statistics
        return (
            self._first_overflows if overflows is None else int(overflows),
            self._first_statistics if statistics is None else from_device(statistics),
        )
