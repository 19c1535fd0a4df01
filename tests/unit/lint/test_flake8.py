import ast

from ampwise.lint.flake8 import Plugin


def test_flake8_is_told_line_column_and_message():
    lines = ["import torch\n", "s = torch.cuda.amp.GradScaler()\n"]
    results = list(Plugin(ast.parse("".join(lines)), "a.py", lines).run())
    assert [(line, column, kind) for line, column, _, kind in results] == [(2, 4, Plugin)]
    assert results[0][2].startswith("MP204 ")


def test_flake8_finds_the_plugin():
    from importlib.metadata import entry_points

    found = [entry for entry in entry_points(group="flake8.extension") if entry.value.startswith("ampwise.")]
    assert all(entry.load() is Plugin for entry in found)
