"""``ampwise lint`` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from warm import fresh, python

OLD = "import torch\ns = torch.cuda.amp.GradScaler()\n"
NEW = 'import torch\ns = torch.amp.GradScaler("cuda")\n'


def lint(*arguments, cwd, by=python):
    return by("-m", "ampwise", "lint", *arguments, cwd=cwd)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(OLD)
    (tmp_path / "src" / "clean.py").write_text(NEW)
    return tmp_path


def test_findings_go_to_stdout_and_counts_to_stderr(project):
    result = lint("src", cwd=project, by=fresh)
    assert result.returncode == 1
    assert result.stdout == (
        'src/train.py:2:5: MP204 [*] torch.cuda.amp.GradScaler is deprecated: write torch.amp.GradScaler("cuda")\n'
    )
    assert result.stderr == "1 finding in 2 files ([*] 1 fixable with --fix)\n"


def test_clean_is_status_0(project):
    result = lint("src/clean.py", cwd=project)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "nothing found in 1 file\n")


def test_fix_then_clean(project):
    result = lint("--fix", "src", cwd=project)
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == "fixed 1\nnothing left found in 2 files\n"
    assert (project / "src" / "train.py").read_text() == NEW
    assert lint("src", cwd=project).returncode == 0


def test_diff_writes_nothing(project):
    result = lint("--diff", "src", cwd=project)
    assert result.returncode == 1
    assert '-s = torch.cuda.amp.GradScaler()\n+s = torch.amp.GradScaler("cuda")\n' in result.stdout
    assert (project / "src" / "train.py").read_text() == OLD


def test_json(project):
    result = lint("--json", "src", cwd=project)
    assert result.stdout == lint("--output-format", "json", "src", cwd=project).stdout
    assert result.returncode == 1
    (row,) = json.loads(result.stdout)
    assert set(row) == {"path", "line", "col", "rule", "severity", "message", "fixable"}
    assert (row["path"], row["line"], row["rule"], row["fixable"]) == (
        str(Path("src", "train.py")),
        2,
        "MP204",
        True,
    )


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--select", "MP1", "src"], 0, ""),
        (["--ignore", "MP204", "src"], 0, ""),
        (["--target-torch", "2.2", "src"], 0, ""),
        (["--select", "MP999", "src"], 2, 'ampwise: --select: "MP999" is no rule'),
        (["--target-torch", "new", "src"], 2, 'ampwise: --target-torch: "new" is not a torch release'),
        (["--output-format", "xml", "src"], 2, "ampwise: "),
        (["missing"], 2, "ampwise: missing does not exist"),
        ([], 2, "ampwise: "),
    ],
)
def test_options(project, arguments, status, text):
    result = lint(*arguments, cwd=project)
    assert result.returncode == status, result.stderr
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_settings_of_the_project(project):
    (project / "pyproject.toml").write_text('[tool.ampwise.lint]\nignore = ["MP204"]\n')
    assert lint("src", cwd=project).returncode == 0
    (project / "pyproject.toml").write_text('[tool.ampwise.lint]\nignroe = ["MP204"]\n')
    result = lint("src", cwd=project)
    assert result.returncode == 2
    assert 'tool.ampwise.lint.ignroe: is not a setting; did you mean "ignore"?' in result.stderr


def test_a_broken_file_does_not_stop_the_others(project):
    (project / "src" / "a.py").write_bytes(b"print 'x'\n")
    result = lint("src", cwd=project)
    assert result.returncode == 1
    first, second = result.stdout.splitlines()
    assert first.startswith("src/a.py:1:1: MP000 not checked: syntax error: Missing parentheses")
    assert second.startswith("src/train.py:2:5: MP204")


def test_nothing_heavy_is_imported():
    code = (
        "import sys; from ampwise.cli.main import main; main(['lint', sys.argv[1]]); "
        "print([name for name in ('torch', 'numpy', 'pydantic', 'rich', 'plotly', 'jinja2') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code, __file__], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_a_rule_is_explained():
    command = [sys.executable, "-m", "ampwise", "explain"]
    result = subprocess.run([*command, "mp101"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("MP101: grad-use-before-unscale (error; on by default; fixed by lint --fix)\n")
    for part in ("why: ", "do: ", "evidence: ", "bad:\n", "good:\n"):
        assert part in result.stdout
    result = subprocess.run([*command, "MP99"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith('ampwise: "MP99" is no rule')
