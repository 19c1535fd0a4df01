import ast

import pytest

from ampwise.lint.tree import dotted

SOURCE = """
@decorate(1)
def outer(a=default()):
    for i in range(3):
        while a:
            inner = lambda: use(i)
    else:
        after()

    class Thing:
        x = field()
"""


def call(file, name):
    return next(node for node in file.tree.nodes(ast.Call) if dotted(node.func) == name)


def test_nodes_come_in_source_order(parse):
    file = parse(SOURCE)
    assert [dotted(node.func) for node in file.tree.nodes(ast.Call)] == [
        "default", "range", "use", "after", "field", "decorate",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("decorate", ast.Module),
        ("default", ast.Module),
        ("range", ast.FunctionDef),
        ("use", ast.Lambda),
        ("field", ast.ClassDef),
    ],
)
def test_the_scope_is_where_a_node_is_evaluated(parse, name, kind):
    file = parse(SOURCE)
    if name == "default":
        # a default is looked up with its parameter, in the function
        assert isinstance(file.tree.scope(call(file, name)), ast.FunctionDef)
    else:
        assert isinstance(file.tree.scope(call(file, name)), kind)


def test_loops_count_bodies_of_the_same_function_only(parse):
    file = parse(SOURCE)
    assert [type(loop) for loop in file.tree.loops(call(file, "use"))] == []
    assert file.tree.loops(call(file, "after")) == []
    statement = file.tree.statement(call(file, "use"))
    assert [type(loop) for loop in file.tree.loops(statement)] == [ast.While, ast.For]


def test_a_block_is_the_list_a_statement_stands_in(parse):
    file = parse("if a:\n    x = 1\n    y = 2\nelse:\n    z = 3\n")
    assert [len(file.tree.block(node)) for node in file.tree.nodes(ast.Assign)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a", "a"),
        ("self.opt", "self.opt"),
        ("opts[0].x", "opts[0].x"),
        ("d['k']", "d['k']"),
        ("d[i]", "d[i]"),
        ("f().x", None),
        ("a + b", None),
        ("d[i + 1]", None),
    ],
)
def test_a_place_has_a_text(text, place):
    assert dotted(ast.parse(text, mode="eval").body) == place


@pytest.mark.parametrize("kinds", [(ast.Call,), (ast.Name, ast.For, ast.Call)])
def test_inside_is_every_node_from_a_node_to_its_last(parse, kinds):
    file = parse(SOURCE)
    everything = [*file.tree.inside(file.tree.root, *kinds)]
    assert {*everything} == {node for node in ast.walk(file.tree.root) if isinstance(node, kinds)}
    for outer in ast.walk(file.tree.root):
        if outer is file.tree.root or outer in file.tree.parents:
            held = {*ast.walk(outer)}
            assert file.tree.inside(outer, *kinds) == [node for node in everything if node in held]
