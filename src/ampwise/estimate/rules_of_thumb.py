"""Memory of a training step from the number of parameters alone: bytes a parameter, times parameters.

Mixed precision by autocast halves what the forward pass saves, and nothing else: parameters, gradients and optimizer
state stay in fp32 (Micikevicius et al. 2018, section 3). ZeRO's stages divide by the number of GPUs what they share
(Rajbhandari et al. 2020, section 5); FSDP's full sharding is stage 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType
from typing import Final, assert_never

from ampwise._base.errors import UsageError
from ampwise._base.suggest import not_one_of
from ampwise.records.estimate import Estimate
from ampwise.records.memory import CategoryBytes, MemoryCategory


class States(StrEnum):
    """In which format parameters, gradients and optimizer state are kept."""

    FP32 = "fp32"
    """All in fp32, as under autocast."""
    MASTER = "master"
    """Parameters and gradients in 16 bits, master weights and optimizer state in fp32."""
    PURE = "pure"
    """All in 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRow:
    """What an optimizer keeps of every parameter."""

    name: str
    num_states: int
    """Numbers it keeps a parameter."""
    state_bits: int | None = None
    """Bits of each, where it has a format of its own."""


_OPTIMIZERS = (
    OptimizerRow(name="sgd", num_states=0),
    OptimizerRow(name="momentum", num_states=1),
    OptimizerRow(name="adam", num_states=2),
    OptimizerRow(name="adamw", num_states=2),
    OptimizerRow(name="adam8bit", num_states=2, state_bits=8),
    OptimizerRow(name="adagrad", num_states=1),
    OptimizerRow(name="rmsprop", num_states=1),
    OptimizerRow(name="lion", num_states=1),
)
OPTIMIZERS: Final[Mapping[str, OptimizerRow]] = MappingProxyType({row.name: row for row in _OPTIMIZERS})
"""Every optimizer by its name. ``sgd`` is without momentum."""

_BITS: Final = {"fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16}
"""Bits of an activation; tf32 is a way to multiply, and stores fp32."""
BASE_BITS: Final = (32, 16, 8, 4)
"""What a frozen base may be kept in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a rule of thumb needs to know of a training.

    Raises:
        UsageError: the numbers contradict each other; all contradictions are named.
    """

    num_params: int
    """All parameters, frozen ones included."""
    num_trainable: int | None = None
    """Those that are trained; None means all."""
    optimizer: str = "adam"
    activation_bytes: int = 0
    """What the forward pass saves in fp32; mixed precision halves it."""
    states: States = States.FP32
    base_bits: int | None = None
    """Bits a frozen parameter is kept in; None means as the trained ones."""
    num_shards: int = 1
    """GPUs that share the states."""
    zero_stage: int = 3
    """What they share: optimizer state (1), gradients too (2), parameters too (3, as FSDP)."""

    def __post_init__(self) -> None:
        trainable = self.num_params if self.num_trainable is None else self.num_trainable
        checks = {
            f"--params {self.num_params}: a model has at least one parameter": self.num_params >= 1,
            f"--trainable {trainable}: from 1 up to all {self.num_params} parameters": (
                1 <= trainable <= max(self.num_params, 1)
            ),
            not_one_of(self.optimizer, OPTIMIZERS, kind="optimizer"): self.optimizer in OPTIMIZERS,
            f"--base-bits {self.base_bits}: one of {', '.join(map(str, BASE_BITS))}": (
                self.base_bits is None or self.base_bits in BASE_BITS
            ),
            f"--shards {self.num_shards}: at least 1": self.num_shards >= 1,
            f"--zero {self.zero_stage}: 1, 2 or 3": self.zero_stage in {1, 2, 3},
            "--base-bits is of frozen parameters: say with --trainable how many are trained": (
                self.base_bits is None or trainable < self.num_params
            ),
        }
        wrong = [text for text, is_right in checks.items() if not is_right]
        if wrong:
            raise UsageError("; ".join(wrong))

    @property
    def trained(self) -> int:
        """How many parameters are trained."""
        return self.num_params if self.num_trainable is None else self.num_trainable


def estimate_by_thumb(sizes: Sizes, *, precision: str = "fp32", capacity_bytes: int | None = None) -> Estimate:
    """How much memory a training step takes, from its sizes alone.

    Args:
        sizes: The model's, the optimizer's and the activations'.
        precision: The compute format: ``fp32``, ``tf32``, ``bf16`` or ``fp16``.
        capacity_bytes: What the GPU can hold.

    Raises:
        UsageError: the precision is none of those.
    """
    if precision not in _BITS:
        raise UsageError(not_one_of(precision, _BITS, kind="precision"))
    by_category = {
        MemoryCategory.PARAMETER: _parameters(sizes),
        MemoryCategory.GRADIENT: _shared(_trained_bytes(sizes), sizes, from_stage=2),
        MemoryCategory.OPTIMIZER_STATE: _shared(_optimizer_bytes(sizes), sizes, from_stage=1),
        MemoryCategory.ACTIVATION: sizes.activation_bytes * _BITS[precision] // 32,
    }
    return Estimate(
        precision=precision,
        allocated_bytes=sum(by_category.values()),
        reserved_bytes=None,
        categories=tuple(CategoryBytes(category=one, bytes=size) for one, size in by_category.items()),
        capacity_bytes=capacity_bytes,
        assumptions=tuple(_assumptions(sizes, precision)),
    )


def _parameters(sizes: Sizes) -> int:
    frozen = sizes.num_params - sizes.trained
    bits = sizes.base_bits if sizes.base_bits is not None else _state_bits(sizes.states)
    return _shared(Fraction(sizes.trained * _state_bits(sizes.states) + frozen * bits, 8), sizes, from_stage=3)


def _trained_bytes(sizes: Sizes) -> Fraction:
    return Fraction(sizes.trained * _state_bits(sizes.states), 8)


def _optimizer_bytes(sizes: Sizes) -> Fraction:
    row = OPTIMIZERS[sizes.optimizer]
    bits = row.num_states * (row.state_bits or (16 if sizes.states is States.PURE else 32))
    master = 32 if sizes.states is States.MASTER else 0
    return Fraction(sizes.trained * (bits + master), 8)


def _state_bits(states: States) -> int:
    match states:
        case States.FP32:
            return 32
        case States.MASTER | States.PURE:
            return 16
        case _:
            assert_never(states)


def _shared(num_bytes: Fraction, sizes: Sizes, *, from_stage: int) -> int:
    """One GPU's part, rounded up to whole bytes."""
    share = num_bytes / sizes.num_shards if sizes.zero_stage >= from_stage else num_bytes
    return -(-share.numerator // share.denominator)


def _assumptions(sizes: Sizes, precision: str) -> list[str]:
    said = ["a rule of thumb: no workspaces, no temporaries, no fragmentation; run it on a script for those"]
    if not sizes.activation_bytes:
        said.append("activations are left out: they depend on the batch; give theirs in fp32 with --activations")
    elif _BITS[precision] < 32:
        said.append(f"{precision} halves the activations and nothing else")
    if sizes.base_bits is not None and sizes.base_bits < 16:
        said.append("the quantised base's scales are left out: 0.13 bits a parameter with double quantisation (QLoRA)")
    if sizes.num_shards > 1:
        said.append(f"one of {sizes.num_shards} GPUs; gathered copies of the parameters in use are left out")
    return said
