"""Finds what a loop keeps from step to step: variables that hold autograd graphs, and what a step leaves live."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Self

import torch

from ampwise.compat.autograd import graph_of
from ampwise.compat.memory import gradient_of, storages_of
from ampwise.instruments.keeping_lines import keeping_line
from ampwise.interpose.internal import internal
from ampwise.observe.dtypes import tensors_in
from ampwise.observe.events import EventBus, StepOutcome
from ampwise.observe.frames import Line, user_frames, variables_of
from ampwise.observe.live import live_objects
from ampwise.records.memory import KeptTensor, StepEnd

_MAX_NODES: Final = 20_000
_MAX_ITEMS: Final = 1_000


@dataclass(slots=True)
class _Variable:
    """A variable that held a graph at the steps' ends looked at."""

    line: Line
    num_nodes: list[int] = field(default_factory=list[int])
    leaf_bytes: int = 0
    is_of_other_model: bool = False


class KeptGraphs:
    """Looks at the ends of ``steps`` for variables of the user's whose graph grows, or is of a model done with.

    A loop's ``loss`` always holds the graph of the step that has just ended; it is told only if its graph is of no
    module and no optimizer that there still is. A graph of more than 20,000 nodes is not counted further.

    Args:
        bus: Where the loop's events are published.
        steps: Indices of the steps whose ends are looked at.
    """

    def __init__(self, bus: EventBus, *, steps: Collection[int] = (2, 3, 4, 5)) -> None:
        self._bus = bus
        self._steps = steps
        self._undo = ExitStack()
        self._step = 0
        self._variables: dict[tuple[str, str], _Variable] = {}
        self._ends: list[StepEnd] = []
        self.note: str | None = None

    def __enter__(self) -> Self:
        self._undo.callback(self._bus.subscribe(StepOutcome, self._on_step))
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    @property
    def step_ends(self) -> tuple[StepEnd, ...]:
        """What was left in memory at each step's end looked at."""
        return tuple(self._ends)

    @property
    def slowed_steps(self) -> frozenset[int]:
        """Indices of the steps into whose time the looks fall: those after the steps looked at."""
        return frozenset(end.step + 1 for end in self._ends)

    def kept(self) -> tuple[KeptTensor, ...]:
        """The variables whose graph grew at every step looked at, or is of a model that is done with."""
        found = (_kept(name, variable) for (name, _), variable in self._variables.items())
        return tuple(one for one in found if one.is_growing or one.is_of_other_model)

    def _on_step(self, _: StepOutcome) -> None:
        if self._step in self._steps and self.note is None:
            try:
                with internal():
                    self._look()
            except Exception as error:  # noqa: BLE001 # looking must not end somebody's training
                self.note = f"kept graphs not looked for: {type(error).__name__}: {error}"
        self._step += 1

    def _look(self) -> None:
        self._ends.append(StepEnd(step=self._step, live_bytes=_live_bytes(), cached_cast_bytes=0))
        owned = _owned_parameters()
        for name, line, roots in _holders():
            num_nodes, leaves = graph_of(roots, max_nodes=_MAX_NODES)
            variable = self._variables.setdefault((name, line.file), _Variable(line))
            variable.line = line
            variable.num_nodes.append(num_nodes)
            variable.leaf_bytes = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
            weights = [leaf for leaf in leaves if isinstance(leaf, torch.nn.Parameter)]
            variable.is_of_other_model = bool(weights) and not any(id(leaf) in owned for leaf in weights)


def _holders() -> Iterator[tuple[str, Line, list[torch.Tensor]]]:
    """The user's variables that hold graphs: a name, where its frame is, and the tensors with a graph."""
    for frame in user_frames():
        line = Line(frame.f_code.co_filename, frame.f_lineno)
        for name, value in variables_of(frame).items():
            if issubclass(type(value), torch.Tensor):
                roots, shown = [value], name
            elif isinstance(value, (list, tuple, dict)):
                items: Any = value.values() if isinstance(value, dict) else value
                roots, shown = list(tensors_in(*list(items)[-_MAX_ITEMS:])), f"{name}[]"
            else:
                continue
            roots = [root for root in roots if isinstance(root, torch.Tensor) and root.grad_fn is not None]
            if roots:
                yield shown, line, roots


def _owned_parameters() -> set[int]:
    """The ids of parameters that something else than a graph keeps: they outlive a variable that is deleted."""
    owned: set[int] = set()
    for owner in live_objects(torch.nn.Module, torch.optim.Optimizer):
        if isinstance(owner, torch.nn.Module):
            owned.update(id(parameter) for parameter in owner.parameters(recurse=False))
        else:
            owned.update(id(parameter) for group in owner.param_groups for parameter in group["params"])
    return owned


def _live_bytes() -> int:
    """The sizes of all storages that Python can reach."""
    sizes: dict[int, int] = {}
    for one in live_objects(torch.Tensor):
        gradient = gradient_of(one)
        for tensor in (one, gradient) if gradient is not None else (one,):
            sizes.update((id(storage), storage.nbytes()) for storage in storages_of(tensor))
    return sum(sizes.values())


def _kept(name: str, variable: _Variable) -> KeptTensor:
    line = keeping_line(variable.line, name.removesuffix("[]"))
    return KeptTensor(
        name=name,
        file=line.shown_file,
        line=line.line,
        num_nodes=tuple(variable.num_nodes),
        leaf_bytes=variable.leaf_bytes,
        is_of_other_model=variable.is_of_other_model,
    )
