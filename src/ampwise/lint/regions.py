"""Which code runs under autocast, for which device and in which dtype."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ampwise.lint.contexts import Contexts
from ampwise.lint.names import Names
from ampwise.lint.torch_names import AUTOCASTS
from ampwise.lint.tree import FUNCTIONS, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One ``with autocast(...)`` or decorated function; None means not plain from the source."""

    node: ast.With | ast.AsyncWith | ast.FunctionDef | ast.AsyncFunctionDef
    call: ast.Call | None
    """The construction; None for a bare ``@autocast``."""
    name: str
    """``torch.autocast``, ``torch.cuda.amp.autocast``, ..."""
    device_type: str | None
    dtype: str | None
    """The dotted dtype, as in ``torch.bfloat16``; ``torch.float16`` where cuda's default holds."""
    enabled: bool | None
    """False only where it is switched off in so many words."""
    condition: ast.expr | None
    """The expression handed to ``enabled``."""


class Regions:
    """The autocast regions of one file."""

    def __init__(self, tree: Tree, names: Names) -> None:
        self._tree = tree
        self._names = names
        self._contexts = Contexts(tree, names)
        self._known: dict[ast.AST, tuple[Region, ...]] = {}

    def around(self, node: ast.AST) -> tuple[Region, ...]:
        """The regions of the same function that lexically hold ``node``, from the inside out."""
        return tuple(self._around(node))

    def _around(self, node: ast.AST) -> Iterator[Region]:
        child = node
        for outer in self._tree.ancestors(node):
            if isinstance(outer, ast.With | ast.AsyncWith) and child in outer.body:
                yield from reversed(self.of(outer))
            elif isinstance(outer, FUNCTIONS):
                if child in outer.body:
                    yield from reversed(self.of(outer))
                return
            child = outer

    def autocast(self, node: ast.AST) -> Region | None:
        """The region that decides over ``node``: the innermost, unless it is switched off."""
        innermost = next(self._around(node), None)
        return innermost if innermost is not None and innermost.enabled is not False else None

    def of(self, node: ast.With | ast.AsyncWith | ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[Region, ...]:
        """The regions that a `with` or the decorators of a function open, in order."""
        known = self._known.get(node)
        if known is None:
            if isinstance(node, ast.With | ast.AsyncWith):
                made = [self._region(node, item.context_expr) for item in node.items]
            else:
                made = [self._region(node, decorator) for decorator in node.decorator_list]
            known = self._known[node] = tuple(region for region in made if region is not None)
        return known

    def all(self) -> list[Region]:
        """Every region of the file."""
        nodes = self._tree.nodes(ast.With, ast.AsyncWith) + self._tree.nodes(ast.FunctionDef, ast.AsyncFunctionDef)
        return [region for node in nodes for region in self.of(node)]

    def _region(
        self, node: ast.With | ast.AsyncWith | ast.FunctionDef | ast.AsyncFunctionDef, expression: ast.expr
    ) -> Region | None:
        made = list(self._contexts.entered(expression))
        found = next((one for one in made if self._name(one) in AUTOCASTS), None)
        if found is None:
            return None
        call = found if isinstance(found, ast.Call) else None
        name = self._name(found) or ""
        device_type = self._device_type(name, call)
        enabled = argument(call, "enabled", 2 if name in {"torch.autocast", "torch.amp.autocast"} else 0)
        dtype = argument(call, "dtype", 1)
        return Region(
            node=node,
            call=call,
            name=name,
            device_type=device_type,
            dtype=self._dtype(dtype, device_type),
            enabled=_constant(enabled) if len(made) == 1 or _constant(enabled) is False else None,
            condition=enabled,
        )

    def _name(self, made: ast.expr) -> str | None:
        return self._names.resolve(made.func if isinstance(made, ast.Call) else made)

    def _device_type(self, name: str, call: ast.Call | None) -> str | None:
        if name.startswith(("torch.cuda.", "torch.cpu.")):
            return name.split(".")[1]
        given = argument(call, "device_type", 0)
        return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None

    def _dtype(self, given: ast.expr | None, device_type: str | None) -> str | None:
        if given is not None:
            return self._names.resolve(given) if isinstance(given, ast.Name | ast.Attribute) else None
        head = (device_type or "").partition(":")[0]
        return {"cuda": "torch.float16", "cpu": "torch.bfloat16"}.get(head)


def argument(call: ast.Call | None, name: str, index: int) -> ast.expr | None:
    """What a call hands to a parameter, by name or position."""
    if call is None:
        return None
    named = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    return named if named is not None or len(call.args) <= index else call.args[index]


def _constant(expression: ast.expr | None) -> bool | None:
    if expression is None:
        return True
    return bool(expression.value) if isinstance(expression, ast.Constant) else None
