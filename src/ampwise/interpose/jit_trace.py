"""Rows for TorchScript's tracer, whose graph would hold the casts of whoever traces."""

from ampwise.interpose.row import Row

TRACE = Row(
    name="torch.jit.trace",
    owner="torch.jit",
    attribute="trace",
    why="casts and cached weights would be baked into the graph, and its sanity check fails",
    obstacle="jit_trace",
)
TRACE_MODULE = Row(
    name="torch.jit.trace_module",
    owner="torch.jit",
    attribute="trace_module",
    why="casts and cached weights would be baked into the graph, and its sanity check fails",
    obstacle="jit_trace_module",
)
