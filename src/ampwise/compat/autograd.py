"""What ampwise uses of autograd's private side: the running pass, the graph's leaves, the order of hooks."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch._C import _current_graph_task_id
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle


def is_inside_backward() -> bool:
    """Whether this thread runs a backward pass: a pass started now is nested in it."""
    return _current_graph_task_id() != -1


def leaves_of(roots: Iterable[Any]) -> list[Tensor]:
    """The leaves that a backward pass from ``roots`` (tensors or gradient edges) accumulates into, each once."""
    leaves: list[Tensor] = []
    seen: set[Any] = {None}
    waiting = [_node_of(root) for root in roots]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        following = node.next_functions
        if following:
            waiting += [one for one, _ in following if one not in seen]
        elif (leaf := getattr(node, "variable", None)) is not None:
            leaves.append(leaf)
    return leaves


def _node_of(root: Any) -> Any:
    """The graph's node that the root's gradient goes to."""
    if not isinstance(root, Tensor):
        return root.node
    return get_gradient_edge(root).node if root.requires_grad else None


def register_first_hook(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Register ``hook`` on a leaf before the hooks it has."""
    hooks = tensor._backward_hooks
    if not hooks:
        return tensor.register_hook(hook)
    # torch calls them in the order of insertion, which OrderedDict.move_to_end does not change
    later = list(hooks.items())
    handle = RemovableHandle(hooks)
    hooks.clear()
    hooks[handle.id] = hook
    hooks.update(later)
    return handle


def has_hook(tensor: Tensor, handle: RemovableHandle) -> bool:
    """Whether the hook of ``handle`` is still among the tensor's."""
    hooks = tensor._backward_hooks
    return hooks is not None and handle.id in hooks


def remove_hook(tensor: Tensor, handle: RemovableHandle) -> None:
    """Remove the hook; a tensor with none left is as it was before its first."""
    handle.remove()
    if not tensor._backward_hooks:
        tensor._backward_hooks = None


def version_of(tensor: Tensor) -> tuple[int, int]:
    """Changes whenever the tensor is written in place or given other data."""
    return tensor._version, tensor.data_ptr()
