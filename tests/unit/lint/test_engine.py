import os

import pytest

from ampwise._base.errors import UsageError
from ampwise.lint.config import Config
from ampwise.lint.engine import Mending, check_text, lint_paths
from ampwise.lint.files import find_files
from ampwise.lint.rule import Rule, all_rules
from ampwise.lint.text import SourceText
from ampwise.records.finding import RuleInfo, Severity

OLD = "import torch\ns = torch.cuda.amp.GradScaler()\n"
NEW = 'import torch\ns = torch.amp.GradScaler("cuda")\n'


def names(paths, config=None):
    return [os.path.relpath(path, paths[0]) for path in find_files([str(path) for path in paths], config or Config())]


def lint(path, config=None, **options):
    return list(lint_paths([str(path)], all_rules(), config or Config(), **options))


def found(path, config=None, **options):
    return [finding.rule for report in lint(path, config, **options) for finding in report.findings]


def test_files_are_found_once_and_in_order(tmp_path):
    for name in ("b.py", "a/c.py", "a/n.ipynb", "a/d.txt", ".hidden/x.py", "__pycache__/x.py", "env/x.py", "old/x.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / "self.py").symlink_to("self.py")
    (tmp_path / "z.py").symlink_to("b.py")
    assert names([tmp_path], Config(exclude=("old",), root=tmp_path)) == ["b.py", "a/c.py", "a/n.ipynb", "a/self.py"]
    assert names([tmp_path, tmp_path / "b.py", tmp_path / ".hidden" / "x.py"])[-1] == ".hidden/x.py"


def test_paths_that_do_not_exist_are_all_named():
    with pytest.raises(UsageError, match=r"a\.py does not exist.*\n.*b\.py does not exist"):
        list(find_files(["a.py", "b.py"], Config()))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"print 'hello'\n", "syntax error: Missing parentheses"),
        (b"def f(:\n", "syntax error"),
        (b"x = '\xff'\n", "it is not utf-8 text"),
        (b"# coding: nonsense\n", "syntax error: unknown encoding"),
        (b"x = 1\0\n", "null bytes"),
        (b"(" * 5000, "syntax error: too many nested parentheses"),
        (b"x = " + b"-" * 200_000 + b"1\n", "nested too deeply"),
    ],
)
def test_a_file_that_does_not_parse_is_one_line(tmp_path, content, reason):
    (tmp_path / "a.py").write_bytes(content)
    (tmp_path / "b.py").write_text(OLD)
    first, second = lint(tmp_path)
    assert [finding.rule for finding in first.findings] == ["MP000"]
    assert reason in first.findings[0].message
    assert "\n" not in first.findings[0].message
    assert [finding.rule for finding in second.findings] == ["MP204"]
    assert found(tmp_path / "a.py", Config(ignore=("MP000",))) == []


def test_what_is_no_plain_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "self.py").symlink_to("self.py")
    (tmp_path / "big.py").write_bytes(b"#" * 5_000_001)
    assert [finding.message for report in lint(tmp_path) for finding in report.findings] == [
        "not checked: it is larger than 5 MB",
        "not checked: it is not a plain file",
        "not checked: Too many levels of symbolic links",
    ]


@pytest.mark.parametrize("content", ["", "\n", "# x", "\ufeffx = 1\n", "x = 1", '"""a\n"""', "\f\n"])
def test_small_files_are_clean(tmp_path, content):
    (tmp_path / "a.py").write_text(content, encoding="utf-8")
    assert found(tmp_path) == []


def test_odd_escapes_do_not_warn(tmp_path):
    (tmp_path / "a.py").write_text("x = '\\d'\nif x is 1: pass\n")
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("comment", "is_silent"),
    [
        ("# noqa", True),
        ("# NOQA: MP204", True),
        ("# noqa:MP2", True),
        ("# noqa: E501, MP204 because", True),
        ("# noqa: E501", False),
        ("# noqa: MP101", False),
        ("# nonoqa", False),
        ("# noqas", False),
    ],
)
def test_noqa(tmp_path, comment, is_silent):
    (tmp_path / "a.py").write_text(f"import torch\ns = torch.cuda.amp.GradScaler()  {comment}\n")
    assert found(tmp_path) == [] if is_silent else ["MP204"]


def test_a_string_silences_nothing(tmp_path):
    (tmp_path / "a.py").write_text('import torch\ns = torch.cuda.amp.GradScaler(), "# noqa"\n')
    assert found(tmp_path) == ["MP204"]


def test_files_have_ignores_of_their_own(tmp_path):
    (tmp_path / "a.py").write_text(OLD)
    config = Config(per_file_ignores=(("a.*", ("MP2",)),), root=tmp_path)
    assert found(tmp_path, config) == []


def test_a_rule_that_fails_is_named_and_the_others_go_on(tmp_path):
    def check(_):
        raise KeyError("x")

    (broken,) = [
        Rule(
            info=RuleInfo(id="MP999", name="x", severity=Severity.INFO, why="x.", remedy="x.", evidence="x"),
            check=check,
        )
    ]
    results = check_text("a.py", SourceText(OLD.encode()), [broken, *all_rules()])
    assert [(one.rule, one.message) for one in results if one.rule != "MP204"] == [
        ("MP000", "not checked: MP999 failed with KeyError: 'x'")
    ]
    assert len(results) == 2


# ---- fixing


def test_fixes_are_written(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(OLD)
    path.chmod(0o754)
    (report,) = lint(tmp_path, mending=Mending())
    assert path.read_text() == NEW
    assert path.stat().st_mode & 0o777 == 0o754
    assert (len(report.fixed), report.findings, report.before, report.after) == (1, (), OLD, NEW)
    assert list(tmp_path.iterdir()) == [path]


def test_a_diff_writes_nothing(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(OLD)
    (report,) = lint(tmp_path, mending=Mending(write=False))
    assert path.read_text() == OLD
    assert report.after == NEW


@pytest.mark.parametrize(
    "raw",
    [
        b"\xef\xbb\xbfimport torch\r\ns = torch.cuda.amp.GradScaler()\r\n",
        b"# coding: latin-1\nimport torch\nx = '\xe9'\ns = torch.cuda.amp.GradScaler()",
    ],
)
def test_encoding_and_newlines_stay(tmp_path, raw):
    path = tmp_path / "a.py"
    path.write_bytes(raw)
    lint(path, mending=Mending())
    assert path.read_bytes() == raw.replace(b"torch.cuda.amp.GradScaler()", b'torch.amp.GradScaler("cuda")')


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.py").write_text(OLD)
    (tmp_path / "a.py").symlink_to("real/a.py")
    lint(tmp_path / "a.py", mending=Mending())
    assert (tmp_path / "a.py").is_symlink()
    assert (tmp_path / "real" / "a.py").read_text() == NEW


def test_what_cannot_be_written_stays_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "a.py"
    path.write_text(OLD)
    monkeypatch.setattr(os, "access", lambda *_: False)
    (report,) = lint(path, mending=Mending())
    assert report.problem == f"cannot write {path}: you may not write to it"
    assert [finding.rule for finding in report.findings] == ["MP204"]
    assert report.fixed == ()
    assert path.read_text() == OLD


def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.py"
    path.write_text(OLD)
    monkeypatch.setattr(os, "fsync", full)
    (report,) = lint(path, mending=Mending())
    assert "No space left on device" in report.problem
    assert path.read_text() == OLD
    assert list(tmp_path.iterdir()) == [path]
