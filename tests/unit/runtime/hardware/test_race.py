import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwise.runtime.hardware.race import NUM_ROUNDS, SETUP_SIZE, race

SIZES = (128, 256, 512, 1024)


class Machine:
    """Takes a time by the cube of the size; keeps what it was asked."""

    def __init__(self, seconds_at_128, *, first=None, broken=()):
        self.seconds_at_128 = seconds_at_128
        self.first = first or {}
        self.broken = broken
        self.calls = []

    def __call__(self, name, size):
        if name in self.broken:
            raise RuntimeError(f'"addmm_impl" not implemented for {name}\nand more lines')
        is_first = (name, size) not in self.calls
        self.calls.append((name, size))
        return self.seconds_at_128[name] * (size / 128) ** 3 + (self.first.get(name, 0.0) if is_first else 0.0)

    def spent(self, name):
        return sum(
            self.seconds_at_128[n] * (size / 128) ** 3 for n, size in self.calls if n == name and size > SETUP_SIZE
        )


def run(machine, *, budget_s=0.2, sizes=SIZES):
    return race(machine, formats=tuple(machine.seconds_at_128), sizes=sizes, budget_s=budget_s)


def test_ratios_at_the_largest_size_when_all_is_fast():
    machine = Machine({"fp32": 2e-6, "bf16": 1e-6, "fp16": 4e-6})
    probe = run(machine)
    assert probe.failed == {}
    assert {name: found.size for name, found in probe.measured.items()} == {"fp32": 1024, "bf16": 1024, "fp16": 1024}
    assert probe.measured["bf16"].ratio == pytest.approx(2.0)
    assert probe.measured["fp16"].ratio == pytest.approx(0.5)
    assert probe.measured["fp32"].ratio == 1.0


def test_formats_take_turns():
    machine = Machine({"fp32": 1e-6, "bf16": 1e-6})
    run(machine, sizes=(128,))
    names = [name for name, size in machine.calls if size == 128]
    assert names == ["fp32", "bf16"] * (2 + NUM_ROUNDS)


def test_a_format_100_times_slower_stays_small_and_within_its_share():
    machine = Machine({"fp32": 1e-4, "bf16": 5e-5, "fp16": 1e-2})
    probe = run(machine)
    assert probe.measured["fp16"].size < probe.measured["bf16"].size
    assert probe.measured["fp16"].ratio == pytest.approx(0.01)
    assert machine.spent("fp16") <= 0.2 / 3 + 0.08


def test_what_is_set_up_once_does_not_count():
    machine = Machine({"fp32": 1e-6, "bf16": 1e-6}, first={"bf16": 0.01})
    assert run(machine).measured["bf16"].ratio == pytest.approx(1.0)


def test_the_first_product_of_a_size_counts_only_where_it_is_alone():
    seconds = {"fp32": 1e-3, "bf16": 1e-3}
    first = {"bf16": 0.06}
    two_samples = run(Machine(seconds, first=first), budget_s=2 * 0.0615, sizes=(128,))
    assert two_samples.measured["bf16"].ratio == pytest.approx(1.0)
    one_sample = run(Machine(seconds, first=first), budget_s=2 * 0.05, sizes=(128,))
    assert one_sample.measured["bf16"].ratio == pytest.approx(1 / 61)


def test_a_format_that_torch_refuses_is_reported_in_one_line():
    probe = run(Machine({"fp32": 1e-6, "bf16": 1e-6}, broken=("bf16",)))
    assert set(probe.measured) == {"fp32"}
    assert probe.failed == {"bf16": '"addmm_impl" not implemented for bf16'}


def test_a_device_that_cannot_do_fp32_has_nothing_measured():
    probe = run(Machine({"fp32": 1e-6, "bf16": 1e-6}, broken=("fp32",)))
    assert probe.measured == {}
    assert set(probe.failed) == {"fp32"}


def test_out_of_memory_at_a_large_size_keeps_the_smaller_one():
    machine = Machine({"fp32": 1e-6, "bf16": 5e-7})

    def timer(name, size):
        if name == "bf16" and size > 256:
            raise RuntimeError("CUDA out of memory")
        return machine(name, size)

    probe = race(timer, formats=("fp32", "bf16"), sizes=SIZES)
    assert probe.measured["bf16"].size == 256
    assert probe.measured["bf16"].ratio == pytest.approx(2.0)
    assert probe.failed == {}


speeds = st.floats(1e-8, 0.05)


@given(speeds, speeds, speeds)
def test_law_no_format_overruns_its_share_by_more_than_one_product(fp32, bf16, fp16):
    machine = Machine({"fp32": fp32, "bf16": bf16, "fp16": fp16})
    probe = run(machine)
    for name in machine.seconds_at_128:
        sizes = [size for called, size in machine.calls if called == name and size > SETUP_SIZE]
        last = machine.seconds_at_128[name] * (sizes[-1] / 128) ** 3
        assert machine.spent(name) - last <= 0.2 / 3 + 1e-9
        assert sizes[-1] == SIZES[0] or last <= 0.2 / 3  # a larger product is started only if it fits
    for name, found in probe.measured.items():
        assert math.isclose(found.ratio, fp32 / machine.seconds_at_128[name], rel_tol=1e-6)
