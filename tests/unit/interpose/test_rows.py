"""The laws of every row: what is replaced looks like the original, passes calls through, and is put back."""

import inspect
import pickle
from inspect import getattr_static

import pytest

from ampwise.interpose.seam import intercept, intercepted, owner_of
from rows import all_rows


@pytest.fixture(params=all_rows(), ids=lambda row: row.name)
def target(request):
    row = request.param
    try:
        owner = owner_of(row)
        return row, owner, getattr_static(owner, row.attribute)
    except (ImportError, AttributeError) as error:
        pytest.skip(f"not here: {error}")


def passing(proceed, *args, **kwargs):
    return proceed(*args, **kwargs)


def signature(value):
    try:
        return inspect.signature(value)
    except (TypeError, ValueError) as error:
        return type(error)


def test_the_original_comes_back_by_identity(target):
    row, owner, original = target
    undo = intercept(row, passing)
    replaced = getattr_static(owner, row.attribute)
    undo()
    undo()
    assert replaced is not original
    assert getattr_static(owner, row.attribute) is original


def test_signature_name_and_documentation_stay(target):
    row, owner, _ = target
    before = getattr(owner, row.attribute)
    undo = intercept(row, passing)
    after = getattr(owner, row.attribute)
    undo()
    assert signature(after) == signature(before)
    assert (after.__name__, after.__doc__) == (before.__name__, before.__doc__)


def test_what_is_pickled_is_the_original_without_ampwise(target):
    row, owner, _ = target
    undo = intercept(row, passing)
    data = pickle.dumps(getattr(owner, row.attribute))
    undo()
    assert b"ampwise" not in data
    assert pickle.loads(data) == getattr(owner, row.attribute)


def test_it_says_why(target):
    row, _, _ = target
    assert row.why
    assert len(row.why) > 20


def test_names_are_unique_and_the_table_is_empty_at_rest():
    names = [row.name for row in all_rows()]
    assert len(names) == len(set(names))
    assert intercepted() == ()
