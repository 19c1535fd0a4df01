"""Reads out of an uncaught exception what the script was doing: the call, its tensors, the module, the pass."""

import ast
import linecache
from collections.abc import Iterator
from itertools import islice
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from ampwise._base.text import inert_line
from ampwise.observe.dropped import dropped_results
from ampwise.observe.dtypes import dtype_name
from ampwise.observe.frames import Line, is_users_file
from ampwise.observe.lookup import value_of
from ampwise.observe.modules import ModuleNames, is_module, unwrapped
from ampwise.records.crash import CrashRecord, CrashTensor, DroppedResult
from ampwise.records.site import Phase, Site

_MOST: Final = 8
_PASSED_ON: Final = ("torch._ops", "torch.overrides", "torch.utils._", "torch._compile", "torch._dynamo", "ampwise")
"""Modules whose frames hand an operator on, and are not where it was called."""
_LOW: Final = (torch.float16, torch.bfloat16)

_Place = tuple[FrameType, int]
"""A frame, and the index of the instruction it was at."""


def read_crash(error: BaseException, *, names: ModuleNames | None = None) -> CrashRecord | None:
    """What the script was in the middle of when ``error`` was raised; None where no frame of it is left.

    Args:
        error: The uncaught exception, with its traceback.
        names: Knows what the script's models are called; by default paths begin at the outermost module called.
    """
    places = [(tb.tb_frame, tb.tb_lasti) for tb in _links(error.__traceback__)]
    shown = [place for place in places if not _is_passed_on(place[0])]
    if not shown:
        return None
    frame, instruction = _calling(shown)
    expression = expression_at(frame.f_code, instruction)
    module, path = _module_of(shown, names)
    low = list(_low_parameters(shown))
    return CrashRecord(
        site=_site(shown, path, _called(expression)),
        expression=inert_line(expression, max_length=200),
        module_kind=type(module).__name__ if module is not None else None,
        tensors=tuple(islice(_tensors(frame, expression), _MOST)),
        low_parameters=tuple(low[:_MOST]),
        num_low_parameters=len(low),
        dropped=tuple(islice(_dropped(shown), _MOST)),
    )


def expression_at(code: CodeType, instruction: int) -> str:
    """The source of the expression that an instruction belongs to, on one line; empty where it is not known."""
    positions = next(islice(code.co_positions(), instruction // 2, None), None)
    if positions is None or None in positions:
        return ""
    first, last, start, end = (number or 0 for number in positions)
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(first, last + 1)]
    if not all(lines):
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return _on_one_line([line.decode(errors="replace").strip() for line in lines])


def _on_one_line(lines: list[str]) -> str:
    """Lines of an expression as one, without the comments among them."""
    tree = _parsed("(" + "\n".join(lines) + "\n)") if len(lines) > 1 else None
    return ast.unparse(tree) if tree is not None else " ".join(lines)


def _links(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _is_passed_on(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(_PASSED_ON)


def _calling(places: list[_Place]) -> _Place:
    """The call that raised: where a library raises by itself, the script's own call of it."""
    frame, instruction = places[-1]
    if expression_at(frame.f_code, instruction).startswith(("raise ", "assert ")):
        return next((one for one in reversed(places) if is_users_file(one[0].f_code.co_filename)), places[-1])
    return places[-1]


def _site(places: list[_Place], path: str | None, op: str | None) -> Site:
    line = next((_line(place) for place in reversed(places) if is_users_file(place[0].f_code.co_filename)), None)
    return Site(
        phase=_phase(places, path),
        module=path,
        op=op,
        file=line.shown_file if line is not None else None,
        line=line.line if line is not None else None,
    )


def _line(place: _Place) -> Line:
    frame, instruction = place
    position = next(islice(frame.f_code.co_positions(), instruction // 2, None), None)
    return Line(frame.f_code.co_filename, (position[0] if position else None) or frame.f_code.co_firstlineno)


def _phase(places: list[_Place], path: str | None) -> Phase:
    """The innermost of the passes that was going on."""
    for frame, _ in reversed(places):
        if frame.f_code.co_name == "_engine_run_backward":
            return Phase.BACKWARD
        if isinstance(frame.f_locals.get("self"), (Optimizer, torch.amp.GradScaler)):
            return Phase.OPTIMIZER
        if is_module(frame.f_locals.get("self")):
            return Phase.FORWARD
    return Phase.OTHER if path is None else Phase.FORWARD


def _module_of(places: list[_Place], names: ModuleNames | None) -> tuple[nn.Module | None, str | None]:
    """The innermost module being called, and its path."""
    called = [frame.f_locals.get("self") for frame, _ in places if frame.f_code.co_name in {"_call_impl", "forward"}]
    modules = [one for one in called if is_module(one)]
    if not modules:
        return None, None
    inner = unwrapped(modules[-1])
    known = names.name_of(inner, parent=modules[0]) if names is not None else None
    if known is not None:
        return inner, known.path
    return inner, next((path for path, one in unwrapped(modules[0]).named_modules() if one is inner), None)


def _called(expression: str) -> str | None:
    match _parsed(expression):
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name
        case ast.BinOp(op=operator):
            return "matmul" if isinstance(operator, ast.MatMult) else type(operator).__name__.lower()
        case _:
            return None


def _parsed(expression: str) -> ast.expr | None:
    try:
        return ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _tensors(frame: FrameType, expression: str) -> Iterator[CrashTensor]:
    """The tensors that the failing expression names, each once."""
    tree = _parsed(expression)
    seen: set[str] = set()
    for node in ast.walk(tree) if tree is not None else ():
        value = value_of(node, frame)
        name = ast.unparse(node) if isinstance(value, torch.Tensor) else ""
        if isinstance(value, torch.Tensor) and name not in seen:
            seen.add(name)
            yield _tensor(name, value)


def _tensor(name: str, tensor: torch.Tensor) -> CrashTensor:
    return CrashTensor(
        name=name, dtype=dtype_name(tensor.dtype), device=str(tensor.device), shape=tuple(map(int, tensor.shape))
    )


def _low_parameters(places: list[_Place]) -> Iterator[CrashTensor]:
    """Parameters in half precision of the optimizer nearest to the crash, by their paths."""
    values = [value for frame, _ in reversed(places) for value in frame.f_locals.values()]
    optimizer = next((value for value in values if isinstance(value, Optimizer)), None)
    if optimizer is None:
        return
    paths = {id(parameter): path for value in _models(places) for path, parameter in value.named_parameters()}
    for parameter in (one for group in optimizer.param_groups for one in group["params"] if one.dtype in _LOW):
        yield _tensor(paths.get(id(parameter), "a parameter of no module"), parameter)


def _models(places: list[_Place]) -> Iterator[nn.Module]:
    """The modules that variables hold; the largest ones last, so that their paths are the ones kept."""
    held: dict[int, nn.Module] = {}
    for frame, _ in places:
        owner: Any = frame.f_locals.get("self")
        for value in (*getattr(owner, "__dict__", {}).values(), *frame.f_locals.values()):
            if is_module(value):
                held[id(value)] = unwrapped(value)
    yield from sorted(held.values(), key=lambda model: sum(1 for _ in model.modules()))


def _dropped(places: list[_Place]) -> Iterator[DroppedResult]:
    seen: set[tuple[str, int]] = set()
    for frame, _ in reversed(places):
        if is_users_file(frame.f_code.co_filename):
            for one in dropped_results(frame):
                if (one.file, one.line) not in seen:
                    seen.add((one.file, one.line))
                    yield one
