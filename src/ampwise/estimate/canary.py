"""Whether the installed torch can be made to believe in a GPU: tried on two operators whose bytes are known."""

import torch

from ampwise._base.errors import CannotRunError
from ampwise.estimate.imagine import imagined
from ampwise.estimate.order import GpuSpec
from ampwise.observe.events import EventBus

_GPU = GpuSpec(name="canary", compute_capability=(8, 0), total_bytes=2**34, context_bytes=0)
_SIZE = 512
_WEIGHT_BYTES = _SIZE * _SIZE * 4


def check_mechanism() -> None:
    """Run a linear layer's forward and backward pass under autocast, on nothing.

    Raises:
        CannotRunError: dtypes, devices or bytes are not what a GPU's would be; the text says which.
    """
    try:
        wrong = _try()
    except Exception as error:
        raise CannotRunError(f"{_REFUSAL}: {type(error).__name__}: {error}") from error
    if wrong:
        raise CannotRunError(f"{_REFUSAL}: {'; '.join(wrong)}")


_REFUSAL = (
    f"torch {torch.__version__} cannot be made to train on a GPU that is not there, so nothing can be estimated from "
    "a script; estimate from sizes instead: --params"
)


def _try() -> list[str]:
    with imagined(_GPU, bus=EventBus(), has_workspaces=False) as imagination:
        weight = torch.zeros(_SIZE, _SIZE, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = torch.zeros(8, _SIZE, device="cuda") @ weight
        output.sum().backward()
        # the weight, and its gradient in bf16 and in fp32; its copy in bf16 went with the forward pass
        expected = _WEIGHT_BYTES * 2 + _WEIGHT_BYTES // 2
        peak = imagination.ledger.allocator.peak_allocated_bytes
        checks = {
            f"autocast gave {output.dtype}": output.dtype is torch.bfloat16,
            f"the result lies on {output.device}": output.device == torch.device("cuda", 0),
            f"the gradient is {weight.grad}": weight.grad is not None and weight.grad.dtype is torch.float32,
            f"the peak is {peak} bytes": expected <= peak <= expected + _WEIGHT_BYTES // 4,
        }
    return [text for text, is_right in checks.items() if not is_right]
