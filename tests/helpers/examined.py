"""Recordings of examinations made by hand: one that lost its numbers, a bare one, a hostile one."""

import math
from dataclasses import replace

import recordings
from ampwise.records.against_fp32 import AgainstFp32Record, ModuleError
from ampwise.records.casts import CastOrigin, CastPlace, CastRecord, OperatorCalls
from ampwise.records.diagnosis import Diagnosis
from ampwise.records.finding import Confidence, Finding, Severity
from ampwise.records.kernels import KernelKind, KernelRecord, MatrixProduct, OperatorTime
from ampwise.records.memory import CategoryBytes, MemoryCategory, MemoryOwner, MemoryPoint, MemoryRecord
from ampwise.records.nonfinite import FoundBy, NonFiniteKind, NonFiniteRecord, Operand, Origin
from ampwise.records.numerics import (
    MagnitudeHistogram,
    NumericsRecord,
    SampledStep,
    TensorKind,
    TensorStatistics,
    bin_of,
)
from ampwise.records.process import ProcessRecord, StepParts
from ampwise.records.recording import Recording
from ampwise.records.run import Role, RunRecord
from ampwise.records.site import Phase, Site
from ampwise.records.syncs import SyncKind, SyncPlace, SyncRecord

PLACE = Site(phase=Phase.FORWARD, module="layers.1.wo", op="aten.mm", file="model.py", line=41)
RULE = '[[rule]]\nmodule = "layers.1.wo"\ncompute = "fp32"\n'
OVERFLOW = Finding(
    rule="DR101",
    severity=Severity.ERROR,
    message="The product overflows fp16",
    site=PLACE,
    evidence="inputs up to 812 and 97 at step 3",
    remedy="keep layers.1.wo in fp32",
    plan_rule=RULE,
)
SLOW = Finding(rule="DR401", severity=Severity.WARNING, confidence=Confidence.LIKELY, message="The loop waits")
FAULTY = Diagnosis(findings=(OVERFLOW, SLOW), reassurances=("every weight fits fp16: the largest is 1 of 65504",))
HEALTHY = Diagnosis(findings=(), reassurances=("no value was non-finite in 60 steps",))


def histogram(*magnitudes: float, num_nan: int = 0) -> MagnitudeHistogram:
    places = [bin_of(one) for one in magnitudes]
    first, end = (min(places), max(places) + 1) if places else (0, 0)
    return MagnitudeHistogram(
        num_zeros=0,
        num_infinite=0,
        num_nan=num_nan,
        first_bin=first,
        counts=tuple(places.count(place) for place in range(first, end)),
    )


def tensor(
    module: str, kind: TensorKind, held: MagnitudeHistogram, *, parameter: str | None = None
) -> TensorStatistics:
    return TensorStatistics(
        module=module,
        module_kind="Linear",
        kind=kind,
        parameter=parameter,
        dtype="fp16",
        num_elements=held.num_elements,
        histogram=held,
    )


def numerics(num_modules: int = 3) -> NumericsRecord:
    spread = [2.0**exponent for exponent in range(-12, 6)]
    tensors = [
        tensor(f"layers.{index}", kind, histogram(*spread), parameter=name)
        for index in range(num_modules)
        for kind, name in (
            (TensorKind.ACTIVATION, None),
            (TensorKind.GRADIENT, None),
            (TensorKind.WEIGHT, "weight"),
            (TensorKind.WEIGHT_GRADIENT, "weight"),
            (TensorKind.UPDATE, "weight"),
        )
    ]
    tensors.append(tensor("layers.1.wo", TensorKind.ACTIVATION, histogram(1e5, 1e-9, 1.0)))
    tensors.append(tensor("head", TensorKind.ACTIVATION, histogram(num_nan=4)))
    return NumericsRecord(num_steps=60, steps=(SampledStep(index=0, scale=65536.0),), tensors=tuple(tensors), every=9)


def point(event: int, phase: Phase, activations: int) -> MemoryPoint:
    parts = (
        CategoryBytes(category=MemoryCategory.PARAMETER, bytes=40 << 20),
        CategoryBytes(category=MemoryCategory.ACTIVATION, bytes=activations << 20),
    )
    return MemoryPoint(event=event, phase=phase, total_bytes=(40 + activations) << 20, categories=parts)


def memory() -> MemoryRecord:
    up = [point(event, Phase.FORWARD, 4 * event) for event in range(20)]
    down = [point(20 + event, Phase.BACKWARD, 80 - 4 * event) for event in range(20)]
    owners = (
        MemoryOwner(category=MemoryCategory.ACTIVATION, site=PLACE, bytes=80 << 20, num_storages=7),
        MemoryOwner(category=MemoryCategory.PARAMETER, site=Site(phase=Phase.OTHER), bytes=40 << 20, num_storages=12),
    )
    return MemoryRecord(step=5, points=(*up, *down), peak=down[0], owners=owners)


def watched(**fields) -> RunRecord:
    operand = Operand(dtype="fp16", shape=(64, 384), minimum=-3756.0, maximum=3504.0)
    origin = Origin(
        step=3, kind=NonFiniteKind.INF, site=PLACE, found_by=FoundBy.TRACE, inputs=(operand,), output=operand
    )
    error = ModuleError(
        module="layers.1.wo",
        module_kind="Linear",
        dtype="fp16",
        num_elements=4096,
        relative=0.0123,
        relative_input=0.0004,
        cosine=0.99,
        max_abs=0.5,
        amax=4.0,
        num_rows=100,
        num_flipped=7,
    )
    given = {
        "role": Role.WATCHED,
        "numerics": numerics(),
        "nonfinite": NonFiniteRecord(num_steps=60, origins=(origin,), traced_steps=(3,), trace_ms=6.5),
        "against_fp32": AgainstFp32Record(format="fp16", step=8, modules=(error,)),
        "memory": memory(),
        "syncs": SyncRecord(
            steps=(1, 2),
            places=(SyncPlace(site=PLACE, kind=SyncKind.SCALAR, call=".item()", count=4, num_steps=2),),
            is_real=False,
            cost_ms=1.0,
        ),
        "kernels": KernelRecord(
            step=10,
            wall_ms=20.0,
            operator_ms=16.0,
            operators=(OperatorTime(op="aten.mm", kind=KernelKind.MATMUL, dtype="fp16", count=50, host_ms=8.0),),
            products=(
                MatrixProduct(
                    op="aten.mm", dtype="fp16", m=64, n=10, k=384, batch=1, count=5, ms=3.0, padded=(64, 16, 384)
                ),
            ),
        ),
        "casts": CastRecord(
            steps=(3, 4),
            calls=(OperatorCalls(site=PLACE, dtype="fp16", result="fp16", count=4, ms=2.0),),
            casts=(
                CastPlace(
                    site=PLACE,
                    origin=CastOrigin.AUTOCAST,
                    source="fp32",
                    target="fp16",
                    reason="aten.mm",
                    count=4,
                    bytes=4096,
                    ms=0.5,
                ),
            ),
            num_operators=10,
            operator_bytes=100_000,
            operator_ms=4.0,
            cost_ms=1.0,
        ),
        "process": ProcessRecord(
            num_steps=8,
            wall_ms=800.0,
            user_ms=700.0,
            system_ms=10.0,
            minor_faults=3,
            major_faults=0,
            parts=StepParts(data_ms=1.0, forward_ms=30.0, backward_ms=60.0, optimizer_ms=8.0, other_ms=1.0),
        ),
        **fields,
    }
    return recordings.run("fp16", "fp16", **given)


def examination(*runs: RunRecord) -> Recording:
    return replace(recordings.recording(runs, []), comparison=None)


def faulty() -> Recording:
    """fp16 lost its numbers at step 3; in fp32 it did not."""
    bad = [math.nan if index > 2 else loss for index, loss in enumerate(recordings.losses(60, 1))]
    steps = recordings.steps(bad, 20.0, 1, skipped=frozenset(range(3, 9)), scale=65536.0)
    return examination(watched(steps=steps), recordings.run("fp32", "fp32", role=Role.IN_FP32))


def bare() -> Recording:
    """A run of which no instrument told anything."""
    return examination(recordings.run("bf16", "bf16", role=Role.WATCHED))


def hostile() -> tuple[Recording, Diagnosis]:
    """Every text of a finding and of the records is out to break the page."""
    bad = recordings.HOSTILE
    site = replace(PLACE, module=bad, op=bad, file=bad)
    finding = replace(OVERFLOW, message=bad, site=site, evidence=bad, remedy=bad, plan_rule=bad, rule=bad)
    run = watched()
    assert run.memory is not None
    assert run.nonfinite is not None
    assert run.syncs is not None
    owners = tuple(replace(one, site=site) for one in run.memory.owners)
    record = replace(numerics(), tensors=(tensor(bad, TensorKind.ACTIVATION, histogram(1.0, 1e6), parameter=bad),))
    run = replace(
        run,
        variant=bad,
        precision=bad,
        reason=bad,
        memory=replace(run.memory, owners=owners),
        numerics=record,
        nonfinite=replace(run.nonfinite, origins=tuple(replace(one, site=site) for one in run.nonfinite.origins)),
        syncs=replace(run.syncs, places=tuple(replace(one, site=site, call=bad) for one in run.syncs.places)),
        notes=(bad,),
    )
    recording = replace(recordings.hostile(), runs=(run,), comparison=None)
    return recording, Diagnosis(findings=(finding,), reassurances=(bad,))


def many(count: int) -> Diagnosis:
    """So many findings, the worst first, with module paths that no line holds."""
    path = ".".join(f"encoder_layer_with_a_long_name_{index}" for index in range(6))
    severities = [Severity.ERROR] * 2 + [Severity.WARNING] * (count // 2) + [Severity.INFO] * count
    return Diagnosis(
        findings=tuple(
            replace(OVERFLOW, rule=f"DR{100 + index}", severity=severity, site=replace(PLACE, module=f"{path}.{index}"))
            for index, severity in enumerate(severities[:count])
        )
    )
