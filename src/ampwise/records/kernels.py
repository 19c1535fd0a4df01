"""Where the time of one training step went: operators, the device's kernels, and matrix products."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ampwise.records.checks import CHECKS


class KernelKind(StrEnum):
    """What a kernel or operator does, as far as its name tells."""

    MATMUL = "matmul"
    CONV = "conv"
    ATTENTION = "attention"
    NORM = "norm"
    """Normalisation and softmax."""
    REDUCTION = "reduction"
    ELEMENTWISE = "elementwise"
    CAST = "cast"
    """Copies a tensor into another dtype."""
    COPY = "copy"
    """Moves numbers without changing them: to another device, layout or place."""
    OPTIMIZER = "optimizer"
    """Of a fused or multi-tensor optimizer."""
    COMMUNICATION = "communication"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """One operator's own time, without that of the operators it called."""

    __pydantic_config__: ClassVar = CHECKS

    op: str
    """torch's own name: ``aten.mm``."""
    kind: KernelKind
    dtype: str
    """The dtypes of its floating-point tensors: ``bf16``, ``bf16+fp32``; empty where it has none."""
    count: int
    host_ms: float
    device_ms: float | None = None
    """Of the kernels it launched; None on a CPU, where ``host_ms`` is the computation's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """One kernel of the device's."""

    __pydantic_config__: ClassVar = CHECKS

    name: str
    kind: KernelKind
    count: int
    device_ms: float
    tensor_cores: bool | None
    """Whether its name says that it computes on tensor cores; None where products are none of its business."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """Matrix products of one shape and dtype; a convolution is one over its patches."""

    __pydantic_config__: ClassVar = CHECKS

    op: str
    dtype: str
    """The dtype it is computed in: ``fp32``, ``bf16``; several joined by ``+`` where its operands differ."""
    m: int
    n: int
    k: int
    """``[m, k] @ [k, n]``."""
    batch: int
    count: int
    ms: float
    """Of the kernels on a GPU, of the operator on a CPU."""
    padded: tuple[int, int, int] | None = None
    """``m, n, k`` rounded up to multiples of 8; None where they are already."""
    groups: int = 1
    """Of a convolution."""
    num_spatial_dims: int = 0
    """Of a convolution: 3 for ``Conv3d``; 0 of a plain product."""

    @property
    def num_flops(self) -> float:
        """Floating-point operations of all calls."""
        return 2.0 * self.m * self.n * self.k * self.batch * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Tf32Switches:
    """What torch's switches for TF32 said in the step; they matter on a GPU."""

    __pydantic_config__: ClassVar = CHECKS

    matmul: str
    """``ieee``, ``tf32``, or ``none``: torch's default, which is IEEE for products."""
    conv: str
    """The same of convolutions, whose default is TF32."""
    clash: str | None = None
    """Which old and new switches disagree, so that reading one raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """One step under torch's profiler."""

    __pydantic_config__: ClassVar = CHECKS

    step: int | None = None
    """Index of the step; None where it could not be profiled."""
    device: str = "cpu"
    """``cuda`` where kernels were seen."""
    device_name: str = ""
    instructions: str = ""
    """On a CPU: the widest vector instructions torch computes with, ``AVX512`` say."""
    wall_ms: float = 0.0
    """From the step's start to its end, under the profiler."""
    operators: tuple[OperatorTime, ...] = ()
    """The largest first, at most a hundred."""
    kernels: tuple[KernelTime, ...] = ()
    """On a GPU; the largest first, at most a hundred."""
    products: tuple[MatrixProduct, ...] = ()
    """The largest first, at most a hundred."""
    num_operators: int = 0
    num_kernels: int = 0
    """Launches, on a GPU."""
    operator_ms: float = 0.0
    """All operators' own time on the host."""
    device_busy_ms: float | None = None
    """How long some kernel was running; None on a CPU."""
    cast_ms: float = 0.0
    """Of casts: on a GPU of their kernels."""
    product_ms: float = 0.0
    """Of matrix products, convolutions and attention: on a GPU of their kernels."""
    tensor_core_ms: float | None = None
    """Of kernels on tensor cores; None on a CPU."""
    kernel_bytes: int = 0
    """What the operators read and wrote, as the sizes of their tensors say; views move nothing."""
    cost_ms: float = 0.0
    """What the profiler added to the step: the time by which it was longer than the median of those before it."""
    tf32: Tf32Switches | None = None
    note: str | None = None

    @property
    def work_ms(self) -> float:
        """Time in which the step's numbers were computed."""
        return self.operator_ms if self.device_busy_ms is None else self.device_busy_ms

    @property
    def idle_share(self) -> float | None:
        """Which share of the step nothing was computed in, without the time that the profiler itself took.

        The host was busy with Python, or waited for data. On a CPU the dispatcher's share of an operator's time counts
        as computing.
        """
        wall_ms = self.wall_ms - self.cost_ms
        return max(0.0, 1 - self.work_ms / wall_ms) if wall_ms > 0 else None

    @property
    def cast_share(self) -> float | None:
        """Which share of the computing time went into casts."""
        return self.cast_ms / self.work_ms if self.work_ms else None

    @property
    def tensor_core_share(self) -> float | None:
        """Which share of the products' time ran on tensor cores; None on a CPU or without products."""
        if self.tensor_core_ms is None or not self.product_ms:
            return None
        return min(1.0, self.tensor_core_ms / self.product_ms)
