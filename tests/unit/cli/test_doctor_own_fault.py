"""Where ampwise itself failed, the doctor speaks of ampwise and not of the script."""

from dataclasses import replace

import pytest

from ampwise._base.errors import CannotRunError
from ampwise.cli.doctor import _refuse_own_fault
from ampwise.records.run import Failure, RunEnd


def test_a_fault_of_our_own_is_told_as_one(made):
    recording = made.normal()
    _refuse_own_fault(recording)
    failure = Failure(kind="TypeError", message="no such argument", own_place="ampwise/observe/loop.py:3")
    run = replace(recording.runs[0], end=RunEnd.FAILED, failure=failure)
    with pytest.raises(CannotRunError, match=r"a fault of ampwise's, at ampwise/observe/loop.py:3, .*no such argument"):
        _refuse_own_fault(replace(recording, runs=(run,)))
