import dataclasses

import pytest

from ampwise.records.casts import CastOrigin, CastPlace, CastRecord
from ampwise.records.site import Phase, Site

CAST = CastPlace(
    site=Site(phase=Phase.FORWARD),
    origin=CastOrigin.AUTOCAST,
    source="fp32",
    target="bf16",
    reason="aten.mm",
    count=2,
    bytes=60,
    ms=1.0,
)
RECORD = CastRecord(
    steps=(1,), calls=(), casts=(CAST, CAST), num_operators=9, operator_bytes=480, operator_ms=8.0, cost_ms=0.0
)


def test_shares_are_of_all_operators():
    assert RECORD.num_casts == 4
    assert RECORD.byte_share == 0.25
    assert RECORD.time_share == pytest.approx(0.25)


def test_without_operators_there_is_no_share():
    empty = dataclasses.replace(RECORD, casts=(), operator_bytes=0, operator_ms=None)
    assert empty.byte_share == 0.0
    assert empty.time_share is None
