import dataclasses

import pytest

from ampwise._base.errors import UsageError
from ampwise.records.run import RunRecord
from ampwise.runner.bootstrap import spec_from_json, spec_to_json
from ampwise.runner.instruments import ROWS, rows_of
from ampwise.runner.spec import LaunchSpec


def test_names_are_unique_and_each_fills_a_field_of_the_record():
    fields = {field.name for field in dataclasses.fields(RunRecord)}
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert {row.field for row in ROWS} <= fields


def test_an_unknown_instrument_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match='"cast" is not an instrument; did you mean "casts"'):
        rows_of(("cast",))


def test_the_order_is_the_tables():
    names = tuple(row.name for row in ROWS)
    assert tuple(row.name for row in rows_of(names[::-1])) == names


def test_the_names_reach_a_child():
    spec = LaunchSpec(instruments=("casts",))
    assert spec_from_json(spec_to_json(spec)) == spec
