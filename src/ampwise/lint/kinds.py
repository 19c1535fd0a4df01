"""What kind of thing an expression is (scaler, optimizer, tensor ...), from construction, use and, last, its name."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Final

from ampwise.lint.names import Binding, Bound, Names
from ampwise.lint.naming import meant_by
from ampwise.lint.torch_names import (
    CONTAINERS,
    CREATORS,
    HALVES,
    LOSS_CLASS,
    MODULE_METHODS,
    NO_GRADS,
    NUMBER_ATTRIBUTES,
    PLAIN_DTYPE,
    PYTHON,
    SAME_DEVICE,
    SCALERS,
    TO_NUMBER,
    WRAPPERS,
)
from ampwise.lint.tree import Function, Tree, dotted
from ampwise.lint.values import (
    NUMBER,
    UNKNOWN,
    Confidence,
    Kind,
    Value,
    is_cpu,
    is_method,
    mixed,
    tensor_arguments,
)

_NO_METHODS: Final = frozenset[str]()


class Kinds:
    """The kinds of a file's expressions, worked out when asked for."""

    def __init__(self, tree: Tree, names: Names) -> None:
        self._tree = tree
        self._names = names
        self._known: dict[ast.expr, Value] = {}
        self._uses: dict[str, Value] = {}
        self._makes: dict[str, Kind | None] = {}
        self._open: set[ast.expr] = set()

    def of(self, expression: ast.expr) -> Value:
        """What is known of ``expression``'s value."""
        known = self._known.get(expression)
        if known is None:
            if expression in self._open or len(self._open) > 60:
                return UNKNOWN
            self._open.add(expression)
            known = self._known[expression] = self._work_out(expression)
            self._open.discard(expression)
        return known

    def is_a(self, expression: ast.expr, kind: Kind, *, at_least: Confidence = Confidence.NAME) -> bool:
        """Whether ``expression`` is of ``kind``, known as surely as asked."""
        value = self.of(expression)
        return value.kind is kind and value.confidence >= at_least

    def _work_out(self, expression: ast.expr) -> Value:
        match expression:
            case ast.Constant() | ast.JoinedStr() | ast.Compare(ops=[ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()]):
                return NUMBER
            case ast.Tuple() | ast.List() | ast.Dict() | ast.ListComp() | ast.DictComp() | ast.Set():
                return UNKNOWN
            case ast.Call():
                return self._call(expression)
            case ast.Name():
                return self._place(expression)
            case ast.Attribute():
                return self._attribute(expression)
            case ast.Subscript(value=inner):
                return self._subscript(expression, inner)
            case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str())):
                return NUMBER
            case ast.BinOp(left=left, right=right):
                return self._joined([left, right])
            case ast.Compare(left=left, comparators=rest):
                return replace(self._joined([left, *rest]), has_graph=False)
            case ast.BoolOp(values=values):
                return self._joined(values)
            case ast.UnaryOp(op=ast.Not()):
                return NUMBER
            case ast.UnaryOp(operand=inner) | ast.NamedExpr(value=inner) | ast.Await(value=inner):
                return self.of(inner)
            case ast.IfExp(body=body, orelse=other):
                first = self.of(body)
                return first if first.kind not in {Kind.UNKNOWN, Kind.NUMBER} else self.of(other)
            case _:
                return UNKNOWN

    def _joined(self, parts: list[ast.expr]) -> Value:
        """What an operator makes of its operands."""
        values = [self.of(part) for part in parts]
        tensors = [value for value in values if value.kind is Kind.TENSOR]
        if tensors:
            return mixed(tensors)
        return NUMBER if all(value.kind is Kind.NUMBER for value in values) else UNKNOWN

    # ---- names

    def _place(self, expression: ast.expr) -> Value:
        bound = self._names.latest(expression)
        made = self._bound(bound, expression) if bound is not None else UNKNOWN
        if made.confidence is Confidence.MADE:
            return made
        name = dotted(expression)
        used = self._used(name) if name is not None else UNKNOWN
        if used.kind is not Kind.UNKNOWN:
            return used
        if made.kind is not Kind.UNKNOWN or name is None:
            return made
        return self._named(name, bound)

    def _bound(self, bound: Binding, expression: ast.expr) -> Value:
        if bound.how is Bound.AUGMENTED and bound.value is not None:
            return self._augmented(bound, expression)
        if bound.value is None or bound.how is Bound.PARAMETER:
            return UNKNOWN
        value = self.of(bound.value)
        match bound.how:
            case Bound.ASSIGN if bound.index is None:
                return value
            case Bound.ASSIGN:
                made = self._returned(bound.value, bound.index) if isinstance(bound.value, ast.Call) else UNKNOWN
                return made if made.kind is not Kind.UNKNOWN else self._unpacked(value)
            case Bound.LOOP:
                return self._iterated(bound, value)
            case _:
                return UNKNOWN

    def _unpacked(self, value: Value) -> Value:
        return value if value.kind in {Kind.TENSOR, Kind.NUMBER} else UNKNOWN

    def _iterated(self, bound: Binding, value: Value) -> Value:
        """An element of what a loop runs over; a loader's batches are on the CPU."""
        if bound.index == 0 and isinstance(bound.value, ast.Call) and is_method(bound.value, "items"):
            return NUMBER
        if value.kind is Kind.LOADER:
            return Value(kind=Kind.TENSOR, confidence=Confidence.USE, on_device=False, has_graph=False)
        if isinstance(bound.value, ast.Call):
            name = self._names.resolve(bound.value.func)
            if name == "range":
                return NUMBER
            if name in {"enumerate", "zip", "tqdm.tqdm", "tqdm", "tqdm.auto.tqdm"} and bound.value.args:
                if name == "enumerate" and bound.index == 0:
                    return NUMBER
                return self._iterated(replace(bound, value=bound.value.args[0]), self.of(bound.value.args[0]))
        return value if value.kind is Kind.TENSOR else UNKNOWN

    def _augmented(self, bound: Binding, expression: ast.expr) -> Value:
        added = self.of(bound.value) if bound.value is not None else UNKNOWN
        earlier = [b for b in self._names.lookup(expression) if b.how is not Bound.AUGMENTED and b.value is not None]
        before = self.of(earlier[0].value) if earlier and earlier[0].value is not None else UNKNOWN
        tensors = [value for value in (before, added) if value.kind is Kind.TENSOR]
        if tensors:
            return mixed(tensors)
        if isinstance(bound.node, ast.AugAssign) and isinstance(bound.node.op, ast.Div | ast.Mult):
            return before  # a quotient by a number tells nothing of what is divided
        return added if added.kind is Kind.NUMBER else before

    def _named(self, name: str, bound: Binding | None) -> Value:
        """A guess from the name alone."""
        if bound is not None and self._is_something_else(bound):
            return UNKNOWN
        return meant_by(name.rpartition(".")[2].partition("[")[0].lstrip("_"))

    def _is_something_else(self, bound: Binding) -> bool:
        """Whether a name's binding tells that it is not what it is called: a container, a meter, a function."""
        if bound.how in {Bound.IMPORT, Bound.FUNCTION, Bound.CLASS}:
            return True
        if bound.how is not Bound.ASSIGN or bound.index is not None:
            return False
        if isinstance(bound.value, ast.Call):
            name = self._names.resolve(bound.value.func) or ""
            last = name.rpartition(".")[2]
            return name in CONTAINERS or (
                last[:1].isupper() and last.endswith(("Meter", "Average", "Metric", "Tracker"))
            )
        return isinstance(bound.value, ast.List | ast.Dict | ast.Tuple | ast.ListComp | ast.DictComp | ast.Set)

    def _used(self, name: str) -> Value:
        """The kind that the methods called on the same name in the file give away."""
        known = self._uses.get(name)
        if known is None:
            known = self._uses[name] = self._used_as(name)
        return known

    def _used_as(self, name: str) -> Value:
        methods = self._methods.get(name, _NO_METHODS)
        if "unscale_" in methods or ("scale" in methods and "update" in methods and "step" in methods):
            return Value(kind=Kind.SCALER, confidence=Confidence.USE)
        if name in self._scales_losses:
            return Value(kind=Kind.SCALER, confidence=Confidence.USE)
        if {"zero_grad", "step"} <= methods:
            return Value(kind=Kind.OPTIMIZER, confidence=Confidence.USE)
        if "backward" in methods:
            return Value(kind=Kind.TENSOR, confidence=Confidence.USE, on_device=True, has_graph=True)
        if "get_last_lr" in methods:
            return Value(kind=Kind.SCHEDULER, confidence=Confidence.USE)
        if methods & {"named_parameters", "load_state_dict", "parameters"} and "eval" in methods:
            return Value(kind=Kind.MODULE, confidence=Confidence.USE)
        return UNKNOWN

    @cached_property
    def _methods(self) -> dict[str, set[str]]:
        """The methods called on each name or dotted place anywhere in the file."""
        found: dict[str, set[str]] = {}
        for call in self._tree.nodes(ast.Call):
            if isinstance(call.func, ast.Attribute) and (name := dotted(call.func.value)):
                found.setdefault(name, set()).add(call.func.attr)
        return found

    @cached_property
    def _scales_losses(self) -> set[str]:
        """The names on which ``.scale(loss).backward()`` is called."""
        return set(self._scaling_names())

    def _scaling_names(self) -> Iterator[str]:
        for call in self._tree.nodes(ast.Call):
            match call.func:
                case ast.Attribute(attr="backward", value=ast.Call(func=ast.Attribute(attr="scale", value=scaler))):
                    if (name := dotted(scaler)) is not None:
                        yield name
                case _:
                    continue

    # ---- calls

    def _call(self, call: ast.Call) -> Value:
        name = self._names.resolve(call.func)
        made = self._made(call, name) if name is not None else UNKNOWN
        if made.kind is Kind.UNKNOWN:
            made = self._returned(call)
        if made.kind is not Kind.UNKNOWN:
            return made
        if isinstance(call.func, ast.Attribute):
            return self._method(call, call.func)
        called = self.of(call.func)
        return self._applied(call, called)

    def _returned(self, call: ast.Call, index: int | None = None) -> Value:
        """What a function of this file returns: a number or a tensor on the device, where all its returns agree."""
        callee = self._names.function(call)
        returned = self._returns.get(callee, []) if callee is not None else []
        parts = [one for whole in returned if (one := _part(whole, index)) is not None]
        values = [self.of(part) for part in parts]
        if not values or len(parts) < len(returned):
            return UNKNOWN
        if all(value.kind is Kind.NUMBER for value in values):
            return NUMBER
        is_computed = all(value.kind is Kind.TENSOR and value.on_device is True for value in values)
        return mixed(values) if is_computed else UNKNOWN

    @cached_property
    def _returns(self) -> dict[Function | None, list[ast.expr]]:
        """What each function of the file returns, a plain None aside."""
        found: dict[Function | None, list[ast.expr]] = {}
        for node in self._tree.nodes(ast.Return):
            is_none = isinstance(node.value, ast.Constant) and node.value.value is None
            if node.value is not None and not is_none:
                found.setdefault(self._tree.function(node), []).append(node.value)
        return found

    def _applied(self, call: ast.Call, called: Value) -> Value:
        """The value of calling a module or loss function."""
        if called.kind not in {Kind.MODULE, Kind.LOSS_FUNCTION}:
            return UNKNOWN
        return Value(
            kind=Kind.TENSOR,
            confidence=Confidence.MADE if called.confidence is Confidence.MADE else Confidence.USE,
            call=call,
            on_device=True,
            has_graph=not self.is_under_no_grad(call),
        )

    def _made(self, call: ast.Call, name: str) -> Value:
        if name not in self._makes:
            self._makes[name] = self._constructed(name)
        kind = self._makes[name]
        if kind is not None:
            return Value(kind=kind, confidence=Confidence.MADE, origin=name, call=call)
        if name in WRAPPERS and call.args:
            return self.of(call.args[0])
        if name in PYTHON or name.startswith(("math.", "numpy.", "time.", "os.", "random.", "np.")):
            return NUMBER
        head, _, last = name.rpartition(".")
        if head == "torch" and last.startswith(("is_", "numel", "get_", "typename")):
            return NUMBER
        if head == "torch" and last in CREATORS:
            return self._created(call, name)
        if head == "torch.nn.functional" or (head == "torch" and last.islower() and self._has_tensor(call)):
            return self._function(call, name)
        return UNKNOWN

    def _constructed(self, name: str) -> Kind | None:
        if name in SCALERS:
            return Kind.SCALER
        head, _, last = name.rpartition(".")
        if head == "torch.optim.lr_scheduler" or (head == "transformers" and "_schedule" in last):
            return Kind.SCHEDULER
        if last.lower().endswith("lrscheduler") or (head.endswith("lr_scheduler") and last[:1].isupper()):
            return Kind.SCHEDULER
        if head in {"torch.optim", "bitsandbytes.optim", "apex.optimizers"} and last[:1].isupper():
            return Kind.OPTIMIZER
        if head in {"torch.nn", "torch.nn.modules"} and last[:1].isupper() and last != "Parameter":
            return Kind.LOSS_FUNCTION if LOSS_CLASS.match(last) else Kind.MODULE
        if head.startswith("torch.utils.data") and last == "DataLoader":
            return Kind.LOADER
        if name.startswith(("torchvision.models.", "timm.create_model")) or name.endswith(".from_pretrained"):
            return Kind.MODULE if "Model" in name or not name.endswith("from_pretrained") else None
        return self._class_kind(name)

    def _class_kind(self, name: str) -> Kind | None:
        """The kind of an instance of a class of this file."""
        node = self._names.classes.get(name)
        for base in self._names.bases(node) if node is not None else ():
            if base == "torch.nn.Module" or base.endswith("LightningModule"):
                return Kind.LOSS_FUNCTION if LOSS_CLASS.match(name) else Kind.MODULE
            if base.startswith("torch.nn."):
                return Kind.MODULE
            if base == "torch.optim.Optimizer":
                return Kind.OPTIMIZER
            if base.startswith("torch.optim.lr_scheduler."):
                return Kind.SCHEDULER
            if base in SCALERS:
                return Kind.SCALER
        return None

    def _has_tensor(self, call: ast.Call) -> bool:
        return any(self.of(argument).kind is Kind.TENSOR for argument in tensor_arguments(call))

    def _created(self, call: ast.Call, name: str) -> Value:
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        device = keywords.get("device")
        return Value(
            kind=Kind.TENSOR,
            confidence=Confidence.MADE,
            origin=name,
            call=call,
            on_device=device is not None and not is_cpu(device),
            is_half=self.is_half_dtype(keywords.get("dtype")) or name.endswith("HalfTensor"),
            has_graph=False,
        )

    def _function(self, call: ast.Call, name: str) -> Value:
        """The value of a function of torch: on the device of its arguments."""
        values = [self.of(argument) for argument in tensor_arguments(call)]
        tensors = [value for value in values if value.kind is Kind.TENSOR]
        if not tensors:
            return Value(kind=Kind.TENSOR, confidence=Confidence.USE, origin=name, call=call)
        value = replace(mixed(tensors), origin=name, call=call, confidence=Confidence.MADE)
        return replace(value, has_graph=False) if self.is_under_no_grad(call) else value

    def _method(self, call: ast.Call, function: ast.Attribute) -> Value:
        owner, attr = self.of(function.value), function.attr
        match owner.kind:
            case Kind.MODULE if attr in MODULE_METHODS:
                return replace(owner, is_half=self._half_after(call, attr, before=owner.is_half))
            case Kind.MODULE | Kind.UNKNOWN | Kind.LOSS_FUNCTION:
                return self._applied(call, self._attribute(function))
            case Kind.SCALER:
                return self._scaled(call, attr)
            case Kind.TENSOR if attr in TO_NUMBER:
                return NUMBER
            case Kind.TENSOR:
                return self._tensor_method(call, owner, attr)
            case Kind.NUMBER:
                return NUMBER
            case _:
                return UNKNOWN

    def _scaled(self, call: ast.Call, attr: str) -> Value:
        if attr == "scale" and call.args:
            return replace(self.of(call.args[0]), kind=Kind.TENSOR, on_device=True, call=call)
        return NUMBER

    def _tensor_method(self, call: ast.Call, owner: Value, attr: str) -> Value:
        value = replace(owner, confidence=max(owner.confidence, Confidence.USE))
        match attr:
            case "cpu":
                return replace(value, on_device=False)
            case "cuda":
                return replace(value, on_device=True)
            case "detach" | "detach_" | "bool" | "long" | "int" | "argmax" | "eq":
                return replace(value, has_graph=False)
            case "to" | "half" | "float" | "double" | "bfloat16" | "type":
                moved = self._moved(call) if attr == "to" else None
                half = self._half_after(call, attr, before=value.is_half)
                return replace(value, on_device=value.on_device if moved is None else moved, is_half=half)
            case _:
                return value

    def _moved(self, call: ast.Call) -> bool | None:
        """Where ``.to(...)`` moves a tensor: True to a device; None where it only changes the dtype."""
        targets = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "device")]
        for target in targets:
            if is_cpu(target):
                return False
            name = self._names.resolve(target)
            if name is None or not name.startswith("torch.") or name.startswith("torch.device"):
                return True
        return None

    def _half_after(self, call: ast.Call, attr: str, *, before: bool | None) -> bool | None:
        match attr:
            case "half":
                return True
            case "float" | "double" | "bfloat16":
                return False
            case "to" | "type":
                dtypes = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "dtype")]
                answers = [answer for dtype in dtypes if (answer := self.is_half_dtype(dtype)) is not None]
                return answers[0] if answers else before
            case _:
                return before

    def is_half_dtype(self, expression: ast.expr | None) -> bool | None:
        """Whether a dtype is float16; None where that is not plain from the source."""
        name = self._names.resolve(expression) if expression is not None else None
        if name in HALVES:
            return True
        return False if name and PLAIN_DTYPE.fullmatch(name) else None

    def _attribute(self, expression: ast.Attribute) -> Value:
        if expression.attr in NUMBER_ATTRIBUTES:
            return NUMBER
        found = self._place(expression)
        if found.kind is not Kind.UNKNOWN:
            return found
        owner = self.of(expression.value)
        if owner.kind is Kind.MODULE:
            return owner if expression.attr == "module" else UNKNOWN
        if owner.kind is Kind.TENSOR and expression.attr in SAME_DEVICE:
            return owner if expression.attr != "data" else replace(owner, has_graph=False)
        if expression.attr == "grad":
            return Value(kind=Kind.TENSOR, confidence=Confidence.USE, on_device=True, has_graph=False)
        return UNKNOWN

    def _subscript(self, expression: ast.Subscript, inner: ast.expr) -> Value:
        owner = self.of(inner)
        if owner.kind in {Kind.TENSOR, Kind.NUMBER}:
            return owner
        return self._place(expression)

    def is_under_no_grad(self, node: ast.AST) -> bool:
        """Whether ``node`` runs under ``no_grad``, ``inference_mode`` or ``set_grad_enabled(False)``."""
        for outer in self._tree.ancestors(node):
            if isinstance(outer, ast.With | ast.AsyncWith):
                if any(self._stops_grad(item.context_expr) for item in outer.items):
                    return True
            elif isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
                return any(self._stops_grad(decorator) for decorator in outer.decorator_list)
        return False

    def _stops_grad(self, expression: ast.expr) -> bool:
        call = expression if isinstance(expression, ast.Call) else None
        name = self._names.resolve(call.func if call else expression)
        if name in NO_GRADS:
            return True
        if name != "torch.set_grad_enabled" or call is None or not call.args:
            return False
        return isinstance(call.args[0], ast.Constant) and call.args[0].value is False


def _part(whole: ast.expr, index: int | None) -> ast.expr | None:
    """The element of what is returned that a name gets; None where it is not written out."""
    if index is None:
        return whole
    elements = whole.elts if isinstance(whole, ast.Tuple) else []
    return elements[index] if index < len(elements) else None
