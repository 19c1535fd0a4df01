import json

import pytest

from ampwise.lint.engine import FileReport
from ampwise.lint.output import Format, render
from ampwise.lint.rule import all_rules
from ampwise.records.finding import Edit, Finding, Fix, Place, Severity

INFOS = [rule.info for rule in all_rules()]


def finding(rule="MP101", line=3, *, safe=None, cell=None, group=None, path="a.py", message="wrong"):
    fix = None if safe is None else Fix(edits=(Edit(start=0, end=0, text="x"),), is_safe=safe)
    place = Place(path=path, line=line, column=5, end_line=line, end_column=9, cell=cell)
    return Finding(rule=rule, severity=Severity.ERROR, message=message, place=place, fix=fix, group=group)


def report(*findings, lines=None):
    return FileReport(path="a.py", findings=findings, lines=lines or tuple("" for _ in findings))


def show(form, *findings, lines=None, **options):
    return render([report(*findings, lines=lines)], INFOS, form, **options)


def test_concise():
    text = show(
        Format.CONCISE,
        finding(),
        finding(line=4, safe=True),
        finding(line=5, safe=False),
        finding(path="nb.ipynb", cell=4, line=12),
    )
    assert text.splitlines() == [
        "a.py:3:5: MP101 wrong",
        "a.py:4:5: MP101 [*] wrong",
        "a.py:5:5: MP101 wrong",
        "nb.ipynb:cell 4:12:5: MP101 wrong",
    ]
    assert "[*]" in show(Format.CONCISE, finding(safe=False), allow_unsafe=True)


def test_a_group_is_one_line():
    members = [finding("MP401", line, group="train()") for line in range(3, 15)]
    assert show(Format.CONCISE, *members, finding("MP401", 20, group="test()")).splitlines() == [
        "a.py:3:5: MP401 wrong (12 in train(): also lines 4, 5, 6, 7, 8, 9, 10, 11 and 3 more)",
        "a.py:20:5: MP401 wrong",
    ]


def test_full_shows_source_and_help():
    text = show(Format.FULL, finding(), lines=("    loss.backward()",))
    assert text.splitlines()[:3] == ["a.py:3:5: MP101 wrong", "    3 |     loss.backward()", "      |     ^^^^"]
    assert "grad-use-before-unscale" in text
    assert "do: Call scaler.unscale_" in text


def test_json_is_a_list_of_objects():
    row = {"path": "a.py", "line": 3, "col": 5, "rule": "MP101", "severity": "error", "message": "wrong"}
    assert json.loads(show(Format.JSON, finding(safe=True), finding(cell=2))) == [
        {**row, "fixable": True},
        {**row, "fixable": False, "cell": 2},
    ]
    assert json.loads(show(Format.JSON)) == []


def test_github_escapes_what_users_name():
    text = show(Format.GITHUB, finding(path="a,b:c.py", message="50% of\nx"), finding(cell=2))
    assert text.splitlines() == [
        "::error file=a%2Cb%3Ac.py,line=3,col=5,title=MP101 grad-use-before-unscale::50%25 of x",
        "::error file=a.py,title=MP101 grad-use-before-unscale::cell 2, line 3: wrong",
    ]


def test_sarif():
    document = json.loads(show(Format.SARIF, finding(path="a b.py"), finding("MP000", cell=1)))
    (run,) = document["runs"]
    assert document["version"] == "2.1.0"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["MP000", "MP101"]
    first, second = run["results"]
    assert (first["ruleId"], first["ruleIndex"], first["level"]) == ("MP101", 1, "error")
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "a%20b.py"},
        "region": {"startLine": 3, "startColumn": 5, "endLine": 3, "endColumn": 9},
    }
    assert "region" not in second["locations"][0]["physicalLocation"]
    assert second["message"]["text"] == "cell 1, line 3: wrong"


@pytest.mark.parametrize("form", list(Format))
def test_names_are_inert(form):
    text = show(form, finding(path="\x1b[31m\u202ea.py", message="\x1b]0;x\x07y"), lines=("\x1b[2J",))
    assert "\x1b" not in text
    assert "\u202e" not in text
