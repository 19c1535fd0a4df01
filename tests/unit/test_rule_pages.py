"""The pages of rules: written from the rules themselves, each rule once, whatever its texts hold."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from ampwise.doctor.rule import all_rules as doctors_rules
from ampwise.lint.rule import all_rules as lints_rules

SPEC = importlib.util.spec_from_file_location("rule_pages", Path(__file__).parents[2] / "docs" / "rule_pages.py")
pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pages)


@pytest.mark.parametrize(("name", "rules"), [("doctor", doctors_rules()), ("lint", lints_rules())])
def test_each_rule_has_its_section(name, rules):
    text = pages.page(name, [rule.info for rule in rules])
    for info in (rule.info for rule in rules):
        assert text.count(f"### {info.id}: {info.name}\n") == 1
    assert "xx (" not in text


def test_every_group_has_a_name():
    infos = [rule.info for rule in (*doctors_rules(), *lints_rules())]
    assert {info.id[:3] for info in infos} <= set(pages._HEADS)


def test_prose_is_no_markdown_but_code_stays(tmp_path):
    info = replace(doctors_rules()[0].info, why="a_b *c* [d](e) `f_g`")
    assert "a\\_b \\*c\\* \\[d\\](e) `f_g`" in pages.page("doctor", [info])


def test_an_equal_page_is_left_alone(tmp_path):
    pages.write_rule_pages(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    pages.write_rule_pages(tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert set(before) == {"doctor.md", "lint.md"}
