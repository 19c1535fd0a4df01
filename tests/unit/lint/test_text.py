import ast

import pytest

from ampwise.lint.text import SourceText


def test_positions_are_bytes_inside_and_characters_outside():
    text = SourceText('x = "ü" + yé\n'.encode())
    name = next(node for node in ast.walk(ast.parse(text.text)) if isinstance(node, ast.Name) and node.id == "yé")
    assert text.segment(name) == "yé"
    assert name.col_offset == 11
    assert text.column(1, name.col_offset) == 11  # the umlaut is two bytes and one character; columns count from 1


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lines_end_as_python_counts_them(newline):
    text = SourceText(newline.join(["a = 1", "b = 2\f", "c = 3"]).encode())
    last = ast.parse(text.text).body[-1]
    assert text.segment(last) == "c = 3"
    assert text.line_bytes(3) == b"c = 3"
    assert text.newline == newline
    assert [text.line_at(offset) for offset in (0, text.start(last))] == [1, 3]


@pytest.mark.parametrize(
    ("raw", "encoding"),
    [
        (b"\xef\xbb\xbfx = 1\n", "utf-8-sig"),
        (b"# -*- coding: latin-1 -*-\ns = '\xe9'\n", "iso-8859-1"),
        ("s = 'é'\n".encode(), "utf-8"),
    ],
)
def test_a_text_goes_back_in_the_encoding_it_came_in(raw, encoding):
    text = SourceText(raw)
    assert text.encoding == encoding
    assert text.encode() == raw
    assert text.edited(text.data).encode() == raw


@pytest.mark.parametrize("raw", [b"# coding: nonsense\n", b"x = '\xff'\n"])
def test_what_is_no_text_is_refused(raw):
    with pytest.raises((SyntaxError, UnicodeDecodeError)):
        SourceText(raw)


def test_comments_are_comments_only():
    text = SourceText(b"x = 1  # noqa: MP101\ny = '# noqa'\n")
    assert text.comments() == {1: "# noqa: MP101"}


def test_comments_up_to_what_tokenize_dislikes_count():
    assert SourceText(b"x = 1  # one\ny = (\n").comments() == {1: "# one"}
