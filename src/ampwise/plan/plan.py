"""What is computed in which format: a default, and rules over modules and operators. Pure data."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from ampwise._base.errors import PlanError
from ampwise._base.suggest import not_one_of
from ampwise._base.text import inert_line
from ampwise.plan.checks import (
    PLAN_FORMATS,
    RULE_FORMATS,
    kind_mistakes,
    own_name,
    plan_mistakes,
    quoted,
    rule_mistakes,
)
from ampwise.plan.names import op_mistake, operators_meant
from ampwise.plan.patterns import covers


class Lists(StrEnum):
    """Whose cast lists autocast follows."""

    CUDA = "cuda"
    """CUDA's fp32 and promote lists on every device, and fp32 for BCE, sigmoid and mean."""
    STOCK = "stock"
    """torch's own for the device, untouched."""


class Updates(StrEnum):
    """How an update reaches parameters that are kept in a format below fp32."""

    NEAREST = "nearest"
    """Rounded to nearest: what is below half an ulp of the weight is lost."""
    STOCHASTIC = "stochastic"
    """Rounded up or down by chance, so that it is right on average."""
    MASTER = "master"
    """Added to fp32 master weights, which the parameters are rounded from."""

    @property
    def words(self) -> str:
        """For a person, behind the parameters' format."""
        how = {
            Updates.NEAREST: "rounded to nearest",
            Updates.STOCHASTIC: "rounded by chance",
            Updates.MASTER: "made on fp32 master weights",
        }
        return f"updates {how[self]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A place, and the formats that hold there: the module and all that runs in it, an operator, or both together.

    Formats may be given by any of their names; they are kept by ampwise's.

    Raises:
        PlanError: something in it is wrong; all of it is named.
    """

    module: str | None = None
    """A glob over module paths, or a regular expression after ``re:``. None means every module."""
    op: str | None = None
    """An operator by any of torch's spellings, or a kind of them. None means every operator."""
    compute: str
    """The format that its operands are cast to."""
    output: str | None = None
    """The format that results are cast to; None leaves them as they come."""
    grad: str | None = None
    """The format of the gradients that flow through it; None follows the forward pass."""
    because: str | None = None
    """Why, for whoever reads the plan."""

    def __post_init__(self) -> None:
        raise_for(list(kind_mistakes(_given(self), needed="compute", texts=("module", "op", "because"))))
        _settle(self, RULE_FORMATS, rule_mistakes)

    @property
    def operators(self) -> frozenset[str] | None:
        """The operators it is about; None means all."""
        return None if self.op is None else operators_meant(self.op)

    def holds_at(self, module: str, operators: frozenset[str] | None, *, root: str = "") -> bool:
        """Whether it says anything about these operators in that module; without operators, about the module itself."""
        if self.module is not None and not covers(self.module, module, root=root):
            return False
        mine = self.operators
        return mine is None or (bool(operators) and mine >= (operators or frozenset()))

    @property
    def selector(self) -> tuple[str | None, frozenset[str] | None]:
        """What it is about, the same for every spelling of its operator."""
        return self.module, self.operators

    @property
    def wanted(self) -> tuple[str | None, ...]:
        """The formats it asks for: compute, output, grad."""
        return self.compute, self.output, self.grad

    def place(self) -> str:
        """The place it names, for a person: ``softmax in *.attn``."""
        module = None if self.module is None else inert_line(self.module, max_length=60)
        op = None if self.op is None else inert_line(self.op, max_length=60)
        return " in ".join(word for word in (op, module) if word)

    def formats(self) -> str:
        """The formats it asks for, for a person: ``fp8_e4m3, grad fp8_e5m2``."""
        output = f", output {self.output}" if self.output else ""
        return f"{self.compute}{output}{f', grad {self.grad}' if self.grad else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The formats that hold at one place, and the rule that decided them."""

    compute: str
    output: str | None
    grad: str | None
    rule: Rule | None
    """None where no rule holds and the plan's own formats stand."""
    index: int | None
    """Which of the plan's rules it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is computed in which format: the last rule that holds at a place decides there, else the plan's own formats.

    A rule decides whole: what it leaves out is not taken from an earlier one. Two rules that name the same place and
    want different formats contradict each other: one of them would be dead, so both are refused.

    Raises:
        PlanError: something in it is wrong; all of it is named.
    """

    default: str
    """The format that operands are cast to where no rule holds."""
    rules: tuple[Rule, ...] = ()
    output: str | None = None
    """The format that the whole model's results are cast to; None leaves them as they come."""
    grad: str | None = None
    """The format of gradients where no rule holds; None follows the forward pass."""
    parameters: str = "fp32"
    """The format that parameters are kept in."""
    updates: Updates = Updates.NEAREST
    """How parameters below fp32 are updated."""
    lists: Lists = Lists.CUDA
    torch: str | None = None
    """The torch release whose cast lists hold, as ``2.13``; None means the installed one's."""

    def __post_init__(self) -> None:
        raise_for(list(kind_mistakes(_given(self), needed="default", texts=("torch",))))
        raise_for(list(_rules_mistakes(self.rules)))
        object.__setattr__(self, "rules", tuple(self.rules))  # a list would leave the plan without a hash
        for name, enum in (("lists", Lists), ("updates", Updates)):  # words will do, as in a file
            object.__setattr__(self, name, _word(name, getattr(self, name), enum))
        _settle(self, PLAN_FORMATS, lambda own: [*plan_mistakes(own), *contradictions(enumerate(self.rules))])

    def resolve(self, module: str, op: str | None = None, *, root: str = "") -> Resolved:
        """Which formats hold for the operator ``op`` in a module, or for the module itself.

        Args:
            module: its path below the root, as ``named_modules`` gives it; empty for the root.
            op: an operator by any of its spellings.
            root: what the root is called, where there are several.

        Raises:
            PlanError: ``op`` is no operator.
        """
        operators = None if op is None else operators_meant(op)
        if op is not None and not operators:
            raise PlanError(f"{quoted(op)} {op_mistake(op)}")
        return self.decide(module, operators, root=root)

    def decide(self, module: str, operators: frozenset[str] | None, *, root: str = "") -> Resolved:
        """``resolve`` for operators by aten's names, which need not be known."""
        for index, rule in reversed(list(enumerate(self.rules))):
            if rule.holds_at(module, operators, root=root):
                return Resolved(compute=rule.compute, output=rule.output, grad=rule.grad, rule=rule, index=index)
        return Resolved(compute=self.default, output=None, grad=self.grad, rule=None, index=None)


def contradictions(rules: Iterable[tuple[int, Rule]]) -> Iterator[str]:
    """Each rule that contradicts an earlier one, both shown: same place, in any spelling of its operator."""
    first: dict[object, tuple[int, Rule]] = {}
    for index, rule in rules:
        earlier, other = first.setdefault(rule.selector, (index, rule))
        if other.wanted != rule.wanted:
            yield (
                f"rules[{earlier}] and rules[{index}] contradict each other for {rule.place()}: "
                f"{_shown(other)}; {_shown(rule)}. Keep one of them"
            )


def _word(name: str, given: str, enum: type[StrEnum]) -> StrEnum:
    words = [one.value for one in enum]
    if given not in words:
        raise PlanError(f"{name}: {not_one_of(inert_line(str(given), max_length=60), words, kind=f'value of {name}')}")
    return enum(given)


def _shown(rule: Rule) -> str:
    because = f' (because "{inert_line(rule.because, max_length=80)}")' if rule.because else ""
    return f"{rule.formats()}{because}"


def _settle(value: Rule | Plan, formats: Sequence[str], mistakes: Callable[[Mapping[str, Any]], Iterable[str]]) -> None:
    """Refuse a value with mistakes; put ampwise's own names of formats in place of those given."""
    raise_for(list(mistakes(_given(value))))
    for name in formats:  # the value is frozen, but not out of its constructor yet
        object.__setattr__(value, name, own_name(getattr(value, name)))


def _given(value: Rule | Plan) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _rules_mistakes(given: Any) -> Iterator[str]:
    if not isinstance(given, (list, tuple)):
        yield f"rules: is {type(given).__name__}; give a tuple of ampwise.Rule"
        return
    for index, one in enumerate(given):
        if not isinstance(one, Rule):
            yield f"rules[{index}]: is {type(one).__name__}; give an ampwise.Rule"


def raise_for(mistakes: Sequence[str]) -> None:
    """Raise a ``PlanError`` that names all of the mistakes, if there are any."""
    if mistakes:
        raise PlanError("\n".join(mistakes))
