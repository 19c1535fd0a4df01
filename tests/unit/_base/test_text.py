import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from ampwise._base.text import inert, inert_line


@given(st.text())
def test_inert_text_has_no_control_or_direction_character(text):
    assert not [c for c in inert(text) if c not in "\n\t" and unicodedata.category(c) in {"Cc", "Cf"}]


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cf", "Cs"])))
def test_ordinary_text_is_kept(text):
    assert inert(text) == text


def test_terminal_escapes_vanish_whole():
    assert inert("\x1b[31mred\x1b[0m \x1b]0;title\x07done") == "red done"
    assert inert("a\u202eb\rc") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"


@given(st.text(), st.integers(1, 40))
def test_a_line_is_one_line_of_the_length_asked_for(text, length):
    line = inert_line(text, max_length=length)
    assert len(line) <= length
    assert len(line.splitlines()) <= 1
