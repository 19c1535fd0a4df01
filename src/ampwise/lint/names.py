"""What the names in a file stand for: imports under any spelling, aliases, and the values bound to a name."""

import ast
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from ampwise.lint.tree import FUNCTIONS, Function, Scope, Tree, dotted

_MAX_DEPTH = 8
_CANONICAL = (
    ("torch.cuda.amp.grad_scaler.", "torch.cuda.amp."),
    ("torch.cuda.amp.autocast_mode.", "torch.cuda.amp."),
    ("torch.cpu.amp.autocast_mode.", "torch.cpu.amp."),
    ("torch.amp.grad_scaler.", "torch.amp."),
    ("torch.amp.autocast_mode.", "torch.amp."),
    ("torch.optim.adam.", "torch.optim."),
    ("torch.optim.adamw.", "torch.optim."),
    ("torch.optim.sgd.", "torch.optim."),
    ("torch.nn.utils.clip_grad.", "torch.nn.utils."),
)
_PRIVATE = tuple(private for private, _ in _CANONICAL)
_STAR = {
    "torch.cuda.amp": ("autocast", "GradScaler", "custom_fwd", "custom_bwd"),
    "torch.cpu.amp": ("autocast", "GradScaler"),
    "torch.amp": ("autocast", "GradScaler", "custom_fwd", "custom_bwd"),
    "torch": ("autocast", "no_grad", "cuda", "nn", "optim", "amp", "set_grad_enabled", "inference_mode"),
}


class Bound(StrEnum):
    """How a name got its value."""

    IMPORT = "import"
    ASSIGN = "assign"
    AUGMENTED = "augmented"
    PARAMETER = "parameter"
    LOOP = "loop"
    WITH = "with"
    FUNCTION = "function"
    CLASS = "class"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Binding:
    """One place that gives a name or dotted place (``self.scaler``) a value."""

    name: str
    how: Bound
    node: ast.AST
    """The import, assignment, loop, with item, argument, def or class."""
    position: tuple[int, int]
    value: ast.expr | None = None
    """The expression assigned, iterated over or entered; the default of a parameter."""
    index: int | None = None
    """With ``a, (b, c) = value``: which element of ``value``, where that is no tuple itself; 1 for ``c``."""
    target: str = ""
    """The dotted name that an import binds."""


class Names:
    """The bindings of every scope of a file, and what expressions resolve to."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._table: dict[tuple[Scope, str], list[Binding]] = {}
        self._nearest: dict[tuple[Scope, str], list[Binding]] = {}
        self._arms_of: dict[ast.AST, dict[ast.If, ast.AST]] = {}
        self._resolved: dict[ast.expr, str | None] = {}
        self._called: dict[ast.Call, Function | None] = {}
        self._declared = {
            (tree.scope(node), name) for node in tree.nodes(ast.Global, ast.Nonlocal) for name in node.names
        }
        self.stars: list[str] = []
        """Modules imported by ``from module import *``."""
        for binding, scope in self._collect():
            self._table.setdefault((scope, binding.name), []).append(binding)
        for bindings in self._table.values():
            bindings.sort(key=lambda binding: binding.position)

    # ---- bindings

    def of(self, scope: Scope, name: str) -> list[Binding]:
        """The bindings of ``name`` in ``scope`` itself, in source order."""
        return self._table.get((scope, name), [])

    def lookup(self, expression: ast.expr) -> list[Binding]:
        """All bindings of the name or dotted place in the nearest scope that binds it, in source order."""
        name = dotted(expression)
        return self.visible(name, expression) if name is not None else []

    def visible(self, name: str, node: ast.AST) -> list[Binding]:
        """The bindings that ``name`` would have if it stood at ``node``."""
        if name.startswith(("self.", "cls.")):
            owner = self._tree.class_(node)
            return self.of(owner, name) if owner is not None else []
        scope = self._tree.scope(node)
        known = self._nearest.get((scope, name))
        if known is None:
            scopes = self._scopes(scope)
            known = self._nearest[scope, name] = next((found for one in scopes if (found := self.of(one, name))), [])
        return known

    def latest(self, expression: ast.expr) -> Binding | None:
        """The binding that most likely gave the place its value at ``expression``.

        The last one before it in source order; the last of all where it is bound only later or in another function.
        """
        found = self.lookup(expression)
        if len(found) < 2:
            return found[0] if found else None
        if self._tree.scope(found[0].node) is not self._tree.scope(expression):
            return found[-1]
        # the statement's own targets come later in time than its value
        limit = (self._tree.statement(expression).lineno, -1)
        before = bisect_left(found, limit, key=lambda binding: binding.position)
        earlier = [b for b in found[:before] if not self._is_other_arm(b.node, expression)]
        within = [b for b in found[before:] if b.position <= position(expression) and b.how is not Bound.ASSIGN]
        return (within or earlier or found)[-1]

    def _is_other_arm(self, bound: ast.AST, use: ast.expr) -> bool:
        """Whether the two stand in different arms of one `if`."""
        arms = self._arms(bound)
        if arms:
            for outer, child in self._arms(use).items():
                if outer in arms:
                    ours, theirs = child in outer.body, arms[outer] in outer.body
                    return ours is not theirs and child is not outer.test
        return False

    def _arms(self, node: ast.AST) -> dict[ast.If, ast.AST]:
        """Each `if` around ``node``, from the inside out, with the part of it that holds ``node``."""
        arms = self._arms_of.get(node)
        if arms is None:
            arms = {}
            child = node
            for outer in self._tree.ancestors(node):
                if isinstance(outer, ast.If):
                    arms[outer] = child
                child = outer
            self._arms_of[node] = arms
        return arms

    def _scopes(self, scope: Scope) -> Iterator[Scope]:
        """The scopes a name used in ``scope`` is looked up in; a class body hides from its methods."""
        yield scope
        while not isinstance(scope, ast.Module):
            scope = self._tree.scope(scope)
            if not isinstance(scope, ast.ClassDef):
                yield scope

    # ---- resolution

    def resolve(self, expression: ast.expr | None) -> str | None:
        """The full dotted name of what ``expression`` stands for: ``torch.cuda.amp.GradScaler``.

        Imports under any spelling, local aliases (``sync = torch.cuda.synchronize``) and functions of the file (their
        plain name) are followed; built-in functions have their plain name. None where it is a value of unknown origin.
        """
        if expression is None:
            return None
        try:
            return self._resolved[expression]
        except KeyError:
            name = self._resolve(expression, 0)
            known = self._resolved[expression] = canonical(name) if name else None
            return known

    def written(self, expression: ast.expr | None) -> str | None:
        """As ``resolve``, with the module path as it is imported and no private path made public."""
        return self._resolve(expression, 0)

    def _resolve(self, expression: ast.expr | None, depth: int) -> str | None:
        if depth > _MAX_DEPTH:
            return None
        if isinstance(expression, ast.Attribute):
            base = self._resolve(expression.value, depth + 1)
            if base is not None:
                return f"{base}.{expression.attr}"
            return self._follow(self.lookup(expression), depth)
        return self._resolve_name(expression, depth) if isinstance(expression, ast.Name) else None

    def _resolve_name(self, name: ast.Name, depth: int) -> str | None:
        found = self.lookup(name)
        if found:
            followed = self._follow(found, depth)
            # `torch = _torch()`: imported late, and handed on
            return "torch" if followed is None and name.id == "torch" else followed
        for module in self.stars:
            if name.id in _STAR.get(module, ()):
                return f"{module}.{name.id}"
        return name.id

    def _follow(self, found: list[Binding], depth: int) -> str | None:
        imported = next((binding for binding in found if binding.how is Bound.IMPORT), None)
        if imported is not None:
            return imported.target
        last = found[-1] if found else None
        if last is None or (len(found) > 1 and last.how not in {Bound.FUNCTION, Bound.CLASS}):
            return None
        if last.how in {Bound.FUNCTION, Bound.CLASS}:
            return last.name
        if last.how is Bound.ASSIGN and last.index is None and isinstance(last.value, ast.Name | ast.Attribute):
            return self._resolve(last.value, depth + 1)
        return None

    def resolve_all(self, expression: ast.expr) -> tuple[str, ...]:
        """Every dotted name that ``expression`` may stand for, where try/except imports bind it twice."""
        if isinstance(expression, ast.Attribute):
            return tuple(canonical(f"{base}.{expression.attr}") for base in self.resolve_all(expression.value))
        found = [canonical(b.target) for b in self.lookup(expression) if b.how is Bound.IMPORT]
        return tuple(dict.fromkeys(found)) or ((name,) if (name := self.resolve(expression)) else ())

    # ---- definitions

    def function(self, call: ast.Call) -> Function | None:
        """The def of this file that ``call`` calls: by name, as a method of self, or of an object of a class here."""
        if call not in self._called:
            self._called[call] = self._function(call)
        return self._called[call]

    def _function(self, call: ast.Call) -> Function | None:
        match call.func:
            case ast.Name():
                found = self.lookup(call.func)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr):
                owner = self._tree.class_(call)
                found = self.of(owner, attr) if owner is not None else []
            case _:
                return None
        last = found[-1].node if found and all(b.how is Bound.FUNCTION for b in found) else None
        return last if isinstance(last, FUNCTIONS) else None

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """The classes defined anywhere in the file, by name."""
        return {node.name: node for node in self._tree.nodes(ast.ClassDef)}

    def bases(self, node: ast.ClassDef) -> Iterator[str]:
        """The dotted names of all bases, through the classes of this file."""
        todo, seen = [node], {node}
        while todo:
            for base in todo.pop().bases:
                name = self.resolve(base)
                if name is None:
                    continue
                yield name
                known = self.classes.get(name)
                if known is not None and known not in seen:
                    seen.add(known)
                    todo.append(known)

    # ---- collection

    def _collect(self) -> Iterator[tuple[Binding, Scope]]:
        tree = self._tree
        for node in tree.nodes(ast.Import):
            yield from (self._placed(_imported(node, alias)) for alias in node.names)
        for node in tree.nodes(ast.ImportFrom):
            yield from self._import_from(node)
        for node in tree.nodes(ast.Assign):
            for target in node.targets:
                yield from self._targets(target, node.value, node, Bound.ASSIGN)
        for node in tree.nodes(ast.AnnAssign):
            yield from self._targets(node.target, node.value, node, Bound.ASSIGN) if node.value else ()
        for node in tree.nodes(ast.AugAssign):
            yield from self._targets(node.target, node.value, node, Bound.AUGMENTED)
        for node in tree.nodes(ast.NamedExpr):
            yield from self._targets(node.target, node.value, node, Bound.ASSIGN)
        yield from self._collect_blocks()
        yield from self._collect_definitions()

    def _collect_blocks(self) -> Iterator[tuple[Binding, Scope]]:
        tree = self._tree
        for node in (*tree.nodes(ast.For), *tree.nodes(ast.AsyncFor)):
            yield from self._targets(node.target, node.iter, node, Bound.LOOP)
        for node in tree.nodes(ast.comprehension):
            yield from self._targets(node.target, node.iter, node.target, Bound.LOOP)
        for node in tree.nodes(ast.withitem):
            if node.optional_vars is not None:
                yield from self._targets(node.optional_vars, node.context_expr, node.context_expr, Bound.WITH)
        for node in tree.nodes(ast.ExceptHandler):
            if node.name:
                yield self._placed(Binding(name=node.name, how=Bound.OTHER, node=node, position=position(node)))

    def _collect_definitions(self) -> Iterator[tuple[Binding, Scope]]:
        tree = self._tree
        for node in (*tree.nodes(ast.FunctionDef), *tree.nodes(ast.AsyncFunctionDef)):
            yield self._placed(Binding(name=node.name, how=Bound.FUNCTION, node=node, position=position(node)))
        for node in tree.nodes(ast.ClassDef):
            yield self._placed(Binding(name=node.name, how=Bound.CLASS, node=node, position=position(node)))
        for arguments in tree.nodes(ast.arguments):
            for argument, default in defaults(arguments):
                yield self._placed(
                    Binding(
                        name=argument.arg,
                        how=Bound.PARAMETER,
                        node=argument,
                        position=position(argument),
                        value=default,
                    )
                )

    def _placed(self, binding: Binding) -> tuple[Binding, Scope]:
        scope = self._tree.scope(binding.node)
        while isinstance(scope, FUNCTIONS) and (scope, binding.name) in self._declared:
            scope = self._tree.scope(scope)
        return binding, scope

    def _import_from(self, node: ast.ImportFrom) -> Iterator[tuple[Binding, Scope]]:
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(module)
                continue
            target = f"{module}.{alias.name}" if module.strip(".") else f"{module}{alias.name}"
            yield self._placed(_binding(alias.asname or alias.name, node, target))

    def _targets(
        self, target: ast.expr, value: ast.expr | None, node: ast.AST, how: Bound, index: int | None = None
    ) -> Iterator[tuple[Binding, Scope]]:
        match target:
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                pairs = value.elts if isinstance(value, ast.Tuple | ast.List) and how is Bound.ASSIGN else None
                paired = pairs is not None and len(pairs) == len(elements)
                for number, element in enumerate(elements):
                    one = pairs[number] if pairs is not None and paired else value
                    outer = number if index is None else index
                    yield from self._targets(element, one, node, how, None if paired else outer)
            case ast.Starred(value=inner):
                yield from self._targets(inner, value, node, how, index)
            case _ if (name := dotted(target)) is not None:
                bound = Binding(name=name, how=how, node=node, position=position(target), value=value, index=index)
                owner = self._tree.class_(target) if name.startswith(("self.", "cls.")) else None
                yield (bound, owner) if owner is not None else self._placed(bound)
            case _:
                return


def canonical(name: str) -> str:
    """The public spelling of a dotted name: torch's internal files are left out."""
    if name.startswith(_PRIVATE):
        private, public = next(pair for pair in _CANONICAL if name.startswith(pair[0]))
        return public + name.removeprefix(private)
    # `import tools as T; T.cuda.amp.autocast`: whatever the module is, this is torch's
    return f"torch{found[1]}" if (found := _reexported(name)) else name


def _reexported(name: str) -> tuple[str, str] | None:
    head, marker, tail = name.partition(".cuda.amp.")
    if marker and not head.startswith("torch") and tail in _STAR["torch.cuda.amp"]:
        return head, f"{marker}{tail}"
    return None


def position(node: ast.AST) -> tuple[int, int]:
    """Line and column of a node, for the order in the source."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def defaults(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Every parameter with its default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    padding: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    yield from zip(positional, [*padding, *arguments.defaults], strict=True)
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    for rest in (arguments.vararg, arguments.kwarg):
        if rest is not None:
            yield rest, None


def _imported(node: ast.Import, alias: ast.alias) -> Binding:
    head = alias.name.partition(".")[0]
    return _binding(alias.asname or head, node, alias.name if alias.asname else head)


def _binding(name: str, node: ast.stmt, target: str) -> Binding:
    return Binding(name=name, how=Bound.IMPORT, node=node, position=position(node), target=target)
