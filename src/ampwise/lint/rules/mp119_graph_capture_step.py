"""MP119: a scaler steps, or autocast keeps its cache, while a CUDA graph is captured."""

import ast
from collections.abc import Iterator

from ampwise.lint.events import Act, Event
from ampwise.lint.regions import Region, argument
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile
from ampwise.records.finding import Example, Finding, RuleInfo, Severity


def _capture(autocast: str, inside: str, outside: str = "") -> str:
    return f"""
import torch
def train(model, optimizer, scaler, loader, criterion, x, y):
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        with torch.autocast({autocast}):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        {inside}
    for batch in loader:
        x.copy_(batch)
        graph.replay()
        {outside}
"""


_STEP = "scaler.step(optimizer); scaler.update()"

INFO = RuleInfo(
    id="MP119",
    name="graph-capture-step",
    severity=Severity.ERROR,
    why="scaler.step() waits for the device to ask whether a gradient is infinite, which a capture forbids, and what "
    "it decided would be replayed for ever. Autocast's cache of cast weights dies with the capture, and every "
    "replay would use the weights of that moment.",
    remedy="Capture forward and backward only, under autocast(cache_enabled=False), and step after graph.replay().",
    evidence="torch's notes on CUDA, 'CUDA Graphs: Usage with torch.cuda.amp'; torch.autocast's 'cache_enabled'.",
    bad=(
        Example(source=_capture('"cuda", cache_enabled=False', "scaler.step(optimizer)", "scaler.update()")),
        Example(source=_capture('"cuda"', "pass", _STEP)),
    ),
    good=(
        Example(source=_capture('"cuda", cache_enabled=False', "pass", _STEP)),
        Example(title="autocast switched off", source=_capture('"cuda", enabled=False', "pass", _STEP)),
        Example(
            title="an optimizer that can be captured", source=_capture('"cuda", enabled=False', "optimizer.step()")
        ),
        Example(
            title="a graph of another kind",
            source="""
import networkx
def walk(scaler, optimizer, model, x):
    with networkx.graph(x):
        scaler.step(optimizer)
        scaler.update()
""",
        ),
    ),
)


def check(file: SourceFile) -> Iterator[Finding]:
    """What a capture of a CUDA graph must not hold."""
    for node in file.tree.nodes(ast.With):
        if not any(_is_capture(file, item.context_expr) for item in node.items):
            continue
        for event in file.flow.events_in(node):
            if _is_stepping(event):
                what = ast.unparse(event.node)
                yield file.finding(INFO, event.node, f"{what} cannot be captured: it belongs after the replay")
        yield from _cached(file, node)


def _is_capture(file: SourceFile, expression: ast.expr) -> bool:
    return isinstance(expression, ast.Call) and file.names.resolve(expression.func) == "torch.cuda.graph"


def _is_stepping(event: Event) -> bool:
    is_scaled = event.act is Act.STEP and event.scaler is not None
    return is_scaled or event.act in {Act.UNSCALE, Act.UPDATE}


def _cached(file: SourceFile, capture: ast.With) -> Iterator[Finding]:
    """The autocast regions in a capture that keep a cache."""
    for region in file.regions.all():
        is_within = region.node is capture or capture in file.tree.ancestors(region.node)
        if is_within and region.call is not None and region.enabled is not False and not _has_no_cache(region):
            message = "autocast within a capture needs cache_enabled=False"
            yield file.finding(INFO, region.call, message, severity=Severity.WARNING)


def _has_no_cache(region: Region) -> bool:
    return argument(region.call, "cache_enabled", 3) is not None


RULE = Rule(info=INFO, check=check, words=("cuda.graph", "import graph"))
