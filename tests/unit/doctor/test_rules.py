"""The form of every rule: what it says of itself, its file's name, its examples; and that it is silent without data."""

import importlib
import pkgutil
import re

import pytest

import recordings
from ampwise.doctor import rules
from ampwise.doctor.case import Case
from ampwise.doctor.rule import all_rules

FILES = sorted(info.name for info in pkgutil.iter_modules(rules.__path__))
every_rule = pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.info.id)


def test_every_file_holds_a_rule_and_ids_and_names_are_unique():
    assert len(FILES) == len(all_rules())
    for texts in ([rule.info.id for rule in all_rules()], [rule.info.name for rule in all_rules()]):
        assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("name", FILES)
def test_a_file_bears_its_rules_id(name):
    module = importlib.import_module(f"ampwise.doctor.rules.{name}")
    info = module.RULE.info
    assert name.startswith(f"{info.id.lower()}_")
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", info.name)
    assert module.__doc__.startswith(f"{info.id}: ")


@every_rule
def test_it_says_why_what_to_do_and_whence_it_is_known(rule):
    info = rule.info
    assert re.fullmatch(r"DR[1-7]\d\d", info.id)
    for text in (info.why, info.remedy, info.evidence):
        assert len(text) > 20
        assert "  " not in text
    assert info.why.endswith(".")
    assert info.bad or re.search("GPU|cuDNN", f"{info.why}{info.evidence}"), "what a CPU can show has an example"
    for example in info.bad:
        compile(example.source, f"{info.id}.py", "exec")
        assert example.title


@every_rule
def test_it_is_silent_where_nothing_was_recorded(rule):
    case = Case(recordings.recording([recordings.FP32], []))
    assert list(rule.check(case)) == []
    assert list(rule.reassure(case)) == []
