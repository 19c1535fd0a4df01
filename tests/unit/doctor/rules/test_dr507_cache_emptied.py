import memories
from ampwise.doctor.rules.dr507_cache_emptied import RULE
from ampwise.records.finding import Severity
from ampwise.records.memory import CacheEmptied, MemoryRecord
from ampwise.records.site import Phase, Site
from speeds import on_cuda

SITE = Site(phase=Phase.OTHER, op="torch.cuda.empty_cache", file="train.py", line=20)


def memory(*, in_loop=True):
    return MemoryRecord(cache_emptied=(CacheEmptied(site=SITE, count=19, in_loop=in_loop),))


def test_the_line_and_how_often_are_told():
    (finding,) = RULE.check(on_cuda(memories.run(memory())))
    assert finding.message == "`torch.cuda.empty_cache()` is called 0.95 times a step."
    assert finding.site == SITE
    assert finding.evidence == "19 calls in 20 steps"
    assert finding.severity is Severity.WARNING


def test_on_a_cpu_it_does_nothing_and_is_said_to():
    (finding,) = RULE.check(memories.case(memory()))
    assert finding.message.endswith("On this CPU it does nothing.")
    assert finding.severity is Severity.INFO


def test_outside_of_the_loop_and_without_the_section_it_is_silent():
    assert list(RULE.check(memories.case(memory(in_loop=False)))) == []
    assert list(RULE.check(memories.case())) == []
