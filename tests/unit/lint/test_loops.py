import ast

import pytest

from ampwise.lint.tree import dotted

HEAD = """
import torch
opt = torch.optim.SGD(model.parameters())
"""


def hot(parse, source):
    """The label of the training loop around the call of mark()."""
    file = parse(HEAD + source)
    mark = next(call for call in file.tree.nodes(ast.Call) if dotted(call.func) == "mark")
    found = file.loops.hot(mark)
    return found.label if found else None


@pytest.mark.parametrize(
    ("source", "label"),
    [
        ("for x in xs:\n    loss.backward()\n    opt.step()\n    mark()", "the training loop"),
        ("def train():\n    for x in xs:\n        loss.backward()\n        opt.step()\n        mark()", "train()"),
        ("for e in es:\n    mark()\n    for x in xs:\n        loss.backward()\n        opt.step()", None),
        ("for x in xs:\n    mark()", None),
        ("for x in xs:\n    loss.backward()\n    mark()", None),
        ("for x in xs:\n    loss.backward()\n    opt.step()\n    if i % 10 == 0:\n        mark()", None),
        ("for x in xs:\n    loss.backward()\n    opt.step()\n    if i == len(xs) - 1:\n        mark()", None),
        ("for x in xs:\n    loss.backward()\n    opt.step()\n    if args.verbose:\n        mark()", None),
        ("for x in xs:\n    loss.backward()\n    opt.step()\n    if rank == 0:\n        mark()", "the training loop"),
        (
            "for x in xs:\n    loss.backward()\n    if i % 4 == 0:\n        opt.step()\n        mark()",
            "the training loop",
        ),
        ("for x in xs:\n    loss.backward()\n    opt.step()\nelse:\n    mark()", None),
        ("def step():\n    loss.backward()\n    opt.step()\n    mark()\nfor x in xs:\n    step()", "step()"),
        (
            "def fit():\n    for x in xs:\n        loss.backward()\n        opt.step()\n\n"  # noqa: ISC004 - one source
            "def check():\n    fit()\ndef main():\n    check()\n    mark()",
            None,
        ),
        ("def look():\n    mark()\nfor x in xs:\n    loss.backward()\n    opt.step()\n    look()", "look()"),
        (
            "def look():\n    mark()\nfor x in xs:\n    loss.backward()\n    opt.step()\n    if i % 9 == 0: look()",
            None,
        ),
        (
            (
                "def train():\n    for x in xs:\n        loss.backward()\n        opt.step()\n"
                "def test():\n    mark()\nfor e in es:\n    train()\n    test()"
            ),
            None,
        ),
        (
            (
                "def back():\n    loss.backward()\ndef train():\n    for x in xs:\n        back()\n        opt.step()\n"
                "        mark()"
            ),
            "train()",
        ),
    ],
)
def test_what_runs_in_every_iteration(parse, source, label):
    assert hot(parse, source) == label


def test_the_accumulations_branch(parse):
    file = parse(HEAD + "for x in xs:\n    loss.backward()\n    if (i + 1) % 4 == 0:\n        opt.step()\n")
    assert file.loops.micro(file.loops.training[0]) is file.tree.nodes(ast.If)[0]
    file = parse(HEAD + "for x in xs:\n    if i % 4 == 0:\n        loss.backward()\n        opt.step()\n")
    assert file.loops.micro(file.loops.training[0]) is None
