import ast

import pytest

from ampwise.lint.fix import apply_fixes, splice
from ampwise.lint.source import fix
from ampwise.lint.text import SourceText
from ampwise.records.finding import Edit, Finding, Fix, Severity


def finding(*edits, safe=True):
    made = Fix(edits=tuple(Edit(start=a, end=b, text=text) for a, b, text in edits), is_safe=safe)
    return Finding(rule="MP999", severity=Severity.ERROR, message="x", fix=made)


def apply(source, *findings, allow_unsafe=False):
    result = apply_fixes(SourceText(source.encode()), findings, allow_unsafe=allow_unsafe)
    return result.data.decode(), len(result.done)


def test_edits_are_made_by_bytes():
    assert splice("aüb".encode(), [Edit(start=1, end=3, text="é!")]) == "aé!b".encode()


def test_fixes_side_by_side_are_all_made():
    assert apply("a = f(1)\nb = f(2)\n", finding((4, 5, "g")), finding((13, 14, "hh"))) == ("a = g(1)\nb = hh(2)\n", 2)


def test_of_two_that_overlap_the_first_is_made():
    assert apply("a = f(1)\n", finding((4, 8, "g(1)")), finding((6, 7, "2"))) == ("a = g(1)\n", 1)
    assert apply("a = f(1)\n", finding((4, 4, "x + ")), finding((4, 4, "y + "))) == ("a = x + f(1)\n", 1)


def test_an_edit_that_two_fixes_share_is_made_once():
    shared = (0, 0, "import b\n")
    assert apply("f()\ng()\n", finding(shared, (0, 1, "b.f")), finding(shared, (4, 5, "b.g")))[0] == (
        "import b\nb.f()\nb.g()\n"
    )


def test_an_unsafe_fix_waits_for_leave():
    unsafe = finding((0, 1, "b"), safe=False)
    assert apply("a\n", unsafe) == ("a\n", 0)
    assert apply("a\n", unsafe, allow_unsafe=True) == ("b\n", 1)


@pytest.mark.parametrize(
    "bad",
    [
        finding((4, 8, "f(")),  # does not parse
        finding((7, 8, '); """')),  # swallows what follows
        finding((8, 8, " #")),  # harmless alone, but see the source below
    ],
)
def test_a_fix_that_breaks_something_is_left_out(bad):
    source = 'a = f(1); b = g(2)\nc = """x"""\n'
    good = finding((14, 15, "h"))
    assert apply(source, bad, good) == (source.replace("g(2)", "h(2)"), 1)


def test_a_fix_that_cannot_be_made_is_none():
    assert fix(None, safe=True) is None
    assert fix(Edit(start=0, end=0, text="x"), None, safe=True) is None


# ---- the editor


def statements(file):
    return file.tree.root.body


def edited(file, *edits):
    flat = [edit for edit in edits if edit is not None]
    return splice(file.text.data, sorted(flat, key=lambda edit: edit.start)).decode()


@pytest.mark.parametrize(
    ("source", "after"),
    [
        ("if a:\n    b()\n", "if a:\n    new()\n    b()\n"),
        ("if a:\n\tb()\n", "if a:\n\tnew()\n\tb()\n"),
        ("if a:\r\n    b()\r\n", "if a:\r\n    new()\r\n    b()\r\n"),
        ("if a:\n    @d\n    def b(): pass\n", "if a:\n    new()\n    @d\n    def b(): pass\n"),
    ],
)
def test_insert_before(parse, source, after):
    file = parse(source)
    assert edited(file, file.edit.insert_before(statements(file)[0].body[0], "new()")) == after


@pytest.mark.parametrize(
    ("source", "after"),
    [
        ("if a:\n    b()  # c\n", "if a:\n    b()  # c\n    new()\n"),
        ("if a:\n    b()", "if a:\n    b()\n    new()"),
    ],
)
def test_insert_after(parse, source, after):
    file = parse(source)
    assert edited(file, file.edit.insert_after(statements(file)[0].body[0], "new()")) == after


@pytest.mark.parametrize("source", ["if a: b()\n", "a; b()\n"])
def test_nothing_is_inserted_into_a_shared_line(parse, source):
    file = parse(source)
    last = file.tree.statement(file.tree.nodes(ast.Call)[-1])
    assert file.edit.insert_before(last, "new()") is None
    assert file.edit.insert_after(last, "new()") is None
    assert file.edit.delete(last) is None


@pytest.mark.parametrize(
    ("source", "after"),
    [
        ("if a:\n    b()  # c\n    d()\n", "if a:\n    d()\n"),
        ("if a:\n    b()\n", "if a:\n    pass\n"),
        ("if a:\n    b(1,\n      2)\n    d()\n", "if a:\n    d()\n"),
    ],
)
def test_delete(parse, source, after):
    file = parse(source)
    assert edited(file, file.edit.delete(statements(file)[0].body[0])) == after


def test_dedent_leaves_strings_alone(parse):
    file = parse('with a:\n    b = """\n    text"""\n\n    # c\n    d(\n  1)\n')
    block = statements(file)[0]
    assert edited(file, *file.edit.dedent(block.body, block)) == 'with a:\nb = """\n    text"""\n\n# c\nd(\n  1)\n'


@pytest.mark.parametrize(
    ("source", "name", "after"),
    [
        ("import torch\nx = 1\n", "torch", "import torch\nx = 1\n"),
        ("import torch as T\nx = 1\n", "T", "import torch as T\nx = 1\n"),
        ("import os\nx = 1\n", "torch", "import torch\nimport os\nx = 1\n"),
        ('"""Doc."""\nfrom __future__ import annotations\nimport os\nx = 1\n', "torch", None),
    ],
)
def test_import_module(parse, source, name, after):
    file = parse(source)
    found, edits = file.edit.import_module("torch", file.tree.nodes(ast.Constant)[-1])
    assert found == name
    text = edited(file, *edits)
    assert text == after if after else "annotations\nimport torch\nimport os" in text


@pytest.mark.parametrize("source", ["torch = 1\nimport os\nx = 1\n", "x = 1\n"])
def test_a_taken_name_is_not_imported(parse, source):
    file = parse(source)
    assert file.edit.import_module("torch", file.tree.nodes(ast.Constant)[-1]) is None
