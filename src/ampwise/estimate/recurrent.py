"""Recurrent layers as cuDNN computes them: one operator a layer stack, with a reserve that the backward pass needs.

cuDNN tells the reserve's size only where a GPU is; what stands here is an estimate of it.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from ampwise.compat.dispatch import find_overload
from ampwise.estimate.notes import Notes

_RNN: Final[Any] = find_overload("_cudnn_rnn")
_MODES: Final = MappingProxyType({"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3})
"""cuDNN's numbers: ``CUDNN_RNN_RELU`` and so on."""
_RESERVED: Final = MappingProxyType({0: 2, 1: 2, 2: 6, 3: 5})
"""Numbers kept of every step, sequence, direction and hidden unit: the gates, and the state."""


def recurrent_composites(notes: Notes) -> dict[str, Callable[..., Any]]:
    """The layers' operators, by overload, as cuDNN's one."""
    return {
        f"{name}.{kind}": _layers(mode, notes, is_packed=kind == "data")
        for name, mode in _MODES.items()
        for kind in ("input", "data")
    }


def _layers(mode: int, notes: Notes, *, is_packed: bool) -> Callable[..., Any]:
    def layers(tensor: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        batch_sizes, rest = (arguments[0].tolist(), arguments[1:]) if is_packed else ([], arguments)
        hidden, weights, has_biases, num_layers, dropout, is_training, is_bidirectional = rest[:7]
        batch_first = False if is_packed else rest[7]
        is_lstm = mode == _MODES["lstm"]
        state, cell = (hidden[0], hidden[1]) if is_lstm else (hidden, None)
        notes.assume("the reserve of a recurrent layer is estimated")
        size = (cell if cell is not None else state).size(-1)
        projected = state.size(-1) if is_lstm and state.size(-1) != size else 0
        stride = (4 if has_biases else 2) + (projected > 0)
        made = _RNN(
            tensor, weights, stride, None, state, cell, mode, size, projected, num_layers,
            batch_first, dropout, is_training, is_bidirectional, batch_sizes, None,
        )  # fmt: skip
        return made[:3] if is_lstm else made[:2]

    return layers


def _forward(tensor: Tensor, weights: Sequence[Tensor], *arguments: Any) -> tuple[Tensor, ...]:
    """Outputs, last states, the reserve, and the weights' buffer: they lie in one already."""
    _, _, state, cell, mode, size, projected, num_layers, batch_first, _, is_training, is_bidirectional, sizes, _ = (
        arguments
    )
    directions = 1 + is_bidirectional
    width = (projected or size) * directions
    num_steps = sum(sizes) if sizes else tensor.size(0) * tensor.size(1)
    output = tensor.new_empty((*tensor.shape[:-1], width))
    if not sizes and not batch_first:
        output = tensor.new_empty((tensor.size(0), tensor.size(1), width))
    last = tensor.new_empty(state.shape)
    last_cell = tensor.new_empty(0 if cell is None else cell.shape)
    reserved = _RESERVED[mode] * num_steps * size * directions * num_layers * tensor.element_size()
    reserve = tensor.new_empty(reserved if is_training else 0, dtype=torch.uint8)
    return output, last, last_cell, reserve, weights[0].new_empty(0)


def _backward(tensor: Tensor, weights: Sequence[Tensor], *arguments: Any) -> tuple[Any, ...]:
    """Gradients of the input, the states, and the weights, which lie in one buffer."""
    _, _, state, cell = arguments[:4]
    is_wanted = arguments[-1]
    flat = tensor.new_empty(sum(one.numel() for one in weights))
    parts = flat.split([one.numel() for one in weights])
    return (
        tensor.new_empty(tensor.shape) if is_wanted[0] else None,
        state.new_empty(state.shape),
        None if cell is None else cell.new_empty(cell.shape),
        [part.view(one.shape) for part, one in zip(parts, weights, strict=True)],
    )


RECURRENT_KERNELS: Final[Mapping[Any, Callable[..., Any]]] = MappingProxyType(
    {_RNN: _forward, find_overload("_cudnn_rnn_backward"): _backward}
)
"""What these operators return, in shapes."""
