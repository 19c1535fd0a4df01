import json
from pathlib import Path

import pytest

from ampwise.lint.config import Config
from ampwise.lint.engine import Mending, lint_file
from ampwise.lint.notebook import NotANotebookError, Notebook
from ampwise.lint.rule import all_rules

DEPRECATED = ["MP204"]


def cell(source, kind="code"):
    extra = {"outputs": [], "execution_count": None} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": source, **extra}


def notebook(*cells, **metadata):
    return {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def write(path, document, **options):
    path.write_text(json.dumps(document, **{"indent": 1, "ensure_ascii": False, **options}) + "\n", encoding="utf-8")
    return str(path)


def lint(path, **options):
    rules = [rule for rule in all_rules() if rule.info.id in DEPRECATED]
    return lint_file(path, rules, Config(), **options)


def places(report):
    return [(one.place.cell, one.place.line, one.place.column, one.rule) for one in report.findings]


def test_findings_are_told_by_cell(tmp_path):
    path = write(
        tmp_path / "a.ipynb",
        notebook(
            cell("# Title", "markdown"),
            cell(["import torch\n", "x = 1"]),
            cell("y = 2\ns = torch.cuda.amp.GradScaler()\n"),
        ),
    )
    assert places(lint(path)) == [(3, 2, 5, "MP204")]


@pytest.mark.parametrize(
    "magic",
    [
        "%matplotlib inline",
        "!pip install torch",
        "?torch",
        "torch?",
        "torch.nn??",
        "files = !ls",
        "x = %time f()",
        "if x:\n    !pip install a \\\n      b",
    ],
)
def test_ipythons_lines_are_masked(tmp_path, magic):
    path = write(tmp_path / "a.ipynb", notebook(cell(f"import torch\n{magic}\ns = torch.cuda.amp.GradScaler()")))
    assert places(lint(path)) == [(1, 3 + magic.count("\n"), 5, "MP204")]


def test_cells_in_other_languages_are_left_out(tmp_path):
    path = write(
        tmp_path / "a.ipynb",
        notebook(cell("%%bash\necho ${x}"), cell("%%time\nimport torch\ntorch.cuda.amp.GradScaler()")),
    )
    assert places(lint(path)) == [(2, 3, 1, "MP204")]
    path = write(tmp_path / "b.ipynb", notebook(cell("x <- 1"), language_info={"name": "R"}))
    assert lint(path).findings == ()


def test_a_modulo_at_the_start_of_a_line_is_no_magic(tmp_path):
    path = write(tmp_path / "a.ipynb", notebook(cell("import torch\nx = (7\n% 4, torch.cuda.amp.GradScaler())")))
    assert places(lint(path)) == [(1, 3, 6, "MP204")]


def test_a_broken_cell_is_named_and_the_others_are_looked_at(tmp_path):
    path = write(tmp_path / "a.ipynb", notebook(cell("def f(:"), cell("import torch\ntorch.cuda.amp.GradScaler()")))
    assert places(lint(path)) == [(1, 1, 7, "MP000"), (2, 2, 1, "MP204")]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"cells": 1}', b'{"cells": [1]}', b"\xff\xfe", b'{"worksheets": []}', b"[" * 99999]
)
def test_what_is_no_notebook_is_one_finding(tmp_path, content):
    path = tmp_path / "a.ipynb"
    path.write_bytes(content)
    with pytest.raises(NotANotebookError):
        Notebook("a.ipynb", content)
    (finding,) = lint(str(path)).findings
    assert finding.rule == "MP000"
    assert "\n" not in finding.message


@pytest.mark.parametrize("odd", [{"source": 3}, {"cell_type": 3}, {}, {"cell_type": "code", "source": [1, None]}])
def test_odd_cells_are_passed_over(tmp_path, odd):
    path = write(tmp_path / "a.ipynb", notebook({**cell("x = 1"), **odd}, odd))
    assert lint(path).findings == ()


@pytest.mark.parametrize(
    "options", [{"indent": 1}, {"indent": 2}, {"indent": None}, {"indent": 1, "ensure_ascii": True}]
)
def test_a_fix_changes_its_cell_alone(tmp_path, options):
    document = notebook(
        cell("# Täst", "markdown"),
        cell(["import torch\n", "!pip install x\n", "s = torch.cuda.amp.GradScaler()\n", "f(%d)" * 0 + "x?"]),
        cell("print('ü')\n"),
        kernelspec={"name": "python3"},
    )
    path = write(tmp_path / "a.ipynb", document, **options)
    report = lint(path, mending=Mending())
    assert len(report.fixed) == 1
    assert report.findings == ()
    document["cells"][1]["source"][2] = 's = torch.amp.GradScaler("cuda")\n'
    expected = write(tmp_path / "b.ipynb", document, **options)
    assert Path(path).read_bytes() == Path(expected).read_bytes()
    assert lint(path, mending=Mending()).fixed == ()


def test_an_import_of_one_cell_and_a_use_in_another(tmp_path):
    path = write(
        tmp_path / "a.ipynb",
        notebook(cell("from torch.cuda.amp import GradScaler"), cell("%cd x\ns = GradScaler()")),
    )
    assert lint(path, mending=Mending()).findings == ()
    cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    assert [one["source"] for one in cells] == [
        "from torch.amp import GradScaler",
        '%cd x\ns = GradScaler("cuda")',
    ]
