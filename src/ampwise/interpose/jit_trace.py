"""Rows for TorchScript's tracer, which cannot hold what the cast cache gives it."""

from ampwise.interpose.row import Row

TRACE = Row(
    name="torch.jit.trace",
    owner="torch.jit",
    attribute="trace",
    why='with the cast cache on, tracing raises "Cannot insert a Tensor that requires grad as a constant"',
    obstacle="jit_trace",
)
TRACE_MODULE = Row(
    name="torch.jit.trace_module",
    owner="torch.jit",
    attribute="trace_module",
    why='with the cast cache on, tracing raises "Cannot insert a Tensor that requires grad as a constant"',
    obstacle="jit_trace",
)
