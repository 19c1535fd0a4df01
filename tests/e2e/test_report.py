"""``ampwise report``, through the real command."""

import json
import os
import re
import subprocess
import sys

import pytest

import examined
from ampwise.records.files import save_recording
from warm import fresh, python


@pytest.fixture
def record(made, tmp_path):
    path = tmp_path / "run.json"
    save_recording(made.normal(), path)
    return path


def _ampwise(*arguments, cwd, **environment):
    by = fresh if environment else python  # a copy reads its environment too late
    return by("-m", "ampwise", *arguments, cwd=cwd, env={**os.environ, **environment})


def test_the_table_and_where_the_page_is(record, tmp_path):
    done = _ampwise("report", "run.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("auto (bf16) trains 2.31x as fast as fp32")
    assert done.stdout.splitlines()[-1] == "report: run.html"
    assert "auto (bf16) trains 2.31x" in (tmp_path / "run.html").read_text("utf-8")


def test_a_named_page_and_a_second_time(record, tmp_path):
    for _ in range(2):
        assert _ampwise("report", record, "-o", tmp_path / "other.html", cwd=tmp_path).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.html", "run.json"]


def test_json_is_one_document_and_no_page(record, tmp_path):
    done = _ampwise("report", "--json", "run.json", cwd=tmp_path)
    assert json.loads(done.stdout)["variants"][1]["ratio_time"] == 2.308
    assert (done.stderr, list(tmp_path.iterdir())) == ("", [record])


def test_json_with_a_page_says_where_on_stderr(record, tmp_path):
    done = _ampwise("report", "--json", "-o", "page.html", "run.json", cwd=tmp_path)
    assert json.loads(done.stdout)
    assert done.stderr == "report: page.html\n"


def test_a_poor_terminal_still_gets_its_table(record, tmp_path):
    done = _ampwise("report", "run.json", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")


def _refused(done, status, said):
    assert done.returncode == status
    assert done.stdout == ""
    assert done.stderr.startswith("ampwise: ")
    assert said in done.stderr


def test_a_missing_record(tmp_path):
    _refused(_ampwise("report", "none.json", cwd=tmp_path), 3, "none.json does not exist; record one with:")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[: len(text) // 2], "is not valid JSON"),
        (lambda text: text.replace('"record"', '"name"', 1), "is JSON but not an ampwise record"),
        (lambda text: re.sub(r'"version": \d+', '"version": 99', text), "is a record of version 99; this ampwise"),
    ],
)
def test_a_record_that_is_none_in_one_line_and_nothing_written(record, tmp_path, change, said):
    record.write_text(change(record.read_text("utf-8")), "utf-8")
    done = _ampwise("report", "run.json", cwd=tmp_path)
    _refused(done, 3, f"run.json {said}")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [record]


def test_wrong_fields_are_all_listed(record, tmp_path):
    text = (
        record.read_text("utf-8").replace('"num_steps": 60', '"num_steps": "60"').replace('"repeat": 1', '"repeet": 1')
    )
    record.write_text(text, "utf-8")
    done = _ampwise("report", "run.json", cwd=tmp_path)
    _refused(done, 3, "run.json is not a valid Recording: 5 fields are wrong")
    assert '  comparison.num_steps: should be a valid integer, not "60"' in done.stderr
    assert "  runs[2].repeat: is missing" in done.stderr


def test_a_page_that_cannot_be_written(record, tmp_path):
    _refused(_ampwise("report", record, "-o", "no/page.html", cwd=tmp_path), 2, "the folder no does not exist")


def test_the_record_is_never_overwritten(record, tmp_path):
    before = record.read_bytes()
    _refused(_ampwise("report", "run.json", "-o", "./run.json", cwd=tmp_path), 2, "is the record itself")
    assert record.read_bytes() == before


def test_somebodys_own_page_is_not_overwritten_unasked(record, tmp_path):
    page = tmp_path / "run.html"
    page.write_text("<p>mine</p>", "utf-8")
    _refused(_ampwise("report", "run.json", cwd=tmp_path), 2, "is no report of ampwise's; name the file")
    assert page.read_text("utf-8") == "<p>mine</p>"


def test_torch_stays_out(record, tmp_path):
    code = (
        "import sys\n"
        "from ampwise.cli.main import main\n"
        "status = main(['report', 'run.json'])\n"
        "sys.exit(status or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False, capture_output=True).returncode == 0


@pytest.fixture
def examination(tmp_path):
    path = tmp_path / "doctor.json"
    save_recording(examined.faulty(), path)
    return path


def test_an_examination_is_diagnosed_again_from_its_record(examination, tmp_path):
    done = _ampwise("report", "doctor.json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Found ")
    assert "layers.1.wo" in done.stdout
    assert "start here" in (tmp_path / "doctor.html").read_text("utf-8")


def test_an_examination_for_machines(examination, tmp_path):
    done = _ampwise("report", "--json", "--sarif", "out.sarif", "doctor.json", cwd=tmp_path)
    findings = json.loads(done.stdout)["findings"]
    assert findings[0]["module"] == "layers.1.wo"
    results = json.loads((tmp_path / "out.sarif").read_text())["runs"][0]["results"]
    assert len(results) == len(findings)
    assert done.stderr == "sarif: out.sarif\n"


def test_two_records_side_by_side(examination, record, tmp_path):
    save_recording(examined.bare(), tmp_path / "after.json")
    done = _ampwise("report", "doctor.json", "after.json", "--html", "both.html", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("after.json against doctor.json: ")
    assert "two recordings side by side" in (tmp_path / "both.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("doctor.json",) * 3, "3 records were given; report shows one, or two side by side"),
        (("--all", "doctor.json", "run.json"), "--all is for one record; two were given"),
        (
            ("--sarif", "s.json", "run.json"),
            "a comparison's recording has no findings; `ampwise doctor` makes one that",
        ),
        (("doctor.json", "run.json", "-o", "run.json"), "run.json is the record itself"),
    ],
)
def test_what_does_not_go_together_is_said(examination, record, tmp_path, words, said):
    done = _ampwise("report", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
