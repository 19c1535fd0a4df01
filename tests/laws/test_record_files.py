"""A record survives its file, and a damaged file never surprises its reader."""

import json
import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampwise._base.errors import RecordError
from ampwise.records.comparison import Comparison, VariantSummary, Verdict
from ampwise.records.environment import Environment
from ampwise.records.files import from_json, to_json
from ampwise.records.recording import Recording
from ampwise.records.run import Failure, RunEnd, RunRecord, StepRecord

unhurried = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])

counts = st.integers(min_value=-(2**63), max_value=2**63 - 1)
some_counts = st.none() | counts
numbers = st.none() | st.floats()
text = st.text(max_size=20)
some_text = st.none() | text

steps = st.builds(
    StepRecord,
    index=counts,
    optimizer=counts,
    loss=numbers,
    time_ms=numbers,
    num_samples=some_counts,
    skipped=st.booleans(),
    scale=numbers,
)
runs = st.builds(
    RunRecord,
    variant=text,
    precision=text,
    reason=text,
    repeat=counts,
    end=st.sampled_from(RunEnd),
    steps=st.lists(steps, max_size=3).map(tuple),
    peak_tensor_bytes=some_counts,
    peak_allocated_bytes=some_counts,
    left_alone=some_text,
    failure=st.none() | st.builds(Failure, kind=text, message=text, where=some_text),
    notes=st.lists(text, max_size=2).map(tuple),
)
summaries = st.builds(
    VariantSummary,
    variant=text,
    precision=some_text,
    step_ms_median=numbers,
    step_ms_iqr=numbers,
    samples_per_second=numbers,
    projected_hours=numbers,
    final_loss=numbers,
    verdict=st.none() | st.sampled_from(Verdict),
    verdict_reason=some_text,
    peak_tensor_bytes=some_counts,
    peak_allocated_bytes=some_counts,
    num_skipped=counts,
    final_scale=numbers,
    ratio_time=numbers,
    ratio_memory=numbers,
    error=some_text,
)
comparisons = st.builds(
    Comparison,
    variants=st.lists(summaries, max_size=2).map(tuple),
    num_steps=counts,
    num_repeats=counts,
    project_steps=some_counts,
)
environments = st.builds(
    Environment,
    ampwise=text,
    python=text,
    torch=text,
    platform=text,
    device=text,
    device_name=text,
    num_threads=counts,
    allocator=text,
    cuda=some_text,
)
recordings = st.builds(
    Recording,
    created=text,
    command=st.lists(text, max_size=3).map(tuple),
    environment=environments,
    runs=st.lists(runs, max_size=2).map(tuple),
    comparison=st.none() | comparisons,
)


@given(recordings)
@unhurried
def test_a_recording_survives_the_round_trip(recording):
    back = from_json(to_json(recording), Recording)
    assert repr(back) == repr(recording)  # repr, because nan is not itself


@given(runs)
@unhurried
def test_a_run_survives_the_round_trip(run):
    assert repr(from_json(to_json(run).encode(), RunRecord)) == repr(run)


@given(recordings)
@unhurried
def test_the_file_is_json_that_any_reader_takes(recording):
    def refuse(word):
        pytest.fail(f"{word} is no JSON")

    json.loads(to_json(recording), parse_constant=refuse)


def _small() -> bytes:
    """A record with every kind of field, small enough to cut and flip everywhere."""
    steps = (
        StepRecord(index=0, optimizer=0, loss=math.nan, time_ms=None),
        StepRecord(index=1, optimizer=0, loss=1e-9, time_ms=12.5, num_samples=8, skipped=True, scale=math.inf),
    )
    failure = Failure(kind="ValueError", message="äöü \N{SNOWMAN}", where="train.py:3")
    run = RunRecord(
        variant="fp16", precision="fp16", reason="asked", repeat=0, end=RunEnd.FAILED, steps=steps, failure=failure
    )
    return to_json(run).encode()


def _reads_or_refuses(content: bytes) -> None:
    try:
        record = from_json(content, RunRecord)
    except RecordError:
        return
    assert repr(from_json(to_json(record), RunRecord)) == repr(record)


def test_a_file_cut_anywhere_is_refused():
    content = _small().rstrip()
    for length in range(len(content)):
        with pytest.raises(RecordError):
            from_json(content[:length], RunRecord)


def _flip(content: bytes, bits: list[int]) -> bytes:
    flipped = bytearray(content)
    for bit in bits:
        flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def test_flipped_bits_are_refused_or_read_as_a_record():
    content, chance = _small(), random.Random(2)
    for _ in range(400):
        _reads_or_refuses(_flip(content, chance.sample(range(8 * len(content)), chance.randint(1, 3))))


def test_every_single_flipped_bit_is_refused_or_read_as_a_record():
    content = _small()
    for bit in range(8 * len(content)):
        _reads_or_refuses(_flip(content, [bit]))


json_values = st.recursive(
    st.none() | st.booleans() | counts | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(text, children, max_size=3),
    max_leaves=8,
)


@given(json_values, st.sampled_from([Recording, RunRecord]))
@unhurried
def test_foreign_json_is_refused_in_one_line(value, kind):
    with pytest.raises(RecordError) as caught:
        from_json(json.dumps(value), kind)
    assert "\n" not in str(caught.value)
