"""The events of a file and which can follow which on some path: the facts that the protocol rules stand on."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from ampwise.lint.events import Act, Event, Events
from ampwise.lint.ground import Ground
from ampwise.lint.kinds import Kinds
from ampwise.lint.names import Names, position
from ampwise.lint.paths import TooManyPathsError, Walker
from ampwise.lint.tree import FUNCTIONS, Function, Tree

Fact = TypeVar("Fact")
Root = ast.Module | Function

_NAMELESS = (None, None, None)
_MAX_EVENTS = 1500
"""A function with more is generated code, which nobody trains with."""


@dataclass(frozen=True, slots=True)
class Reach:
    """``goal`` happens after ``start`` on some path, with nothing between that stops it."""

    start: Event
    goal: Event
    root: Root
    """The function that was walked."""


class Flow:
    """Events and paths of one file.

    Law: equal conditions have equal answers along a path until a name in them is assigned, so the fp32 arm of
    ``if use_amp`` never meets the AMP arm; a function with too many paths yields nothing.
    """

    def __init__(self, tree: Tree, names: Names, kinds: Kinds) -> None:
        self._tree = tree
        self.read = Events(tree, names, kinds)
        self._ground = Ground(tree, names, self.read)
        self._met: dict[Root, set[ast.expr]] = {}

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """All events of the file, each where it stands, in source order."""
        return tuple(sorted(self.read.all, key=lambda event: position(event.node)))

    @cached_property
    def roots(self) -> tuple[Root, ...]:
        """The module and every def: what a walk can begin at."""
        return (self._tree.root, *self._tree.nodes(ast.FunctionDef), *self._tree.nodes(ast.AsyncFunctionDef))

    def events_in(self, node: ast.AST) -> list[Event]:
        """The events that stand within ``node``, nested defs and classes left out."""
        if isinstance(node, (ast.Module, *FUNCTIONS)):
            return self.read.within(node)
        return list(self.read.of(node))

    def acts_in(self, node: ast.AST, *, depth: int = 1) -> frozenset[Act]:
        """What happens within ``node``, through calls of this file's functions ``depth`` levels deep."""
        found: set[Act] = set()
        for event in self.events_in(node):
            found.add(event.act)
            if event.callee is not None and depth > 0:
                found |= self.acts_in(event.callee, depth=depth - 1)
        return frozenset(found)

    def paths(self, root: Root, start: Fact, advance: Callable[[Fact, Event], Fact]) -> set[Fact]:
        """The facts with which the paths through ``root`` end; empty where there are too many to walk.

        Args:
            root: the module or function; calls of this file's functions in it are walked too, one level deep.
            start: the fact at its beginning.
            advance: the fact after an event. It may note what it sees; it must depend on its arguments alone.
        """
        return self._walk(root, start, advance, None)

    def _walk(
        self,
        root: Root,
        start: Fact,
        advance: Callable[[Fact, Event], Fact],
        concerned: frozenset[ast.expr] | None,
        *,
        correlates: bool = True,
    ) -> set[Fact]:
        if len(self.events_in(root)) > _MAX_EVENTS:
            return set()
        try:
            walker = Walker(self._ground, advance, concerned=concerned, correlates=correlates)
            return walker.walk(root.body, start)
        except (TooManyPathsError, RecursionError):
            return set()

    def reached(
        self,
        *,
        start: Callable[[Event], bool],
        goal: Callable[[Event, Event], bool],
        stop: Callable[[Event, Event], bool],
    ) -> list[Reach]:
        """Every pair of events where, on some path, the second follows the first with nothing between that stops it.

        Args:
            start: whether an event begins a stretch.
            goal: given the beginning and an event, whether it is the one that must not follow; of places it may ask
                only whether they are the beginning's.
            stop: given the beginning and an event, whether it ends the stretch. A goal may stop too.
        """
        beginning = [event for event in self.read.all if start(event)]
        concerned, goals = self._concerned(beginning, goal, stop)
        if not goals:
            return []
        starts = {event.node for event in beginning}
        found: dict[tuple[ast.expr, ast.expr], Reach] = {}
        for root in self.roots:
            met = self._met_in(root)
            if starts.isdisjoint(met) or goals.isdisjoint(met):
                continue
            for reach in self._seen(root, start=start, goal=goal, stop=stop, concerned=concerned):
                known = found.setdefault((reach.start.node, reach.goal.node), reach)
                if known.goal.via is not None and reach.goal.via is None:
                    found[reach.start.node, reach.goal.node] = reach  # rather seen where it stands than by a caller
        return sorted(found.values(), key=lambda reach: position(reach.goal.node))

    def _seen(
        self,
        root: Root,
        *,
        start: Callable[[Event], bool],
        goal: Callable[[Event, Event], bool],
        stop: Callable[[Event, Event], bool],
        concerned: frozenset[ast.expr],
    ) -> list[Reach]:
        """The pairs that the paths through one function show."""
        seen: list[Reach] = []

        def advance(pending: frozenset[Event], event: Event) -> frozenset[Event]:
            seen.extend(Reach(one, event, root) for one in pending if goal(one, event))
            kept = frozenset(one for one in pending if not stop(one, event))
            return kept | {event} if start(event) else kept

        # most functions are clean on more paths than there are: then no condition needs a look
        if self._walk(root, frozenset[Event](), advance, concerned, correlates=False) and not seen:
            return []
        seen.clear()
        return seen if self._walk(root, frozenset[Event](), advance, concerned) else []

    def _concerned(
        self,
        beginning: list[Event],
        goal: Callable[[Event, Event], bool],
        stop: Callable[[Event, Event], bool],
    ) -> tuple[frozenset[ast.expr], frozenset[ast.expr]]:
        """The nodes whose events matter, under any names, with the calls that lead to them; and those of the goals."""
        # what may follow is told by what an event is, not by where it stands
        starts = list(
            {(one.act, one.scaler, one.optimizer, one.is_scaled, one.handed): one for one in beginning}.values()
        )
        goals: set[ast.expr] = set()
        stops: set[ast.expr] = set()
        for event in self.read.all if starts else ():
            seen = list(_as_seen(event, starts))
            if any(goal(one, shown) for one, shown in seen):
                goals.add(event.node)
            elif any(stop(one, shown) for one, shown in seen):
                stops.add(event.node)
        found = {event.node for event in beginning} | goals | stops
        return frozenset(found | self._leading_to(found)), frozenset(goals)

    def _leading_to(self, nodes: set[ast.expr]) -> set[ast.expr]:
        """The calls of this file's functions in which one of ``nodes`` stands."""
        homes = {self._tree.function(node) for node in nodes}
        return {event.node for event in self.read.all if event.callee is not None and event.callee in homes}

    def _met_in(self, root: Root) -> set[ast.expr]:
        """The nodes of the events that a walk through ``root`` meets."""
        met = self._met.get(root)
        if met is None:
            met = self._met[root] = set()
            for event in self.events_in(root):
                met.add(event.node)
                if event.callee is not None:
                    met.update(inner.node for inner in self.events_in(event.callee))
        return met

    def callers(self, function: Function) -> Iterator[ast.Call]:
        """The calls of ``function`` in this file."""
        for event in self.events:
            if event.callee is function and isinstance(event.node, ast.Call):
                yield event.node


def _as_seen(event: Event, starts: list[Event]) -> Iterator[tuple[Event, Event]]:
    """Each of ``starts`` with the event behind it, by its own names and, where it has names, by those of the start."""
    for one in starts:
        yield one, event
        if (event.scaler, event.optimizer, event.loss) != _NAMELESS:
            yield one, replace(event, scaler=one.scaler, optimizer=one.optimizer, loss=one.loss)
