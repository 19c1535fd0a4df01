import pytest

from ampwise._base.errors import UsageError
from ampwise.lint.config import Config, find_config, parse_codes, parse_config, parse_release
from ampwise.lint.rule import all_rules
from ampwise.records.finding import RuleInfo, Severity

KNOWN = ["MP000", "MP101", "MP204", "MP303"]


def info(name, *, on=True):
    return RuleInfo(
        id=name, name="x", severity=Severity.INFO, why="x.", remedy="x.", evidence="x", on_by_default=on
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "on"),
    [
        ({}, ["MP101", "MP204"]),
        ({"select": ("ALL",)}, ["MP101", "MP204", "MP303"]),
        ({"select": ("MP1",)}, ["MP101"]),
        ({"extend_select": ("MP303",)}, ["MP101", "MP204", "MP303"]),
        ({"ignore": ("MP2",)}, ["MP101"]),
        ({"select": ("MP204",), "ignore": ("MP2",)}, ["MP204"]),
        ({"select": ("MP2",), "ignore": ("MP2",)}, []),
        ({"select": ("ALL",), "ignore": ("MP1", "MP3")}, ["MP204"]),
    ],
)
def test_the_longest_code_decides(settings, on):
    rules = [info("MP101"), info("MP204"), info("MP303", on=False)]
    assert [rule.id for rule in rules if Config(**settings).selects(rule)] == on


def test_settings_are_read(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.ampwise.lint]\nselect = ["mp1"]\nignore = []\ntarget-torch = "2.4.1"\nexclude = ["old/"]\n'
        'per-file-ignores = {"tests/*" = ["MP101"]}\n'
    )
    (tmp_path / "src").mkdir()
    config = find_config([str(tmp_path / "src"), str(tmp_path / "tests" / "a.py")], KNOWN)
    assert config == Config(
        select=("MP1",),
        exclude=("old/",),
        target_torch=(2, 4),
        per_file_ignores=(("tests/*", ("MP101",)),),
        root=tmp_path,
    )
    assert config.ignored_in(str(tmp_path / "tests" / "deep" / "a.py")) == ("MP101",)
    assert config.ignored_in(str(tmp_path / "src" / "a.py")) == ()
    assert config.is_excluded(str(tmp_path / "old" / "deep" / "a.py"))
    assert not config.is_excluded(str(tmp_path / "older.py"))


def test_the_nearest_table_counts(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.ampwise.lint]\nselect = ["MP1"]\n')
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "pyproject.toml").write_text("[tool.other]\n")
    assert find_config([str(inner)], KNOWN).select == ("MP1",)
    assert find_config([str(inner / "missing.py")], KNOWN).select == ("MP1",)


def test_all_mistakes_are_named_at_once():
    table = {
        "selct": ["MP1"],
        "select": ["MP101", "MP9"],
        "ignore": "MP1",
        "per-file-ignores": {"a": ["XX"]},
        "target-torch": 2.4,
        "exclude": [1],
    }
    with pytest.raises(UsageError) as error:
        parse_config(table, KNOWN, source="pyproject.toml")
    text = str(error.value)
    assert text.startswith("pyproject.toml: 6 entries are wrong\n")
    for part in (
        'tool.ampwise.lint.selct: is not a setting; did you mean "select"?',
        'tool.ampwise.lint.select[1]: "MP9" is no rule',
        "tool.ampwise.lint.ignore: 'MP1' is not a list of strings",
        'tool.ampwise.lint.per-file-ignores."a"[0]: "XX" is no rule',
        'tool.ampwise.lint.target-torch: 2.4 is not a torch release; write it as in "2.4"',
        "tool.ampwise.lint.exclude: [1] is not a list of strings",
    ):
        assert part in text


@pytest.mark.parametrize("text", ["[tool.ampwise.lint", "[tool.ampwise]\nlint = 3\n", "\xff" * 3])
def test_a_damaged_file_is_refused(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        find_config([str(tmp_path)], KNOWN)


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("2.4", (2, 4)),
        ("2.13.0", (2, 13)),
        ("1.10.0+cu113", None),
        ("2", None),
        ("new", None),
        ("", None),
        ("2.4.x", (2, 4)),
    ],
)
def test_releases(text, release):
    assert parse_release(text) == release


def test_codes_of_options():
    assert parse_codes(["mp101,MP2", "ALL"], KNOWN, option="--select") == ("MP101", "MP2", "ALL")
    with pytest.raises(UsageError, match=r'--select: "MP102" is no rule; did you mean "MP101"\?'):
        parse_codes(["MP102"], KNOWN, option="--select")


def test_every_rule_has_its_own_id_and_file_name():
    ids = [rule.info.id for rule in all_rules()]
    assert ids == sorted(set(ids))
