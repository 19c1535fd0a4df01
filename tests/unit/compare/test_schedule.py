from ampwise.compare.schedule import ComparisonPlan, schedule
from ampwise.compare.variants import FP32, parse_variants
from ampwise.runner.spec import Lists, Malloc


def order(text, **options):
    plan = ComparisonPlan(variants=parse_variants(text), **options)
    return [(run.variant.name, run.repeat, run.is_extra) for run in schedule(plan)]


def test_variants_take_turns_and_each_repeat_turns_the_order():
    assert order("fp32,auto,bf16", num_repeats=3) == [
        ("fp32", 0, False),
        ("auto", 0, False),
        ("bf16", 0, False),
        ("bf16", 1, False),
        ("auto", 1, False),
        ("fp32", 1, False),
        ("fp32", 2, False),
        ("auto", 2, False),
        ("bf16", 2, False),
    ]


def test_without_fp32_two_runs_of_it_show_its_noise():
    assert order("bf16", num_repeats=3) == [
        ("fp32", 0, True),
        ("bf16", 0, False),
        ("bf16", 1, False),
        ("fp32", 1, True),
        ("bf16", 2, False),
    ]


def test_with_one_repeat_fp32_runs_a_second_time():
    assert order("fp32,bf16", num_repeats=1) == [("fp32", 0, False), ("bf16", 0, False), ("fp32", 1, True)]


def test_compiled_fp32_is_not_the_reference():
    assert ("fp32", 0, True) in order("fp32+compile", num_repeats=1)


def test_every_run_is_told_the_same_but_for_precision_and_number():
    plan = ComparisonPlan(
        variants=parse_variants("fp32,bf16+compile"),
        num_steps=30,
        device="cpu",
        malloc=Malloc.SYSTEM,
        lists=Lists.STOCK,
        scratch="/scratch",
    )
    specs = [run.spec(plan) for run in schedule(plan)]
    assert {(spec.stop_after, spec.device, spec.malloc, spec.lists, spec.scratch) for spec in specs} == {
        (30, "cpu", Malloc.SYSTEM, Lists.STOCK, "/scratch/saved")
    }
    assert [(spec.precision, spec.compile, spec.repeat) for spec in specs] == [
        ("fp32", False, 0),
        ("bf16", True, 0),
        ("bf16", True, 1),
        ("fp32", False, 1),
    ]
    assert {spec.memory_step for spec in specs} == {5}


def test_the_memory_step_is_always_reached():
    for num_steps in range(1, 6):
        assert 0 <= ComparisonPlan(variants=(FP32,), num_steps=num_steps).memory_step < num_steps


def test_an_evaluation_needs_one_fp32_of_each_seed_and_no_noise():
    plan = ComparisonPlan(variants=parse_variants("bf16,fp16"), num_repeats=2, evaluates=True)
    runs = [(one.variant.name, one.repeat, one.is_extra) for one in schedule(plan)]
    assert runs == [("fp32", 0, True), ("bf16", 0, False), ("fp16", 0, False), ("fp16", 1, False), ("bf16", 1, False)]
    assert all(one.spec(plan).evaluates for one in schedule(plan))
