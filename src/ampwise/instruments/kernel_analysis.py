"""Makes a record of what a profiler saw in one step: a pure function of its events."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ampwise.compat.profiler import ProfiledEvent
from ampwise.instruments.kernel_names import kernel_kind, operator_kind, uses_tensor_cores
from ampwise.instruments.products import Sizes, bytes_of, formats_of, sizes_of
from ampwise.records.kernels import KernelKind, KernelRecord, KernelTime, MatrixProduct, OperatorTime

_MAX_ROWS: Final = 100
_PRODUCTS: Final = frozenset({KernelKind.MATMUL, KernelKind.CONV, KernelKind.ATTENTION})
_NO_OPERATORS: Final = ("autograd::", "torch::autograd::", "profiler::")
_MOVES_NOTHING: Final = frozenset(
    [
        "aten::empty",
        "aten::empty_strided",
        "aten::empty_like",
        "aten::as_strided",
        "aten::view",
        "aten::expand",
        "aten::t",
        "aten::transpose",
        "aten::reshape",
        "aten::detach",
        "aten::resolve_conj",
        "aten::select",
        "aten::slice",
        "aten::unsqueeze",
        "aten::squeeze",
    ]
)

Row = TypeVar("Row", OperatorTime, KernelTime, MatrixProduct)


@dataclass(slots=True, eq=False)
class _Node:
    """An event of the host's, with what it called."""

    event: ProfiledEvent
    is_operator: bool
    parent: "_Node | None" = None
    children_ns: int = 0
    has_children: bool = False
    kernels: list[ProfiledEvent] = field(default_factory=list[ProfiledEvent])

    @property
    def own_ns(self) -> int:
        return max(0, self.event.duration_ns - self.children_ns)

    @property
    def kind(self) -> KernelKind:
        """What it does; a copy between two formats is a cast."""
        kind, formats = operator_kind(self.event.name), formats_of(self.event)
        return KernelKind.CAST if self.event.name == "aten::copy_" and len(formats) > 1 else kind


def analyse(events: Sequence[ProfiledEvent], *, step: int, wall_ms: float) -> KernelRecord:
    """Where the time of a step went, by the profiler's events.

    Args:
        events: Of the host and the device, in any order.
        step: Index of the step.
        wall_ms: How long it took.
    """
    nodes = [node for node in _tree(event for event in events if not event.is_device) if node.is_operator]
    by_number = {node.event.number: node for node in nodes}
    kernels = [event for event in events if event.is_device]
    for kernel in kernels:
        if (node := by_number.get(kernel.launched_by)) is not None:
            node.kernels.append(kernel)
    kinds = {id(kernel): KernelKind.CAST for node in nodes if node.kind is KernelKind.CAST for kernel in node.kernels}
    times = [(kernel, kinds.get(id(kernel), kernel_kind(kernel.name))) for kernel in kernels]
    host_ns = {kind: sum(node.own_ns for node in nodes if node.kind is kind) for kind in KernelKind}
    device_ns = {kind: sum(kernel.duration_ns for kernel, one in times if one is kind) for kind in KernelKind}
    work_ns = device_ns if kernels else host_ns
    on_cores = sum(kernel.duration_ns for kernel in kernels if uses_tensor_cores(kernel.name))
    return KernelRecord(
        step=step,
        device="cuda" if kernels else "cpu",
        wall_ms=wall_ms,
        operators=_largest(_operators(nodes, has_device=bool(kernels))),
        kernels=_largest(_kernels(times)),
        products=_largest(_products(nodes, has_device=bool(kernels))),
        num_operators=len(nodes),
        num_kernels=len(kernels),
        operator_ms=sum(node.own_ns for node in nodes) / 1e6,
        device_busy_ms=_covered_ns(kernels) / 1e6 if kernels else None,
        cast_ms=work_ns[KernelKind.CAST] / 1e6,
        product_ms=sum(work_ns[kind] for kind in _PRODUCTS) / 1e6,
        tensor_core_ms=on_cores / 1e6 if kernels else None,
        kernel_bytes=sum(
            bytes_of(node.event) for node in nodes if not node.has_children and node.event.name not in _MOVES_NOTHING
        ),
    )


def _tree(events: Iterable[ProfiledEvent]) -> list[_Node]:
    """The events of the host, each with the operator that called it: on one thread what lies within was called."""
    by_thread: dict[int, list[ProfiledEvent]] = defaultdict(list)
    for event in events:
        by_thread[event.thread].append(event)
    nodes: list[_Node] = []
    for thread in by_thread.values():
        open_nodes: list[_Node] = []
        for event in sorted(thread, key=lambda one: (one.start_ns, -one.duration_ns)):
            while open_nodes and open_nodes[-1].event.end_ns <= event.start_ns:
                open_nodes.pop()
            node = _Node(event, _is_operator(event.name), open_nodes[-1] if open_nodes else None)
            if node.parent is not None and node.is_operator:
                node.parent.children_ns += event.duration_ns
                node.parent.has_children = True
            nodes.append(node)
            if node.is_operator:  # the driver's functions are part of the operator that called them
                open_nodes.append(node)
    return nodes


def _is_operator(name: str) -> bool:
    return "::" in name and not name.startswith(_NO_OPERATORS) and "evaluate_function" not in name


def _operators(nodes: Iterable[_Node], *, has_device: bool) -> list[OperatorTime]:
    groups: dict[tuple[str, KernelKind, str], list[_Node]] = defaultdict(list)
    for node in nodes:
        groups[node.event.name, node.kind, "+".join(sorted(formats_of(node.event)))].append(node)
    return [
        OperatorTime(
            op=name.replace("::", "."),
            kind=kind,
            dtype=dtype,
            count=len(group),
            host_ms=sum(node.own_ns for node in group) / 1e6,
            device_ms=_kernel_ns(group) / 1e6 if has_device else None,
        )
        for (name, kind, dtype), group in groups.items()
    ]


def _kernels(times: Iterable[tuple[ProfiledEvent, KernelKind]]) -> list[KernelTime]:
    groups: dict[tuple[str, KernelKind], list[int]] = defaultdict(list)
    for kernel, kind in times:
        groups[kernel.name, kind].append(kernel.duration_ns)
    return [
        KernelTime(name=name, kind=kind, count=len(ns), device_ms=sum(ns) / 1e6, tensor_cores=uses_tensor_cores(name))
        for (name, kind), ns in groups.items()
    ]


def _products(nodes: Sequence[_Node], *, has_device: bool) -> list[MatrixProduct]:
    below: dict[_Node, int] = defaultdict(int)
    for node in nodes if has_device else ():
        above: _Node | None = node
        while above is not None:
            below[above] += _kernel_ns([node])
            above = above.parent
    groups: dict[tuple[str, str, Sizes], list[int]] = defaultdict(list)
    for node in nodes:
        sizes = sizes_of(node.event)
        if sizes is not None and all(sizes[:4]):
            ns = below[node] if has_device else node.event.duration_ns
            groups[node.event.name, "+".join(formats_of(node.event)), sizes].append(ns)
    return [_product(*key, ns=ns) for key, ns in groups.items()]


def _product(name: str, dtype: str, sizes: Sizes, *, ns: list[int]) -> MatrixProduct:
    return MatrixProduct(
        op=name.replace("::", "."),
        dtype=dtype,
        m=sizes.m,
        n=sizes.n,
        k=sizes.k,
        batch=sizes.batch,
        count=len(ns),
        ms=sum(ns) / 1e6,
        padded=sizes.padded,
        groups=sizes.groups,
        num_spatial_dims=sizes.num_spatial_dims,
    )


def _kernel_ns(nodes: Iterable[_Node]) -> int:
    return sum(kernel.duration_ns for node in nodes for kernel in node.kernels)


def _covered_ns(events: Iterable[ProfiledEvent]) -> int:
    """How long at least one of ``events`` was going on: kernels of several streams overlap."""
    covered, until = 0, 0
    for event in sorted(events, key=lambda one: one.start_ns):
        covered += max(0, event.end_ns - max(until, event.start_ns))
        until = max(until, event.end_ns)
    return covered


def _largest(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=_time_of, reverse=True)[:_MAX_ROWS])


def _time_of(row: OperatorTime | KernelTime | MatrixProduct) -> float:
    match row:
        case OperatorTime():
            return row.host_ms if row.device_ms is None else row.device_ms
        case KernelTime():
            return row.device_ms
        case MatrixProduct():
            return row.ms
