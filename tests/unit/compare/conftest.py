"""Run records as a training run would leave them."""

import pytest

from ampwise.records.run import Failure, RunEnd, RunRecord, StepRecord


def _run_of(losses=(), *, variant="fp32", repeat=0, end=RunEnd.STOPPED, step_ms=10.0, num_samples=32, **fields):
    steps = fields.pop("steps", None)
    if steps is None:
        steps = tuple(
            StepRecord(
                index=index,
                optimizer=0,
                loss=loss,
                time_ms=step_ms if index else None,
                num_samples=num_samples,
            )
            for index, loss in enumerate(losses)
        )
    precision = fields.pop("precision", variant.partition("+")[0])
    return RunRecord(
        variant=variant, precision=precision, reason="asked for", repeat=repeat, end=end, steps=steps, **fields
    )


@pytest.fixture
def run_of():
    return _run_of


@pytest.fixture
def failed_run():
    def make(kind="ValueError", message="no such file", where="train.py:3", *, end=RunEnd.FAILED, **fields):
        return _run_of(end=end, failure=Failure(kind=kind, message=message, where=where), **fields)

    return make
