"""What ampwise uses of autograd's private side: the running pass, the graph's leaves, the order of hooks."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor
from torch._C import _current_graph_task_id
from torch.utils.hooks import RemovableHandle


def is_inside_backward() -> bool:
    """Whether this thread runs a backward pass: a pass started now is nested in it."""
    return _current_graph_task_id() != -1


def leaves_of(roots: Iterable[Any]) -> Iterator[Tensor]:
    """The leaves that a backward pass from ``roots`` accumulates into, each once; a root that is a leaf too."""
    seen: set[Any] = set()
    waiting: list[Any] = []
    for root in roots:
        if isinstance(root, Tensor):
            if root.grad_fn is None and root.requires_grad:
                yield root
            node = root.grad_fn
        else:
            node = root.node
        if node is not None and node not in seen:
            seen.add(node)
            waiting.append(node)
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


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
