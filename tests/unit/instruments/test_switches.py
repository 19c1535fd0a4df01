"""Switches are written down with the step that they hold from."""

from ampwise.instruments.switches import SwitchWatch
from ampwise.observe.events import EventBus, PrecisionSwitched, StepOutcome
from ampwise.records.switches import SwitchRecord

FIELDS = {"group": "blocks.0", "before": "fp16", "after": "fp32", "is_raised": True, "cause": "loss is nan"}


def test_a_switch_is_of_the_step_after_those_that_ended():
    bus = EventBus()
    watch = SwitchWatch(bus)
    with watch:
        bus.publish(PrecisionSwitched(switch=SwitchRecord(step=99, **FIELDS)))
        for _ in range(3):
            bus.publish(StepOutcome(optimizer=None))
        bus.publish(PrecisionSwitched(switch=SwitchRecord(step=99, **FIELDS)))
    bus.publish(PrecisionSwitched(switch=SwitchRecord(step=99, **FIELDS)))
    assert watch.record() == (SwitchRecord(step=0, **FIELDS), SwitchRecord(step=3, **FIELDS))
    assert watch.slowed_steps == frozenset()
    assert not any(bus.wants(kind) for kind in (PrecisionSwitched, StepOutcome))
