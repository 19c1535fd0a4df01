from ampwise.records.finding import Finding, RuleInfo, Severity
from ampwise.records.sarif import sarif
from ampwise.records.site import Phase, Site

RULE = RuleInfo(id="DR101", name="made-up", severity=Severity.ERROR, why="why", remedy="do", evidence="seen")


def result(**fields):
    finding = Finding(rule="DR101", severity=Severity.WARNING, message="m", **fields)
    return sarif([finding], {"DR101": RULE})["runs"][0]["results"][0]


def test_a_site_of_a_recording_is_a_location():
    site = Site(phase=Phase.FORWARD, module="wo", op="aten.mm", file="my model.py", line=7)
    location = result(site=site)["locations"][0]["physicalLocation"]
    assert location == {"artifactLocation": {"uri": "my%20model.py"}, "region": {"startLine": 7}}


def test_a_site_without_a_file_has_no_location():
    assert "locations" not in result(site=Site(phase=Phase.BACKWARD, module="wo"))


def test_the_rule_is_described_once_and_the_findings_level_is_its_own():
    log = sarif([Finding(rule="DR101", severity=Severity.WARNING, message="m")] * 2, {"DR101": RULE})
    run = log["runs"][0]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["DR101"]
    assert {one["level"] for one in run["results"]} == {"warning"}
