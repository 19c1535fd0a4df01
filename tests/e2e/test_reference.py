"""The page of the reference has every public name, once, and each says what it answers."""

import inspect

import pytest

import ampwise
from documentation import ROOT

NAMES = [name for name in ampwise.__all__ if name != "__version__"]


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import reference_page

    return reference_page


def test_every_public_name_stands_on_the_page_once(page):
    listed = [name for names in page.GROUPS.values() for name in names]
    assert sorted(listed) == sorted(NAMES)
    words = page.reference().replace("(", " ").split()
    assert [name for name in NAMES if words.count(f"ampwise.{name}") != 1] == []


def test_public_names_are_found_where_they_are_looked_up():
    assert set(ampwise.__all__) - {"__version__"} == set(ampwise._HOMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_says_what_it_answers(name):
    first = inspect.getdoc(getattr(ampwise, name)).splitlines()[0]
    assert first.endswith((".", "?", ":", "``")), first


def test_the_page_is_written_once(page, tmp_path):
    page.write_reference(tmp_path / "reference.md")
    before = (tmp_path / "reference.md").stat().st_mtime_ns
    page.write_reference(tmp_path / "reference.md")
    assert (tmp_path / "reference.md").stat().st_mtime_ns == before
