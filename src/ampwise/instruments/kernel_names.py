"""What the names of kernels and operators tell: rows of words, the first that is in a name decides."""

from typing import Final

from ampwise.records.kernels import KernelKind

_KERNELS: Final[tuple[tuple[str, KernelKind], ...]] = (
    ("nccl", KernelKind.COMMUNICATION),
    ("multi_tensor_apply", KernelKind.OPTIMIZER),
    ("fusedadam", KernelKind.OPTIMIZER),
    ("flash", KernelKind.ATTENTION),
    ("fmha", KernelKind.ATTENTION),
    ("sdpa", KernelKind.ATTENTION),
    ("attention", KernelKind.ATTENTION),
    ("softmax", KernelKind.NORM),
    ("layer_norm", KernelKind.NORM),
    ("layernorm", KernelKind.NORM),
    ("group_norm", KernelKind.NORM),
    ("groupnorm", KernelKind.NORM),
    ("batch_norm", KernelKind.NORM),
    ("rms_norm", KernelKind.NORM),
    ("bn_fw", KernelKind.NORM),
    ("bn_bw", KernelKind.NORM),
    ("conv", KernelKind.CONV),
    ("scudnn", KernelKind.CONV),
    ("winograd", KernelKind.CONV),
    ("fprop", KernelKind.CONV),
    ("dgrad", KernelKind.CONV),
    ("wgrad", KernelKind.CONV),
    ("gemm", KernelKind.MATMUL),
    ("gemv", KernelKind.MATMUL),
    ("nvjet", KernelKind.MATMUL),
    ("splitk", KernelKind.MATMUL),
    ("cublas", KernelKind.MATMUL),
    ("cutlass", KernelKind.MATMUL),
    ("dot_kernel", KernelKind.MATMUL),
    ("memcpy", KernelKind.COPY),
    ("memset", KernelKind.COPY),
    ("copy_kernel", KernelKind.COPY),
    ("catarray", KernelKind.COPY),
    ("gather", KernelKind.COPY),
    ("scatter", KernelKind.COPY),
    ("index", KernelKind.COPY),
    ("reduce", KernelKind.REDUCTION),
    ("elementwise", KernelKind.ELEMENTWISE),
    ("triton_poi", KernelKind.ELEMENTWISE),
    ("triton_red", KernelKind.REDUCTION),
    ("triton_per", KernelKind.REDUCTION),
)
_OPERATORS: Final[tuple[tuple[str, KernelKind], ...]] = (
    ("attention", KernelKind.ATTENTION),
    ("convolution", KernelKind.CONV),
    ("conv", KernelKind.CONV),
    ("addcmul", KernelKind.ELEMENTWISE),
    ("mm", KernelKind.MATMUL),
    ("linear", KernelKind.MATMUL),
    ("matmul", KernelKind.MATMUL),
    ("norm", KernelKind.NORM),
    ("softmax", KernelKind.NORM),
    ("fused_", KernelKind.OPTIMIZER),
    ("foreach", KernelKind.OPTIMIZER),
    ("copy", KernelKind.COPY),
    ("clone", KernelKind.COPY),
    ("cat", KernelKind.COPY),
    ("stack", KernelKind.COPY),
    ("index", KernelKind.COPY),
    ("embedding", KernelKind.COPY),
    ("gather", KernelKind.COPY),
    ("scatter", KernelKind.COPY),
    ("sum", KernelKind.REDUCTION),
    ("mean", KernelKind.REDUCTION),
    ("max", KernelKind.REDUCTION),
    ("min", KernelKind.REDUCTION),
    ("loss", KernelKind.REDUCTION),
    ("all_reduce", KernelKind.COMMUNICATION),
    ("c10d", KernelKind.COMMUNICATION),
)
_ELEMENTWISE: Final = ("add", "mul", "div", "sub", "relu", "gelu", "silu", "sigmoid", "tanh", "exp", "log", "sqrt")
_PLAIN_CORES: Final = ("sgemm", "dgemm", "simt", "scudnn", "gemv", "gemmk1", "gemmsn", "dot_kernel", "winograd")
_TENSOR_CORES: Final = (
    "16816", "1688", "884", "8816", "tensorop", "tensor_op", "hmma", "wgmma", "xmma", "nvjet", "tf32",
    "gemm_bf16", "gemm_f16", "bf16gemm", "h16816", "flash", "fmha_cutlass", "fmhacutlass", "sm90_", "sm100_",
)  # fmt: skip
"""From CUTLASS's, cuBLAS's, cuDNN's and FlashAttention's names: the instruction's shape (16x8x16), or its class."""


def kernel_kind(name: str) -> KernelKind:
    """What a kernel does, as its name tells."""
    lowered = name.lower()
    return next((kind for word, kind in _KERNELS if word in lowered), KernelKind.OTHER)


def operator_kind(name: str) -> KernelKind:
    """What an operator does, as its name tells."""
    lowered = name.rpartition("::")[2].lower() if not name.startswith("c10d") else name
    found = next((kind for word, kind in _OPERATORS if word in lowered), None)
    if found is None:
        is_plain = any(lowered.startswith(word) for word in _ELEMENTWISE)
        return KernelKind.ELEMENTWISE if is_plain else KernelKind.OTHER
    return found


def uses_tensor_cores(name: str) -> bool | None:
    """Whether a kernel computes on tensor cores, as its name tells; None for one that multiplies no matrices."""
    if kernel_kind(name) not in {KernelKind.MATMUL, KernelKind.CONV, KernelKind.ATTENTION}:
        return None
    lowered = name.lower()
    if any(word in lowered for word in _PLAIN_CORES):
        return False
    return any(word in lowered for word in _TENSOR_CORES)
