"""Every rule is held to its own examples: bad ones are found, good ones are silent, fixes do what they show."""

import ast
import textwrap

import pytest

from ampwise.lint.engine import check_text, fix_text
from ampwise.lint.rule import all_rules
from ampwise.lint.text import SourceText
from ampwise.records.finding import Fixable

RULES = {rule.info.id: rule for rule in all_rules()}
BAD = [(rule.info.id, number) for rule in RULES.values() for number in range(len(rule.info.bad))]
GOOD = [(rule.info.id, number) for rule in RULES.values() for number in range(len(rule.info.good))]


def source(text):
    return SourceText(textwrap.dedent(text).lstrip("\n").encode())


def target(example):
    return tuple(map(int, example.target_torch.split("."))) if example.target_torch else None


def check(example, rules):
    return check_text("train.py", source(example.source), rules, target_torch=target(example))


@pytest.mark.parametrize(("rule_id", "number"), BAD)
def test_a_bad_example_is_found(rule_id, number):
    rule = RULES[rule_id]
    example = rule.info.bad[number]
    found = check(example, [rule])
    assert [finding.rule for finding in found] == [rule_id] * example.num_findings, found


@pytest.mark.parametrize(("rule_id", "number"), BAD)
def test_no_other_rule_takes_a_bad_example_for_an_error(rule_id, number):
    others = [rule for rule in RULES.values() if rule.info.id != rule_id and rule.info.on_by_default]
    found = check(RULES[rule_id].info.bad[number], others)
    assert [(one.rule, one.message) for one in found if one.severity != "info"] == []


@pytest.mark.parametrize(("rule_id", "number"), GOOD)
def test_a_good_example_is_silent(rule_id, number):
    rule = RULES[rule_id]
    assert check(rule.info.good[number], [rule]) == []


@pytest.mark.parametrize(("rule_id", "number"), BAD)
def test_a_bad_example_is_fixed_as_shown(rule_id, number):
    rule = RULES[rule_id]
    example = rule.info.bad[number]
    text = source(example.source)
    fixed, done, _ = fix_text("train.py", text, [rule], allow_unsafe=True, target_torch=target(example))
    if example.fixed is None:
        assert not done
        return
    assert fixed.text == source(example.fixed).text
    again, more, _ = fix_text("train.py", fixed, [rule], allow_unsafe=True, target_torch=target(example))
    assert not more
    assert again.text == fixed.text


@pytest.mark.parametrize("rule_id", RULES)
def test_a_rule_describes_itself(rule_id):
    info = RULES[rule_id].info
    assert info.bad
    assert info.good
    assert info.why.endswith(".")
    assert info.remedy.endswith(".")
    assert info.evidence
    assert (info.fixable is Fixable.NO) == all(example.fixed is None for example in info.bad)
    for example in (*info.bad, *info.good):
        ast.parse(source(example.source).text)
