"""Writes a diagnosis's findings for other programs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ampwise._base.files import write_atomically

if TYPE_CHECKING:
    from ampwise.records.diagnosis import Diagnosis


def write_sarif(path: Path, diagnosis: "Diagnosis") -> None:
    """Write the findings as a SARIF log, with what their rules say about themselves.

    Raises:
        UsageError: the file cannot be written.
    """
    from ampwise.doctor.rule import all_rules
    from ampwise.records.sarif import sarif

    log = sarif(diagnosis.findings, {rule.info.id: rule.info for rule in all_rules()})
    write_atomically(path, json.dumps(log, indent=1) + "\n")
