from ampwise.records.site import Phase, Site
from ampwise.records.syncs import SyncKind, SyncPlace, SyncRecord


def test_waits_are_counted_by_step():
    place = SyncPlace(site=Site(phase=Phase.OTHER), kind=SyncKind.SCALAR, call=".item()", count=4, num_steps=2)
    record = SyncRecord(steps=(3, 4), places=(place, place), is_real=False, cost_ms=0.0)
    assert record.num_per_step == 4.0
    assert SyncRecord(steps=(), places=(), is_real=False, cost_ms=0.0).num_per_step == 0.0
