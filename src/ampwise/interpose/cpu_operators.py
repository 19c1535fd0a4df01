"""The operators that a tensor core computes in narrow operands and wide sums, as a CPU's overloads; plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator whose sums a tensor core takes in fp32."""

    factors: tuple[int, ...] = ()
    """Positions of the matrices that tf32 rounds; other tensors are added to their product."""
    fp32: tuple[int, ...] = ()
    """Positions of tensors that are fp32 beside narrow ones."""
    num_narrow: int | None = None
    """How many of its results come in the operands' format; None: all."""


_MATRICES = Operator(factors=(0, 1))
_ADDED = Operator(factors=(1, 2))
OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        **dict.fromkeys(("mm", "mm.out", "bmm", "bmm.out", "_convolution"), _MATRICES),
        **dict.fromkeys(("addmm", "addmm.out", "addmm_", "baddbmm", "baddbmm.out", "baddbmm_"), _ADDED),
        **dict.fromkeys(("addbmm", "addbmm.out", "addbmm_", "_addmm_activation", "_addmm_activation.out"), _ADDED),
        "convolution_backward": Operator(factors=(0, 1, 2)),
        "_scaled_dot_product_flash_attention_for_cpu": Operator(factors=(0, 1, 2), num_narrow=1),
        "_scaled_dot_product_flash_attention_for_cpu_backward": Operator(factors=(0, 1, 2, 3), fp32=(5,)),
        # input, two weights, two biases, hidden and cell state; the last result is a workspace
        "mkldnn_rnn_layer": Operator(factors=(0, 1, 2, 5), num_narrow=3),
        "mkldnn_rnn_layer_backward": Operator(factors=(0, 1, 2, 5)),
        # no matrix products: a CPU takes long for them in fp16, or sums in it, or cannot at all
        **dict.fromkeys(("addmv", "addmv.out", "addmv_"), Operator()),
        **dict.fromkeys(("pow.Tensor_Scalar", "pow.Tensor_Scalar_out", "pow_.Scalar"), Operator()),
        **dict.fromkeys(("linalg_vector_norm", "linalg_vector_norm.out"), Operator()),
        **dict.fromkeys(("avg_pool3d", "avg_pool3d.out"), Operator()),
        **dict.fromkeys(("avg_pool3d_backward", "avg_pool3d_backward.grad_input"), Operator()),
    }
)
"""By overload. Found by timing 120 operators in fp16 on a CPU: what took over thrice fp32's time, and what raised."""
