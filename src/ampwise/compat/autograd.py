"""What ampwise uses of autograd's private side: the running pass, the graph's leaves, the order of hooks."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor
from torch._C import _current_graph_task_id
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

_CAST = "ToCopyBackward0"


def is_inside_backward() -> bool:
    """Whether this thread runs a backward pass: a pass started now is nested in it."""
    return _current_graph_task_id() != -1


def leaves_of(roots: Iterable[Any]) -> list[Tensor]:
    """The leaves that a backward pass from ``roots`` (tensors or gradient edges) accumulates into, each once."""
    ends = (node for node in _nodes(roots) if not node.next_functions)
    return [leaf for node in ends if (leaf := getattr(node, "variable", None)) is not None]


def has_nested_passes(roots: Iterable[Any]) -> bool:
    """Whether a backward pass from ``roots`` runs others within it, as reentrant checkpointing does."""
    return any(node.name() == "CheckpointFunctionBackward" for node in _nodes(roots))


def queue_callback(callback: Callable[[], None]) -> None:
    """Call ``callback`` when the backward pass that now runs has ended."""
    Variable._execution_engine.queue_callback(callback)


def _nodes(roots: Iterable[Any]) -> Iterator[Any]:
    """Every node of the graph, each once."""
    seen: set[Any] = {None}
    waiting = [_node_of(root) for root in roots]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting += [one for one, _ in node.next_functions if one not in seen]


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


def graph_of(roots: Iterable[Any], *, max_nodes: int) -> tuple[int, list[Tensor]]:
    """How many nodes the graphs under ``roots`` have together, ``max_nodes`` at most, and the leaves they lead to."""
    leaves: list[Tensor] = []
    waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen: set[Any] = set(waiting)
    while waiting and len(seen) < max_nodes:
        node = waiting.pop()
        following = {one for one, _ in node.next_functions if one is not None} - seen
        seen |= following
        waiting += following
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves.append(leaf)
    return len(seen), leaves


def weight_casts(roots: Iterable[Any]) -> list[Any]:
    """The nodes that cast leaves in the graph of ``roots``."""
    casts = [node for node in _nodes(roots) if node.name() == _CAST]
    return [node for node in casts if (to := node.next_functions[0][0]) is not None and hasattr(to, "variable")]


def run_when_ready(nodes: Iterable[Any], roots: Iterable[Tensor]) -> None:
    """Let the next backward pass from ``roots`` run these nodes as soon as it can, as if they were made for it.

    Of the nodes that are ready autograd runs the one made last. Those of an earlier forward pass would come after all
    others: their gradients wait in memory, and a leaf with other uses has them added in another order.
    """
    latest = max((root.grad_fn._sequence_nr() for root in roots if root.grad_fn is not None), default=0)
    for node in nodes:
        node._set_sequence_nr(latest)
