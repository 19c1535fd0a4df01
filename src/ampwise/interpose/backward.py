"""Rows for autograd's two entrances, and what their calls mean."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor

from ampwise.interpose.row import Row

BACKWARD = Row(
    name="torch.autograd.backward",
    owner="torch.autograd",
    attribute="backward",
    why="backward under autocast casts what autograd has cast already; Tensor.backward looks this up at call time",
    obstacle="gradient_projection",
)
GRAD = Row(
    name="torch.autograd.grad",
    owner="torch.autograd",
    attribute="grad",
    why="gradients taken by hand (penalties, meta-learning) are a backward pass too",
    obstacle="projected_attack",
)

_BACKWARD_NAMES = ("roots", "seeds", "retain_graph", "create_graph", "grad_variables", "inputs")
_GRAD_NAMES = ("roots", "inputs", "seeds")
_SPELT = {"tensors": "roots", "outputs": "roots", "grad_tensors": "seeds", "grad_outputs": "seeds"}
_RESPELT_BACKWARD = {"roots": "tensors", "seeds": "grad_tensors"}
_RESPELT_GRAD = {"roots": "outputs", "seeds": "grad_outputs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The arguments of a backward pass, whichever entrance it took."""

    roots: tuple[Any, ...]
    """Tensors or gradient edges."""
    seeds: tuple[Tensor | None, ...]
    """The gradient of each root; None: 1."""
    inputs: tuple[Any, ...] | None
    """What gradients are wanted of; None: every leaf."""
    options: Mapping[str, Any]
    """The other arguments as they came, with ``roots``, ``seeds`` and ``inputs`` as given."""

    def with_seeds(self, seeds: tuple[Tensor | None, ...]) -> Self:
        """The same pass from other gradients."""
        return replace(self, seeds=seeds, options={**self.options, "seeds": seeds})

    def run_backward(self, proceed: Callable[..., Any]) -> None:
        """Call ``torch.autograd.backward`` with these arguments."""
        proceed(**{_RESPELT_BACKWARD.get(name, name): value for name, value in self.options.items()})

    def run_grad(self, proceed: Callable[..., Any]) -> Any:
        """Call ``torch.autograd.grad`` with these arguments."""
        return proceed(**{_RESPELT_GRAD.get(name, name): value for name, value in self.options.items()})


def backward_pass(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Pass:
    """What a call of ``torch.autograd.backward`` asks for."""
    options = _named(_BACKWARD_NAMES, args, kwargs)
    old_spelling = options.pop("grad_variables", None)
    if old_spelling is not None:
        options["seeds"] = old_spelling
    return _pass(options)


def grad_pass(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Pass:
    """What a call of ``torch.autograd.grad`` asks for."""
    names = (*_GRAD_NAMES, "retain_graph", "create_graph", "only_inputs", "allow_unused", "is_grads_batched")
    return _pass(_named(names, args, kwargs))


def roots_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The tensors that a call of ``torch.autograd.backward`` starts from."""
    given = args[0] if args else kwargs.get("tensors", ())
    return tuple(root for root in _as_tuple(given) if isinstance(root, Tensor))


def _named(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(zip(names, args, strict=False))
    options.update({_SPELT.get(name, name): value for name, value in kwargs.items()})
    return options


def _pass(options: dict[str, Any]) -> Pass:
    roots = _as_tuple(options["roots"])
    seeds = options.get("seeds")
    inputs = options.get("inputs")
    return Pass(
        roots=roots,
        seeds=(None,) * len(roots) if seeds is None else _as_tuple(seeds),
        inputs=None if inputs is None else tuple(inputs.values()) if isinstance(inputs, Mapping) else _as_tuple(inputs),
        options={**options, "roots": roots},
    )


def _as_tuple(value: Any) -> tuple[Any, ...]:
    from torch.autograd.graph import GradientEdge

    # a GradientEdge is a named tuple
    return (value,) if isinstance(value, (Tensor, GradientEdge)) else tuple(value)
