"""Walks every path through a function with a fact in hand: ifs, loops, try, same-file calls one level deep."""

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeAlias, TypeVar

from ampwise.lint.conditions import Assumptions
from ampwise.lint.events import Act, Event
from ampwise.lint.ground import Ground
from ampwise.lint.names import defaults
from ampwise.lint.tree import Function, Loop, dotted

Fact = TypeVar("Fact")
State: TypeAlias = tuple[Fact, Assumptions]

_MAX_STATES = 150
_MAX_ROUNDS = 12


class TooManyPathsError(Exception):
    """A function has more paths than are worth walking; nothing is said about it."""


@dataclass(slots=True)
class Ends(Generic[Fact]):
    """Where the paths through a block end up."""

    falls: set[State[Fact]] = field(default_factory=set)
    breaks: set[State[Fact]] = field(default_factory=set)
    continues: set[State[Fact]] = field(default_factory=set)
    leaves: set[State[Fact]] = field(default_factory=set)
    """By return."""

    def add_jumps(self, other: "Ends[Fact]") -> None:
        """Take over all but what falls through."""
        self.breaks |= other.breaks
        self.continues |= other.continues
        self.leaves |= other.leaves


class Walker(Generic[Fact]):
    """One walk; a loop is assumed to run at least once, and a raise to end the path.

    Args:
        ground: the file.
        advance: the fact after an event.
        concerned: the nodes whose events are met; None for all.
        correlates: whether equal conditions have equal answers; else both arms of every `if` are walked from the same
            facts, which takes in every path there is and some that are none.
    """

    def __init__(
        self,
        ground: Ground,
        advance: Callable[[Fact, Event], Fact],
        *,
        concerned: frozenset[ast.expr] | None = None,
        correlates: bool = True,
    ) -> None:
        self._ground = ground
        self._events = ground.events
        self._advance = advance
        self._concerned = concerned
        self._correlates = correlates
        self._live = ground.holding(concerned)
        self._callee: tuple[Function, ast.Call, Mapping[str, str]] | None = None

    def walk(self, body: list[ast.stmt], start: Fact) -> set[Fact]:
        """The facts at the ends of all paths from ``start`` through ``body``.

        Raises:
            TooManyPathsError: there are too many.
        """
        ends = self._block(body, {(start, frozenset())})
        return {fact for fact, _ in ends.falls | ends.leaves}

    # ---- statements

    def _block(self, body: list[ast.stmt], states: set[State[Fact]]) -> Ends[Fact]:
        ends: Ends[Fact] = Ends(falls=states)
        for statement in body:
            if not ends.falls:
                break
            if len(ends.falls) > _MAX_STATES:
                raise TooManyPathsError
            if statement not in self._live and not self._ground.jumps(statement):
                ends.falls = self._forget(statement, ends.falls)
                continue
            after = self._statement(statement, ends.falls)
            ends.add_jumps(after)
            ends.falls = after.falls
        return ends

    def _statement(self, statement: ast.stmt, states: set[State[Fact]]) -> Ends[Fact]:
        match statement:
            case ast.If():
                return self._if(statement.test, statement.body, statement.orelse, states)
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(statement, states)
            case ast.Try() | ast.TryStar():
                return self._try(statement, states)
            case ast.With() | ast.AsyncWith():
                for item in statement.items:
                    states = self._happen(self._events.of(item), states)
                return self._block(statement.body, states)
            case ast.Match():
                return self._match(statement, states)
            case ast.Return():
                return Ends(leaves=self._happen(self._events.of(statement.value), states))
            case ast.Raise():
                return Ends()
            case ast.Break():
                return Ends(breaks=states)
            case ast.Continue():
                return Ends(continues=states)
            case ast.Expr(value=ast.IfExp(test=test, body=body, orelse=other)):
                return self._either(test, body, other, states)
            case _:
                happened = self._happen(self._events.of(statement), states)
                return Ends(falls=self._forget(statement, happened))

    def _either(self, test: ast.expr, body: ast.expr, other: ast.expr, states: set[State[Fact]]) -> Ends[Fact]:
        """``a() if test else b()`` as a statement."""
        taken = self._decide(test, states)
        falls = self._happen(self._events.of(body), taken[True]) | self._happen(self._events.of(other), taken[False])
        return Ends(falls=falls)

    def _if(self, test: ast.expr, body: list[ast.stmt], other: list[ast.stmt], states: set[State[Fact]]) -> Ends[Fact]:
        taken = self._decide(test, states)
        ends, otherwise = self._block(body, taken[True]), self._block(other, taken[False])
        ends.add_jumps(otherwise)
        ends.falls = _merged(ends.falls | otherwise.falls)
        return ends

    def _decide(self, test: ast.expr, states: set[State[Fact]]) -> dict[bool, set[State[Fact]]]:
        """The states in which ``test`` holds and in which it does not."""
        states = self._happen(self._events.of(test), states)
        if not self._correlates:
            return {True: set(states), False: set(states)}
        taken: dict[bool, set[State[Fact]]] = {True: set(), False: set()}
        for fact, assumed in states:
            for answer, then in self._ground.conditions.branches(test, assumed):
                taken[answer].add((fact, then))
        return taken

    def _loop(self, loop: Loop, states: set[State[Fact]]) -> Ends[Fact]:
        head = loop.test if isinstance(loop, ast.While) else loop.iter
        states = self._happen(self._events.of(head), states)
        ends: Ends[Fact] = Ends()
        seen: set[State[Fact]] = set()
        for _ in range(_MAX_ROUNDS):
            states = self._forget(loop, states) - seen
            if not states:
                break
            seen |= states
            if len(seen) > _MAX_STATES:
                raise TooManyPathsError
            after = self._block(loop.body, states)
            ends.breaks |= after.breaks
            ends.leaves |= after.leaves
            states = self._happen(
                self._events.of(head) if isinstance(loop, ast.While) else (), after.falls | after.continues
            )
            ends.falls |= states
        is_endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and bool(loop.test.value)
        completed = self._block(loop.orelse, set() if is_endless else ends.falls)
        return Ends(
            falls=_merged(completed.falls | ends.breaks),
            breaks=completed.breaks,
            continues=completed.continues,
            leaves=ends.leaves | completed.leaves,
        )

    def _try(self, statement: ast.Try | ast.TryStar, states: set[State[Fact]]) -> Ends[Fact]:
        ends = self._block(statement.body, states)
        may_raise = states | ends.falls
        completed = self._block(statement.orelse, ends.falls)
        ends.add_jumps(completed)
        ends.falls = completed.falls
        for handler in statement.handlers:
            handled = self._block(handler.body, may_raise)
            ends.add_jumps(handled)
            ends.falls |= handled.falls
        if statement.finalbody:
            last = self._block(statement.finalbody, ends.falls)
            ends.add_jumps(last)
            ends.falls = last.falls
        return ends

    def _match(self, statement: ast.Match, states: set[State[Fact]]) -> Ends[Fact]:
        states = self._happen(self._events.of(statement.subject), states)
        ends: Ends[Fact] = Ends(falls=set(states))
        for case in statement.cases:
            after = self._block(case.body, states)
            ends.add_jumps(after)
            ends.falls |= after.falls
        return ends

    # ---- events

    def _happen(self, events: Iterable[Event], states: set[State[Fact]]) -> set[State[Fact]]:
        for event in events:
            if self._concerned is not None and event.node not in self._concerned:
                continue
            if event.act is Act.CALL and event.callee is not None and self._callee is None:
                states = self._enter(event, event.callee, states)
            else:
                seen_as = self._renamed(event)
                states = {(self._advance(fact, seen_as), assumed) for fact, assumed in states}
        return states

    def _enter(self, event: Event, callee: Function, states: set[State[Fact]]) -> set[State[Fact]]:
        """Walk the callee in the place of the call."""
        call = event.node
        if not isinstance(call, ast.Call):
            return states
        states = {(self._advance(fact, event), assumed) for fact, assumed in states}
        self._callee = (callee, call, _arguments(call, callee))
        after: set[State[Fact]] = set()
        try:
            for fact, assumed in states:
                shared = frozenset(one for one in assumed if self._is_shared(one[0], callee))
                ends = self._block(callee.body, {(fact, shared)})
                for end, then in ends.falls | ends.leaves:
                    kept = frozenset(one for one in then if self._is_shared(one[0], callee))
                    after.add((end, assumed | kept))
        finally:
            self._callee = None
        return _merged(after)

    def _is_shared(self, text: str, callee: Function) -> bool:
        """Whether a condition means the same in the callee: it is on attributes of self and on globals alone."""
        places = self._ground.conditions.places(text)
        return all(
            name.startswith("self") or not self._ground.names.of(callee, name.partition(".")[0]) for name in places
        )

    def _renamed(self, event: Event) -> Event:
        """A callee's event in the caller's names."""
        if self._callee is None:
            return event
        callee, call, arguments = self._callee

        def name_in_caller(place: str | None) -> str | None:
            if place is None or place.startswith("self."):
                return place
            root = place.split(".")[0].split("[")[0]
            if root in arguments:
                return arguments[root] + place[len(root) :]
            return f"{callee.name}:{place}" if self._ground.names.of(callee, root) else place

        return replace(
            event,
            scaler=name_in_caller(event.scaler),
            optimizer=name_in_caller(event.optimizer),
            loss=name_in_caller(event.loss),
            via=call,
        )

    def _forget(self, statement: ast.stmt, states: set[State[Fact]]) -> set[State[Fact]]:
        """Drop what was assumed about names that have changed in ``statement``."""
        if not self._correlates:
            return states
        changed = self._ground.stored(statement)
        if self._ground.conditions.mentioned.isdisjoint(changed) or not any(assumed for _, assumed in states):
            return states
        return {
            (fact, frozenset(one for one in assumed if not changed & self._ground.conditions.places(one[0])))
            for fact, assumed in states
        }


def _merged(states: set[State[Fact]]) -> set[State[Fact]]:
    """States with fewer assumptions: of two with one fact that differ in one answer alone, that answer is dropped."""
    if len({fact for fact, _ in states}) == len(states):
        return states
    while True:
        for fact, assumed in states:
            twin = next((one for one in assumed if (fact, assumed - {one} | {(one[0], not one[1])}) in states), None)
            if twin is not None:
                other = (fact, assumed - {twin} | {(twin[0], not twin[1])})
                states = (states - {(fact, assumed), other}) | {(fact, assumed - {twin})}
                break
        else:
            return states


def _arguments(call: ast.Call, callee: Function) -> dict[str, str]:
    """The caller's places that the callee's parameters stand for."""
    parameters = [argument.arg for argument, _ in defaults(callee.args)]
    if isinstance(call.func, ast.Attribute) and parameters[:1] in (["self"], ["cls"]):
        parameters = parameters[1:]
    found = {name: place for name, given in zip(parameters, call.args, strict=False) if (place := dotted(given))}
    found |= {k.arg: place for k in call.keywords if k.arg is not None and (place := dotted(k.value))}
    return found
