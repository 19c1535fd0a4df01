"""Every rule's bad examples, as a user would meet them: the doctor runs the script and names the rule."""

import json
import os
import subprocess
import sys

import pytest

from ampwise.doctor.rule import all_rules

CASES = [
    pytest.param(rule.info.id, example, id=f"{rule.info.id}-{number}")
    for rule in all_rules()
    for number, example in enumerate(rule.info.bad)
]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "example"), CASES)
def test_the_doctor_finds_it(rule, example, tmp_path):
    (tmp_path / "train.py").write_text(example.source)
    command = [sys.executable, "-m", "ampwise", "doctor", "--json", "--record", "recording.json", "train.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode in {0, 1}, done.stderr
    document = json.loads(done.stdout)
    assert document["healthy"] is (done.returncode == 0)
    findings = [finding for finding in document["findings"] if finding["rule"] == rule]
    assert findings, done.stdout
    assert all(finding["evidence"] and finding["remedy"] for finding in findings)
