"""Which names of a script are models, optimizers and functions, told by how they are made, used and called."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ampwise.runner.placement.source import Function, Source, dotted, last_part

_MODEL_WORD = re.compile(
    r"(?i)models?(_?\w)?$|^nets?(_?\w)?$|net\d?$|network$|critic\d?$|^actor|encoder$|decoder$|generator\w?$|"
    r"discriminator\w?$|policy$|backbone$|criterion|^module$|^[GD]$"
)
_LOSS_WORD = re.compile(r"(?i)loss|criterion|objective")
_NO_MODEL = re.compile(r"^(get|load|build|make|create|init|save|num|reset|zero|set|log|print|n)_|^init|^reset|^unwrap")
_OPTIMIZER_WORD = re.compile(r"(?i:optim)|(^|_)opt(_|\d|[A-Z]|$)|[a-z]opt$|(?i:solver)")
_OPTIMIZER_CLASS = re.compile(r"Adam|SGD|RMSprop|Adagrad|Adadelta|LBFGS|Lion|SAM$|LARS|LAMB|Muon|Adafactor|Optimizer$")
_HOUSEKEEPING = frozenset(
    {
        "parameters",
        "named_parameters",
        "buffers",
        "modules",
        "named_modules",
        "children",
        "train",
        "eval",
        "to",
        "cpu",
        "cuda",
        "half",
        "float",
        "double",
        "bfloat16",
        "state_dict",
        "load_state_dict",
        "zero_grad",
        "requires_grad_",
        "apply",
        "compile",
        "share_memory",
        "register_buffer",
        "add_module",
    }
)
_CHAINED = frozenset(
    {"to", "cuda", "cpu", "train", "eval", "float", "double", "requires_grad_", "apply", "compile", "share_memory"}
)
_MAKERS = frozenset(
    {
        "compile",
        "DataParallel",
        "DistributedDataParallel",
        "DDP",
        "FullyShardedDataParallel",
        "FSDP",
        "from_pretrained",
        "from_config",
        "create_model",
    }
)
_TORCH_COMPUTE = frozenset(
    {
        "matmul",
        "mm",
        "bmm",
        "einsum",
        "addmm",
        "baddbmm",
        "conv1d",
        "conv2d",
        "conv3d",
        "softmax",
        "log_softmax",
        "logsumexp",
        "functional_call",
        "checkpoint",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the names of one script stand for, as far as its own text says."""

    source: Source
    imports: dict[str, str]
    """What imported names are in full: ``F`` is ``torch.nn.functional``."""
    modules: frozenset[str]
    """Classes of the script that are ``nn.Module``s."""
    models: frozenset[str]
    values: frozenset[str]
    """Names that are assigned to and never called: no models, however they sound."""
    optimizers: frozenset[str]
    functions: dict[str, tuple[Function, ...]]
    """The script's functions and methods by bare name."""

    def full(self, node: ast.AST) -> str:
        """The full name of what ``node`` names, through the imports; empty if it is no name."""
        name = dotted(node)
        if name is None:
            return ""
        head, dot, rest = name.partition(".")
        return f"{self.imports.get(head, head)}{dot}{rest}"

    def is_model(self, node: ast.AST) -> bool:
        """Whether ``node`` names a module, by how it is made or used, or by its name."""
        name = dotted(node)
        if name is None:
            return self.makes_model(node)
        last = last_part(name)
        sounds_so = bool(_MODEL_WORD.search(last) and not _NO_MODEL.search(last))
        return name in self.models or (sounds_so and name not in self.values)

    def makes_model(self, node: ast.AST) -> bool:
        """Whether evaluating ``node`` gives a module."""
        return _makes_model(node, imports=self.imports, modules=self.modules)

    def is_optimizer(self, node: ast.AST) -> bool:
        """Whether ``node`` names an optimizer, by how it is made or used, or by its name."""
        name = dotted(node)
        return name is not None and (name in self.optimizers or bool(_OPTIMIZER_WORD.search(last_part(name))))

    def called(self, call: ast.Call) -> tuple[Function, ...]:
        """The script's own functions that ``call`` may run."""
        name = dotted(call.func)
        if name is None or (isinstance(call.func, ast.Attribute) and self.is_optimizer(call.func.value)):
            return ()
        return self.functions.get(last_part(name), ())

    def computes(self, call: ast.Call) -> bool:
        """Whether ``call`` itself runs a model, a loss or an operator worth autocast."""
        full, function = self.full(call.func), call.func
        last = last_part(full)
        if full.startswith("torch.nn.functional.") or (full.startswith("torch.") and last in _TORCH_COMPUTE):
            return True
        if full == "self" or _NO_MODEL.search(last):
            return full == "self"
        if isinstance(function, ast.Attribute) and last in _HOUSEKEEPING:
            return False
        if self.is_model(function) or _LOSS_WORD.search(last):
            return not self.makes_model(call)
        return (
            isinstance(function, ast.Attribute) and dotted(function.value) != "self" and self.is_model(function.value)
        )

    def callers(self, function: Function) -> Iterator[ast.Call]:
        """The calls in the script that may run ``function``."""
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Call) and function in self.called(node):
                yield node


def read_names(source: Source) -> Names:
    """What the names of a script stand for."""
    imports = dict(_imports(source.tree))
    modules = _module_classes(source.tree, imports)
    functions: dict[str, tuple[Function, ...]] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions[node.name] = (*functions.get(node.name, ()), node)
    made = list(_assignments(source.tree))
    optimizers = frozenset(name for name, value in made if _makes_optimizer(value, imports))
    used = frozenset(_used_as_models(source.tree)) - optimizers
    models = used | {name for name, value in made if _makes_model(value, imports=imports, modules=modules)}
    called = {dotted(call.func) for call in calls_in_all(source.tree)}
    return Names(
        source=source,
        imports=imports,
        modules=modules,
        models=frozenset(models),
        values=frozenset(_assigned(source.tree)) - called,
        optimizers=optimizers,
        functions=functions,
    )


def _assigned(tree: ast.Module) -> Iterator[str]:
    """Every name or attribute chain that is assigned to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = dotted(node)
            if name:
                yield name


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                head = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (head, head)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}"


def _module_classes(tree: ast.Module, imports: dict[str, str]) -> frozenset[str]:
    """Names of the classes that inherit from ``nn.Module``, directly or through one another."""
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found: set[str] = set()
    while True:
        more = {
            name for name, node in classes.items() if any(_is_module_base(base, imports, found) for base in node.bases)
        }
        if more <= found:
            return frozenset(found)
        found |= more


def _is_module_base(base: ast.expr, imports: dict[str, str], found: set[str]) -> bool:
    name = dotted(base) or ""
    head, dot, rest = name.partition(".")
    full = f"{imports.get(head, head)}{dot}{rest}"
    return (
        name in found
        or full.startswith(("torch.nn.", "nn."))
        or last_part(full).endswith(("Module", "PreTrainedModel"))
    )


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Each name with what is assigned to it; tuples are taken apart where both sides are written out."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _pairs(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from _pairs(target, value)
            case ast.NamedExpr(target=target, value=value):
                yield target.id, value
            case _:
                pass


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        for one, its in zip(target.elts, value.elts, strict=False):
            yield from _pairs(one, its)
    name = dotted(target)
    if name:
        yield name, value


def _makes_optimizer(value: ast.expr, imports: dict[str, str]) -> bool:
    if not isinstance(value, ast.Call):
        return False
    name = dotted(value.func) or ""
    head, dot, rest = name.partition(".")
    full = f"{imports.get(head, head)}{dot}{rest}"
    if ".lr_scheduler" in full:
        return False
    return full.startswith("torch.optim.") or bool(_OPTIMIZER_CLASS.search(last_part(full)))


def _makes_model(node: ast.AST, *, imports: dict[str, str], modules: frozenset[str]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr in _CHAINED and not dotted(node.func.value):
        return _makes_model(node.func.value, imports=imports, modules=modules)
    name = dotted(node.func) or ""
    head, dot, rest = name.partition(".")
    full = f"{imports.get(head, head)}{dot}{rest}"
    last = last_part(full)
    if full.startswith("torch.nn.") and not full.startswith("torch.nn.functional."):
        return last[:1].isupper() and not last.startswith("Parameter")
    return name in modules or last in _MAKERS or full.startswith(("torchvision.models.", "timm."))


def _used_as_models(tree: ast.Module) -> Iterator[str]:
    """Names on which something is called that only modules have."""
    for call in calls_in_all(tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr in {"parameters", "named_parameters", "eval"}:
            name = dotted(call.func.value)
            if name and name != "self":
                yield name


def calls_in_all(tree: ast.AST) -> Iterator[ast.Call]:
    """Every call written in ``tree``, bodies of functions included."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def identifiers(tree: ast.AST) -> set[str]:
    """Every name that ``tree`` binds or uses."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.alias():
                found.add((node.asname or node.name).partition(".")[0])
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                found.update(names)
            case _:
                pass
    return found
