"""Row for a tensor's way to numpy, which has no bfloat16."""

from collections.abc import Callable
from typing import Any

import torch

from ampwise.interpose.row import Row
from ampwise.interpose.seam import Undo, intercept

NUMPY = Row(
    name="torch.Tensor.numpy",
    owner="torch:Tensor",
    attribute="numpy",
    why="numpy has no bfloat16: a script that plots or scores its outputs raises TypeError; np.asarray comes here too",
    obstacle="numpy_view",
)


def upcast_for_numpy(*dtypes: torch.dtype) -> Undo:
    """Give numpy fp32 copies of tensors of ``dtypes`` until the undo is called."""

    def viewed(proceed: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return proceed(tensor.float() if tensor.dtype in dtypes else tensor, *args, **kwargs)

    return intercept(NUMPY, viewed)
