"""Recordings written by hand, as doctor's rules are asked of them."""

import math
from dataclasses import replace

import recordings
from ampwise.doctor.case import Case
from ampwise.records.against_fp32 import AgainstFp32Record, Flip, ModuleError
from ampwise.records.nonfinite import BadInput, FoundBy, NonFiniteKind, NonFiniteRecord, Operand, Origin
from ampwise.records.numerics import (
    LostUpdates,
    MagnitudeHistogram,
    NumericsRecord,
    SampledStep,
    TensorKind,
    TensorStatistics,
    bin_of,
)
from ampwise.records.run import Role
from ampwise.records.site import Phase, Site

GOOD = [2.0 - 0.01 * step for step in range(20)]
LOST = [2.0, 1.9, 1.8, *[math.nan] * 17]


def operand(low=None, high=None, *, dtype="fp16", shape=(8, 4), **counts):
    return Operand(dtype=dtype, shape=shape, minimum=low, maximum=high, **counts)


def origin(op, *inputs, output=None, module="net.fc", phase=Phase.FORWARD, kind=NonFiniteKind.INF, **fields):
    site = Site(phase=phase, module=module, op=op, file="train.py", line=7)
    given = {"step": 3, "found_by": FoundBy.TRACE, "output": output or operand(num_infinite=12), **fields}
    return Origin(site=site, kind=kind, inputs=inputs, **given)


def bad_input(name="argument 0", *, module="", is_parameter=False, step=0):
    value = operand(-1.0, 2.0, dtype="fp32", num_nan=1)
    return BadInput(step=step, module=module, name=name, is_parameter=is_parameter, value=value)


def run(precision="fp16", *, losses=GOOD, skipped=(), scale=None, role=Role.WATCHED, **sections):
    steps = recordings.steps(losses, 5.0, 0, skipped=frozenset(skipped), scale=scale)
    return recordings.run(precision, precision, steps=steps, role=role, **sections)


def fp32(*, losses=GOOD, origins=(), **fields):
    nonfinite = NonFiniteRecord(num_steps=20, origins=tuple(origins))
    return run("fp32", losses=losses, role=Role.IN_FP32, nonfinite=nonfinite, **fields)


def seen(*origins, **fields):
    return NonFiniteRecord(num_steps=20, origins=tuple(origins), **fields)


def case(*origins, reruns=(), watched=None, **nonfinite):
    """A run in which ``origins`` were seen, and the runs that were made to find out more."""
    base = watched if watched is not None else run(losses=LOST)
    return Case(recordings.recording([replace(base, nonfinite=seen(*origins, **nonfinite)), *reruns], []))


def of(*runs):
    """The case of runs whose sections are given."""
    return Case(recordings.recording(list(runs), []))


def histogram(*magnitudes, zeros=0):
    """One number a magnitude."""
    counts = {}
    for magnitude in magnitudes:
        counts[bin_of(magnitude)] = counts.get(bin_of(magnitude), 0) + 1
    first, end = min(counts, default=0), max(counts, default=-1) + 1
    return MagnitudeHistogram(
        num_zeros=zeros,
        num_infinite=0,
        num_nan=0,
        first_bin=first if counts else 0,
        counts=tuple(counts.get(place, 0) for place in range(first, end)) if counts else (),
    )


def tensor(kind, *magnitudes, module="net.fc", dtype="fp16", zeros=0, amax=None, lost=(), **fields):
    parameter = None if kind in {TensorKind.ACTIVATION, TensorKind.GRADIENT} else "weight"
    return TensorStatistics(
        module=module,
        module_kind="Linear",
        kind=kind,
        parameter=parameter,
        dtype=dtype,
        num_elements=max(len(magnitudes) + zeros, 1),
        amax=amax if amax is not None else (max(magnitudes, default=0.0),),
        histogram=histogram(*magnitudes, zeros=zeros),
        lost=tuple(lost),
        **fields,
    )


def numerics(*tensors, steps=((0, None),)):
    sampled = tuple(SampledStep(index=index, scale=scale) for index, scale in steps)
    return NumericsRecord(num_steps=20, steps=sampled, tensors=tuple(tensors), every=9)


def lost(num_lost, num_updates, *, name="bf16", is_own=True):
    return LostUpdates(format=name, is_own=is_own, num_lost=num_lost, num_updates=num_updates)


def error(module, relative, given=0.0, *, dtype="bf16", rows=None, amax=1.5, **fields):
    low, high = rows or (64, 64)
    return ModuleError(
        module=module,
        module_kind="Linear",
        dtype=dtype,
        num_elements=256,
        relative=relative,
        relative_input=given,
        cosine=0.99,
        max_abs=0.2,
        amax=amax,
        num_rows=64,
        num_distinct=low,
        num_distinct_fp32=high,
        **fields,
    )


def against_fp32(*modules, flips=(), name="bf16"):
    return AgainstFp32Record(format=name, step=8, modules=tuple(modules), flips=tuple(flips))


def flip(num_flipped, num_decisions, *, module="net.gate"):
    return Flip(
        module=module, op="aten.topk", file="moe.py", line=9, num_decisions=num_decisions, num_flipped=num_flipped
    )
