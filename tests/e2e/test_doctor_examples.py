"""Every rule's bad examples, as a user would meet them: the doctor runs the script and names the rule."""

import json
import os

import pytest

from ampwise.doctor.rule import all_rules
from warm import python

TIMED = {"DR401", "DR402", "DR405", "DR408", "DR412"}
"""Rules on what a step costs: on a busy machine one look may miss it, so they get a second."""
CASES = [
    pytest.param(rule.info.id, example, id=f"{rule.info.id}-{number}")
    for rule in all_rules()
    for number, example in enumerate(rule.info.bad)
]


def diagnosed(folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = ("-m", "ampwise", "doctor", "--json", "--record", "recording.json", "train.py")
    done = python(*words, cwd=folder, env=environment, timeout=1200)
    assert done.returncode in {0, 1}, done.stderr
    document = json.loads(done.stdout)
    assert document["healthy"] is (done.returncode == 0)
    return document["findings"]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "example"), CASES)
def test_the_doctor_finds_it(rule, example, tmp_path):
    (tmp_path / "train.py").write_text(example.source)
    findings = of_rule(rule, seen := diagnosed(tmp_path))
    if not findings and rule in TIMED:
        findings = of_rule(rule, seen := diagnosed(tmp_path))
    assert findings, seen
    assert all(finding["evidence"] and finding["remedy"] for finding in findings)


def of_rule(rule, findings):
    return [finding for finding in findings if finding["rule"] == rule]
