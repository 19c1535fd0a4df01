"""Puts the pieces together: from a parsed script to the same script with torch.amp."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ampwise.runner.placement.edits import Edits, indent_unit
from ampwise.runner.placement.home import choose_home, free_name
from ampwise.runner.placement.imports import import_torch, insert_after_imports, torch_name
from ampwise.runner.placement.loop import TrainingStep, find_training_step
from ampwise.runner.placement.names import Names, calls_in_all, read_names
from ampwise.runner.placement.own_amp import Framework, find_own_amp, framework_call, imported_framework, set_argument
from ampwise.runner.placement.regions import Hoist, Regions
from ampwise.runner.placement.scaling import Scaling
from ampwise.runner.placement.source import Source, plain_targets, walk_here

_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
_TENSOR_CHAIN = frozenset({"detach", "cpu", "data", "squeeze", "flatten", "view", "reshape", "contiguous", "clone"})
_BARE_BCE = frozenset({"torch.nn.BCELoss", "torch.nn.functional.binary_cross_entropy"})


@dataclass(slots=True, kw_only=True)
class Placement:
    """Places one precision's lines in one script."""

    source: Source
    precision: str
    device_type: str
    notes: list[str] = field(default_factory=list)
    edits: Edits = field(init=False)
    names: Names = field(init=False)
    torch: str = field(init=False)

    def __post_init__(self) -> None:
        self.edits = Edits(self.source)
        self.names = read_names(self.source)
        self.torch = torch_name(self.source) or "torch"

    def place(self) -> None:
        """Fill ``edits`` and ``notes``; without edits, the notes say why."""
        own = find_own_amp(self.source, self.names)
        taker = framework_call(self.names)
        if self.precision == "fp32":
            self.notes.append("fp32 needs no lines: it is what torch computes in by itself")
        elif own is not None:
            self.notes.append(own)
        elif self.precision == "tf32":
            # convolutions use TF32 by default; products do not
            insert_after_imports(self.edits, f'{self.torch}.set_float32_matmul_precision("high")')
            self._import_torch()
        elif taker is not None:
            self._pass_argument(*taker)
        else:
            self._place_in_loop()

    def _pass_argument(self, framework: Framework, call: ast.Call) -> None:
        wanted = framework.argument(self.precision)
        chosen = set_argument(framework, call)
        if chosen is not None:
            self.notes.append(
                f"line {call.lineno}: {framework.title} is already given {chosen}; for {self.precision} pass {wanted}"
            )
            return
        self.notes.append(
            f"line {call.lineno}: {framework.title} runs the training step; it takes the precision as {wanted}"
        )
        last = [*call.args, *(word.value for word in call.keywords)]
        if last:  # behind the last argument, so that a closing parenthesis may keep its own line
            place = max(self.source.span(one)[1] for one in last)
            self.edits.replace(place, place, f", {wanted}")
        else:
            place = self.source.span(call)[1] - 1
            self.edits.replace(place, place, wanted)

    def _place_in_loop(self) -> None:
        step = find_training_step(self.source, self.names)
        if not step.backwards:
            self.notes.append(self._nothing_found())
            return
        scaling = Scaling(source=self.source, step=step, edits=self.edits, notes=self.notes)
        obstacle = scaling.obstacle() if self.precision == "fp16" else None
        if obstacle is not None:
            self.notes.append(obstacle)
            return
        regions = Regions(source=self.source, step=step)
        self._report_lost(step, regions)
        if self.precision == "fp16":
            self._place_scaler(scaling, step)
        self._place_autocast(regions)
        self.notes += self._warnings()
        if self.edits:
            self._import_torch()

    def _report_lost(self, step: TrainingStep, regions: Regions) -> None:
        for backward in step.backwards:
            if not regions.add(backward):
                self.notes.append(
                    f"line {backward.call.lineno}: what computes this loss was not found in this file; "
                    f"put that under: {self._head()}"
                )

    def _place_scaler(self, scaling: Scaling, step: TrainingStep) -> None:
        home = choose_home(self.source, step)
        line = f'{home.name} = {self.torch}.amp.GradScaler("{self.device_type}")'
        if home.after is None:
            insert_after_imports(self.edits, line)
        else:
            self.edits.insert_after(home.after, line)
        scaling.place(home)

    def _place_autocast(self, regions: Regions) -> None:
        runs = regions.runs()
        for hoist in regions.hoists:
            self._hoist(hoist, next((run for run in runs if regions.leads_to(run, hoist)), None))
        for run in runs:
            self.edits.wrap(run, self._head())
        if self.precision == "bf16":
            self._widen_before_numpy([statement for run in runs for statement in run])

    def _hoist(self, hoist: Hoist, run: list[ast.stmt] | None) -> None:
        """Give a loss that is computed within the backward statement a statement of its own, under autocast.

        It goes to the end of the ``run`` before it, if there is one.
        """
        if not _can_hoist(self.source, hoist):
            line = hoist.expression.lineno
            self.notes.append(
                f"line {line}: computes a loss within a larger expression; give it a statement under: {self._head()}"
            )
            return
        name = free_name(self.source.scope(hoist.statement), "loss", "amp")
        written = self.source.segment(hoist.expression)
        value = f"({written})" if "\n" in written else written
        line = f"{indent_unit(self.source)}{name} = {value}"
        if run is None:
            self.edits.insert_before(hoist.statement, self._head(), line)
        else:
            block = self.source.block(hoist.statement)
            run[:] = block[block.index(run[0]) : block.index(hoist.statement)]
            self.edits.insert_before(hoist.statement, line)
        self.edits.replace(*self.source.span(hoist.expression), name)

    def _widen_before_numpy(self, covered: Iterable[ast.stmt]) -> None:
        """Give ``out.detach().numpy()`` a ``.float()``: numpy has no bf16."""
        computed = {
            (self.source.scope(one), name)
            for statement in covered
            for one in walk_here(statement)
            if isinstance(one, ast.Assign) and isinstance(one.value, ast.Call) and self.names.is_model(one.value.func)
            for target in one.targets
            for name in plain_targets(target)
        }
        for call in calls_in_all(self.source.tree):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "numpy" and not call.args:
                root = _root(call.func.value)
                if root is not None and (self.source.scope(call), root) in computed:
                    end = self.source.span(call.func.value)[1]
                    self.edits.replace(end, end, ".float()")

    def _warnings(self) -> Iterator[str]:
        for call in calls_in_all(self.source.tree):
            full = self.names.full(call.func)
            if full in _BARE_BCE and self.device_type != "cpu":
                yield (
                    f"line {call.lineno}: {full} refuses to run under autocast on {self.device_type}; "
                    "use BCEWithLogitsLoss on what goes into the sigmoid"
                )
            if full == "torch.autograd.grad" and self.precision == "fp16":
                yield (
                    f"line {call.lineno}: torch.autograd.grad is not scaled; in fp16 its gradients may underflow: "
                    "scale its outputs and divide its results, or use bf16"
                )

    def _nothing_found(self) -> str:
        framework = imported_framework(self.names)
        if framework is not None:
            names = " or ".join(framework.classes[:2])
            return (
                f"no backward() in this file, which imports {framework.title}: "
                f"pass {framework.argument(self.precision)} to {names} where it is made"
            )
        return (
            "no backward() in this file, so its training step is elsewhere: show the file that has it, "
            f"or put forward and loss under: {self._head()}"
        )

    def _head(self) -> str:
        return f'with {self.torch}.autocast("{self.device_type}", dtype={self.torch}.{_DTYPES[self.precision]}):'

    def _import_torch(self) -> None:
        if torch_name(self.source) is None:
            import_torch(self.edits)


def _can_hoist(source: Source, hoist: Hoist) -> bool:
    """Whether the expression is evaluated exactly once, whenever its statement runs."""
    if not isinstance(hoist.statement, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return):
        return False
    conditional = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    for one in source.ancestors(hoist.expression):
        if one is hoist.statement:
            return True
        if isinstance(one, conditional):
            return False
    return False


def _root(node: ast.expr) -> str | None:
    """The name at the root of ``out.detach().cpu()``; None if anything but copies and views lies between."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) | ast.Attribute(value=value, attr=attr) if (
            attr in _TENSOR_CHAIN
        ):
            return _root(value)
        case _:
            return None
