"""What is computed in which format: a default, and rules over modules and operators. Pure data."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ampwise._base.errors import PlanError
from ampwise._base.suggest import not_one_of
from ampwise._base.text import inert_line
from ampwise.formats.table import FORMATS, find_format
from ampwise.plan.names import op_mistake, operators_meant
from ampwise.plan.patterns import covers, mistake_in

_TORCH: Final = re.compile(r"\d+\.\d+")


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
        _raise_for(list(rule_mistakes(self)))
        _canonicalise(self, ("compute", "output", "grad"))

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

    @property
    def follows_lists(self) -> bool:
        """Whether the cast lists still choose an operator's format here; a rule on operators overrules them."""
        return self.rule is None or self.rule.op is None


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
        _raise_for([*plan_mistakes(self), *contradictions(self.rules)])
        _canonicalise(self, ("default", "output", "grad", "parameters"))

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
            raise PlanError(f'"{inert_line(op, max_length=60)}" {op_mistake(op)}')
        for index, rule in reversed(list(enumerate(self.rules))):
            if rule.holds_at(module, operators, root=root):
                return Resolved(compute=rule.compute, output=rule.output, grad=rule.grad, rule=rule, index=index)
        return Resolved(compute=self.default, output=None, grad=self.grad, rule=None, index=None)


def rule_mistakes(rule: Rule, *, path: str = "") -> Iterator[str]:
    """Everything that is wrong with a rule taken alone, each with its path."""
    if rule.module is None and rule.op is None:
        yield f"{path or 'rule'}: names neither a module nor an op; to set a format everywhere, write it as the default"
    dot = f"{path}." if path else ""
    yield from _format_mistakes(rule, ("compute", "output", "grad"), dot)
    if rule.module is not None and (wrong := mistake_in(rule.module)):
        yield f'{dot}module: "{inert_line(rule.module, max_length=60)}" {wrong}'
    if rule.op is not None and (wrong := op_mistake(rule.op)):
        yield f'{dot}op: "{inert_line(rule.op, max_length=60)}" {wrong}'


def plan_mistakes(plan: Plan) -> Iterator[str]:
    """Everything that is wrong with a plan beside its rules, each with its path."""
    yield from _format_mistakes(plan, ("default", "output", "grad", "parameters"), "")
    if plan.torch is not None and not _TORCH.fullmatch(plan.torch):
        yield f'torch: "{inert_line(plan.torch, max_length=60)}" is not a torch release; write it as in 2.13'
    kept = find_format(str(plan.parameters))
    if plan.updates is not Updates.NEAREST and kept and kept.storage_bits >= 32:
        yield f"updates: {plan.updates} is for parameters below fp32; parameters are {kept.name}"


def contradictions(rules: Sequence[Rule]) -> Iterator[str]:
    """Each rule that contradicts an earlier one, both shown: same place, in any spelling of its operator."""
    first: dict[object, int] = {}
    for index, rule in enumerate(rules):
        earlier = first.setdefault((rule.module, rule.operators), index)
        if rules[earlier].wanted != rule.wanted:
            yield (
                f"rules[{earlier}] and rules[{index}] contradict each other for {rule.place()}: "
                f"{_shown(rules[earlier])}; {_shown(rule)}. Keep one of them"
            )


def _shown(rule: Rule) -> str:
    because = f' (because "{inert_line(rule.because, max_length=80)}")' if rule.because else ""
    return f"{rule.formats()}{because}"


def _format_mistakes(value: Rule | Plan, names: Sequence[str], dot: str) -> Iterator[str]:
    for name in names:
        given = getattr(value, name)
        if given is not None and find_format(str(given)) is None:
            yield f"{dot}{name}: {not_one_of(inert_line(str(given), max_length=60), FORMATS, kind='format')}"


def _canonicalise(value: Rule | Plan, names: Sequence[str]) -> None:
    """Put ampwise's own name for each format in place of the one given; the value is not out of its constructor yet."""
    for name in names:
        given = getattr(value, name)
        found = find_format(str(given)) if given is not None else None
        if found is not None and found.name != given:
            object.__setattr__(value, name, found.name)


def _raise_for(mistakes: Sequence[str]) -> None:
    if mistakes:
        raise PlanError("\n".join(mistakes))
