"""Recordings made by hand: what a comparison can come to."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ampwise.records.comparison import Comparison, VariantSummary, Verdict
from ampwise.records.environment import Environment
from ampwise.records.recording import Recording
from ampwise.records.run import Failure, RunEnd, RunRecord, StepRecord
from ampwise.records.switches import SwitchRecord

ENVIRONMENT = Environment(
    ampwise="0.1.0",
    python="3.11.9",
    torch="2.13.0+cpu",
    platform="Linux-6.1.0-x86_64-with-glibc2.36",
    device="cpu",
    device_name="Intel(R) Xeon(R) Platinum 8481C",
    num_threads=2,
    allocator="tuned (mallopt: mmap_threshold and trim_threshold raised)",
)
COMMAND = ("examples/char_gpt.py", "--lr", "3e-4")


def wobble(index: int, seed: int) -> float:
    """Noise in [-1, 1] that is the same every time."""
    return math.sin(12.9898 * index + 78.233 * seed) * math.cos(4.1414 * index * (seed + 1))


def losses(num_steps: int, seed: int, *, floor: float = 1.9) -> list[float]:
    return [floor + 2.3 * math.exp(-index / 18) + 0.05 * wobble(index, seed) for index in range(num_steps)]


def steps(
    run_losses: Sequence[float],
    time_ms: float,
    seed: int,
    *,
    skipped: frozenset[int] = frozenset(),
    scale: float | None = None,
) -> tuple[StepRecord, ...]:
    return tuple(
        StepRecord(
            index=index,
            optimizer=0,
            loss=loss,
            time_ms=None
            if index == 0
            else time_ms * (1 + 0.03 * wobble(index, seed) + (0.2 if index % 17 == 3 else 0)),
            num_samples=16,
            skipped=index in skipped,
            scale=None if scale is None else scale / 2 ** sum(step < index for step in skipped),
        )
        for index, loss in enumerate(run_losses)
    )


def run(
    variant: str, precision: str, *, time_ms: float = 100.0, repeat: int = 0, num_steps: int = 60, **fields
) -> RunRecord:
    given = {
        "reason": "asked for",
        "end": RunEnd.STOPPED,
        "steps": steps(losses(num_steps, repeat), time_ms, repeat),
        "peak_tensor_bytes": 1_900_000_000,
        **fields,
    }
    return RunRecord(variant=variant, precision=precision, repeat=repeat, **given)


def summary(variant: str, precision: str | None, **fields) -> VariantSummary:
    given = {
        "step_ms_median": 100.4,
        "step_ms_iqr": 2.31,
        "samples_per_second": 159.4,
        "projected_hours": 2.789,
        "final_loss": 1.9876,
        "verdict": Verdict.IDENTICAL,
        "verdict_reason": "the reference itself",
        "peak_tensor_bytes": 1_900_000_000,
        "peak_allocated_bytes": None,
        "num_skipped": 0,
        "final_scale": None,
        "ratio_time": 1.0,
        "ratio_memory": 1.0,
        "error": None,
        **fields,
    }
    return VariantSummary(variant=variant, precision=precision, **given)


def failed(variant: str, precision: str | None, error: str) -> VariantSummary:
    names = (
        "step_ms_median step_ms_iqr samples_per_second projected_hours final_loss verdict verdict_reason "
        "peak_tensor_bytes ratio_time ratio_memory"
    )
    return summary(variant, precision, error=error, **dict.fromkeys(names.split()))


def recording(runs: Sequence[RunRecord], variants: Sequence[VariantSummary], *, num_repeats: int = 1) -> Recording:
    return Recording(
        created="2026-03-02T14:05:11+00:00",
        command=COMMAND,
        environment=ENVIRONMENT,
        runs=tuple(runs),
        comparison=Comparison(variants=tuple(variants), num_steps=60, num_repeats=num_repeats, project_steps=100_000),
    )


FP32 = run("fp32", "fp32")
BF16 = summary(
    "auto",
    "bf16",
    step_ms_median=43.5,
    step_ms_iqr=1.12,
    samples_per_second=367.8,
    projected_hours=1.208,
    final_loss=1.9911,
    verdict=Verdict.WITHIN_NOISE,
    verdict_reason="its last losses differ from fp32's by 0.0035 on average; two fp32 seeds differ by 0.0210",
    peak_tensor_bytes=1_170_000_000,
    ratio_time=2.308,
    ratio_memory=1.624,
)


def normal() -> Recording:
    """Two variants, two repeats, all well."""
    runs = [
        made
        for repeat in (0, 1)
        for made in (
            run("fp32", "fp32", repeat=repeat),
            run(
                "auto",
                "bf16",
                repeat=repeat,
                reason="bf16 matrix products are 3.4x as fast as fp32 here (measured)",
                steps=steps(losses(60, repeat + 5), 43.5, repeat),
                peak_tensor_bytes=1_170_000_000,
                notes=("torch.save of best.pt went to the scratch folder",),
            ),
        )
    ]
    return recording(runs, [summary("fp32", "fp32"), BF16], num_repeats=2)


def crashed() -> Recording:
    """The second variant raised, the third finished."""
    failure = Failure(
        kind="RuntimeError",
        message='mat1 and mat2 must have the same dtype, but got Float and BFloat16\n  File "model.py", line 41',
        where="model.py:41",
    )
    runs = [
        FP32,
        run("bf16", "bf16", end=RunEnd.FAILED, failure=failure, steps=(), peak_tensor_bytes=None),
        run("tf32", "tf32", time_ms=101.0),
    ]
    broken = failed("bf16", "bf16", "RuntimeError at model.py:41: mat1 and mat2 must have the same dtype")
    other = summary("tf32", "tf32", ratio_time=0.992, verdict=Verdict.WITHIN_NOISE)
    return recording(runs, [summary("fp32", "fp32"), broken, other])


def out_of_memory() -> Recording:
    """The first variant did not fit, the second did."""
    failure = Failure(
        kind="OutOfMemoryError", message="CUDA out of memory. Tried to allocate 2.00 GiB.", where="train.py:12"
    )
    runs = [
        run("fp32", "fp32", end=RunEnd.OUT_OF_MEMORY, failure=failure, steps=(), peak_tensor_bytes=None),
        run("fp16", "fp16", steps=steps(losses(60, 1), 40.0, 1, scale=65536.0)),
    ]
    first = failed("fp32", "fp32", "out of memory at train.py:12: Tried to allocate 2.00 GiB")
    second = summary(
        "fp16", "fp16", step_ms_median=40.0, ratio_time=None, ratio_memory=None, verdict=None, final_scale=65536.0
    )
    return recording(runs, [first, second])


def diverged() -> Recording:
    """fp16 went to NaN at step 30, and came back for a moment."""
    bad = [math.nan if 30 <= index < 45 or index > 50 else loss for index, loss in enumerate(losses(60, 3))]
    bad[44] = math.inf
    runs = [
        FP32,
        run(
            "fp16",
            "fp16",
            steps=steps(bad, 55.0, 3, skipped=frozenset(range(31, 36)), scale=65536.0),
            peak_tensor_bytes=1_360_000_000,
        ),
    ]
    second = summary(
        "fp16",
        "fp16",
        final_loss=math.nan,
        verdict=Verdict.DIVERGED,
        verdict_reason="its loss is nan from step 30 on",
        num_skipped=5,
        final_scale=2048.0,
        step_ms_median=55.2,
        samples_per_second=289.9,
        projected_hours=1.533,
        ratio_time=1.819,
        peak_tensor_bytes=1_360_000_000,
        ratio_memory=1.397,
    )
    return recording(runs, [summary("fp32", "fp32"), second])


def skipping() -> Recording:
    """fp16 skipped its first steps while the scale came down, and trained well after."""
    skipped = frozenset({0, 1, 2, 24})
    fp16 = run("fp16", "fp16", steps=steps(losses(60, 2), 52.0, 2, skipped=skipped, scale=2.0**24))
    second = summary(
        "fp16",
        "fp16",
        step_ms_median=52.1,
        samples_per_second=307.1,
        projected_hours=1.447,
        ratio_time=1.927,
        num_skipped=4,
        final_scale=2.0**20,
        verdict=Verdict.DRIFTING,
        verdict_reason="0.08 above fp32; two fp32 seeds differ by 0.02",
    )
    return recording([FP32, fp16], [summary("fp32", "fp32"), second])


def repeated() -> Recording:
    """Four variants, six repeats each."""
    times = {"fp32": 100.0, "bf16": 44.0, "fp16": 61.0, "bf16+compile": 37.0}
    runs = [
        run(
            name,
            name.split("+")[0],
            repeat=repeat,
            steps=steps(losses(60, repeat + 7 * place), time, repeat + place),
            peak_tensor_bytes=1_900_000_000 - 200_000_000 * place,
        )
        for repeat in range(6)
        for place, (name, time) in enumerate(times.items())
    ]
    variants = [
        summary(
            name,
            name.split("+")[0],
            step_ms_median=time,
            samples_per_second=16_000 / time,
            projected_hours=time / 36,
            ratio_time=100.0 / time,
            peak_tensor_bytes=1_900_000_000 - 200_000_000 * place,
            ratio_memory=1.9 / (1.9 - 0.2 * place),
            verdict=Verdict.WITHIN_NOISE,
        )
        for place, (name, time) in enumerate(times.items())
    ]
    return recording(runs, variants, num_repeats=6)


def empty() -> Recording:
    """No run, no comparison."""
    return replace(recording([], []), comparison=None)


MARKUP = "<img src=x onerror=alert(1)>"
HOSTILE = f"{MARKUP}</script><script>alert(2)</script>\x1b[31mred\x1b[0m\u202egpj[bold]&amp;%{{x}}{{{{7*7}}}}"


def hostile() -> Recording:
    """Every text that a user or a script chose is out to break the page."""
    failure = Failure(kind=HOSTILE, message=HOSTILE * 3, where=HOSTILE)
    second = replace(BF16, variant=HOSTILE, precision=HOSTILE, verdict_reason=HOSTILE)
    third = failed(HOSTILE + "2", HOSTILE, HOSTILE)
    runs = [
        FP32,
        run(HOSTILE, HOSTILE, time_ms=43.5, reason=HOSTILE, notes=(HOSTILE,), left_alone=HOSTILE),
        run(HOSTILE + "2", HOSTILE, end=RunEnd.FAILED, failure=failure, steps=()),
    ]
    texts = "ampwise python torch platform device device_name allocator cuda"
    return replace(
        recording(runs, [summary("fp32", "fp32"), second, third]),
        created=HOSTILE,
        command=(HOSTILE, "--name", HOSTILE, "\udcff.py"),
        environment=replace(ENVIRONMENT, **dict.fromkeys(texts.split(), HOSTILE)),
    )


ALL = (normal, crashed, out_of_memory, diverged, skipping, repeated, empty, hostile)


def moved(step, group, *, up=True, cause="loss is nan"):
    """A group that moved."""
    formats = ("fp16", "fp32")
    return SwitchRecord(step=step, group=group, before=formats[not up], after=formats[up], is_raised=up, cause=cause)


def scheduled() -> Recording:
    """A run whose precision moved, beside one whose did not."""
    switches = (
        moved(20, "blocks.0"),
        moved(20, "blocks.1"),
        moved(30, "head", cause="<b>loud</b>"),
        moved(35, "blocks.0", up=False, cause="quiet for 5 steps"),
        moved(40, "blocks.1", up=False, cause="quiet for 5 steps"),
        moved(42, "head", up=False, cause="quiet for 5 steps"),
        moved(50, "head"),
    )
    made = normal()
    first, *others = made.runs
    return replace(made, runs=(replace(first, switches=switches), *others))
