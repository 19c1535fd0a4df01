"""What instruments saw on each rank becomes one: unions, the worst of all, or the rank that is furthest."""

import math

from ampwise.records.against_fp32 import AgainstFp32Record, Flip, ModuleError
from ampwise.records.casts import CastOrigin, CastPlace, CastRecord
from ampwise.records.kernels import KernelRecord
from ampwise.records.layout import LayoutRecord, ModuleEntry
from ampwise.records.memory import MemoryPoint, MemoryRecord
from ampwise.records.process import ProcessRecord, StepParts
from ampwise.records.rank_sections import sections_of
from ampwise.records.ranks import merged
from ampwise.records.run import RunEnd, RunRecord
from ampwise.records.site import Phase, Site
from ampwise.records.syncs import SyncKind, SyncPlace, SyncRecord
from ampwise.records.usage import Misuse, MisusePlace, UsageRecord

NOWHERE = Site(phase=Phase.FORWARD)


def run(**fields):
    options = {"variant": "bf16", "precision": "bf16", "reason": "", "repeat": 0, "end": RunEnd.FINISHED}
    return RunRecord(**options, **fields)


def of(*records, field):
    sections, notes = sections_of([(rank, run(**{field: one})) for rank, one in enumerate(records)])
    return sections[field], notes


def test_where_nothing_was_watched_there_is_nothing():
    sections, notes = sections_of([(0, run()), (1, run())])
    assert (set(sections.values()), notes) == ({None}, [])


def waits(line, count, stall_ms=None, num_steps=None):
    site = Site(phase=Phase.OTHER, file="train.py", line=line)
    options = {"num_steps": num_steps or count, "stall_ms": stall_ms}
    return SyncPlace(site=site, kind=SyncKind.SCALAR, call=".item()", count=count, **options)


def test_waits_of_all_ranks_are_listed_each_as_the_rank_with_the_most_had_it():
    def record(*places, steps=(3, 4)):
        return SyncRecord(steps=steps, places=places, is_real=True, cost_ms=len(places))

    both, notes = of(record(waits(7, 2, 9.0)), record(waits(7, 3, 1.0), waits(9, 5, 2.0)), field="syncs")
    assert both.places == (waits(9, 5, 2.0), waits(7, 3, 1.0))
    assert (both.steps, both.cost_ms, notes) == ((3, 4), 2, [])
    once, often = waits(7, 6, 1.0, num_steps=1), waits(7, 2, 3.0, num_steps=2)
    assert of(record(once), record(often), field="syncs")[0].places == (once,)
    assert of(record(waits(7, 2, 1.0)), record(waits(7, 2, 8.0)), field="syncs")[0].places == (waits(7, 2, 8.0),)
    assert of(record(), record(steps=(3, 4, 5)), field="syncs")[0].steps == (3, 4, 5)


def test_the_accounts_are_of_the_rank_that_waits_longest_for_its_data():
    def record(data_ms, faults=0):
        parts = StepParts(data_ms=data_ms, forward_ms=1.0, backward_ms=5.0, optimizer_ms=1.0, other_ms=0.0)
        return ProcessRecord(
            num_steps=3,
            wall_ms=1.0,
            user_ms=1.0,
            system_ms=0.0,
            minor_faults=faults,
            major_faults=0,
            parts=None if data_ms is None else parts,
        )

    note = "the process's accounts and the parts of a step are those of rank 1"
    assert of(record(0.0), record(40.0), record(3.0), field="process") == (record(40.0), [note])
    assert of(record(0.1), record(0.9), field="process") == (record(0.1), [])  # nobody waits for that
    assert of(record(None, 1), record(None, 2), field="process") == (record(None, 1), [])


def test_modules_of_all_ranks_are_listed_once():
    def record(*paths):
        modules = (ModuleEntry(root="net", path=path, name=path, kind="Linear") for path in paths)
        return LayoutRecord(modules=tuple(modules))

    assert of(record("", "0", "1"), record("", "0", "2"), field="layout") == (record("", "0", "1", "2"), [])


def test_kernels_are_those_of_the_rank_that_computed_longest():
    first, second = (KernelRecord(step=5, operator_ms=ms) for ms in (10.0, 30.0))
    assert of(first, second, field="kernels") == (second, ["products and kernels are those of rank 1"])
    assert of(first, KernelRecord(operator_ms=10.5), field="kernels") == (first, [])


def test_casts_are_those_of_the_rank_that_cast_most():
    def record(num_bytes):
        cast = CastPlace(
            site=NOWHERE,
            origin=CastOrigin.SCRIPT,
            source="fp32",
            target="bf16",
            reason=None,
            count=1,
            bytes=num_bytes,
            ms=None,
        )
        return CastRecord(
            steps=(1,), calls=(), casts=(cast,), num_operators=1, operator_bytes=100, operator_ms=None, cost_ms=0.0
        )

    assert of(record(10), record(40), record(20), field="casts") == (record(40), ["casts are those of rank 1"])


def test_the_memorys_timeline_is_the_fullest_ranks():
    def record(num_bytes):
        return MemoryRecord(
            step=1, peak=MemoryPoint(event=0, phase=Phase.FORWARD, total_bytes=num_bytes, categories=())
        )

    expected = (record(90), ["the memory's timeline is that of rank 2"])
    assert of(record(50), MemoryRecord(step=1), record(90), field="memory") == expected


def test_the_worst_error_of_any_rank_stands_for_a_module_and_decisions_add_up():
    def error(module, relative):
        return ModuleError(
            module=module,
            module_kind="Linear",
            dtype="bf16",
            num_elements=1,
            relative=relative,
            relative_input=None,
            cosine=None,
            max_abs=0.0,
            amax=1.0,
        )

    def record(*errors, flipped):
        flip = Flip(module="", op="aten.topk", file=None, line=None, num_decisions=10, num_flipped=flipped)
        return AgainstFp32Record(format="bf16", step=2, modules=errors, flips=(flip,))

    both, _ = of(
        record(error("0", 0.1), error("1", 0.5), flipped=1),
        record(error("0", 0.2), error("1", math.nan), error("2", 0.0), flipped=4),
        field="against_fp32",
    )
    assert [one.module for one in both.modules] == ["0", "1", "2"]
    assert both.modules[0].relative == 0.2
    assert math.isnan(both.modules[1].relative)
    assert [(one.num_decisions, one.num_flipped) for one in both.flips] == [(20, 5)]


def test_a_misuse_of_any_rank_is_one_of_all():
    def record(*counts):
        places = (
            MisusePlace(kind=kind, site=NOWHERE, count=count) for kind, count in zip(Misuse, counts, strict=False)
        )
        return UsageRecord(num_steps=3, misuses=tuple(one for one in places if one.count))

    both, _ = of(record(2, 0), record(3, 1), field="usage")
    assert both == record(3, 1)


def test_the_merged_record_says_of_which_rank_a_section_is():
    first, second = (run(kernels=KernelRecord(step=5, operator_ms=ms)) for ms in (10.0, 30.0))
    both = merged([(0, first), (1, second)])
    assert both.kernels == second.kernels
    assert both.notes == ("products and kernels are those of rank 1",)
