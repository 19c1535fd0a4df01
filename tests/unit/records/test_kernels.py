import pytest

from ampwise.records.kernels import KernelRecord, MatrixProduct


def test_on_a_cpu_the_operators_are_the_work():
    record = KernelRecord(wall_ms=10.0, operator_ms=6.0, cast_ms=1.5, product_ms=3.0)
    assert record.work_ms == 6.0
    assert record.idle_share == pytest.approx(0.4)
    assert record.cast_share == 0.25
    assert record.tensor_core_share is None


def test_on_a_gpu_its_kernels_are():
    record = KernelRecord(wall_ms=10.0, operator_ms=9.0, device_busy_ms=2.0, product_ms=1.0, tensor_core_ms=0.75)
    assert record.idle_share == pytest.approx(0.8)
    assert record.tensor_core_share == 0.75


def test_nothing_measured_has_no_shares():
    record = KernelRecord()
    assert (record.idle_share, record.cast_share, record.tensor_core_share) == (None, None, None)


def test_a_busy_device_is_not_idle():
    assert KernelRecord(wall_ms=10.0, operator_ms=12.0).idle_share == 0.0


def test_what_the_profiler_took_is_no_part_of_the_step():
    assert KernelRecord(wall_ms=30.0, cost_ms=20.0, operator_ms=6.0).idle_share == pytest.approx(0.4)
    assert KernelRecord(wall_ms=20.0, cost_ms=20.0, operator_ms=6.0).idle_share is None


def test_flops_of_all_calls_and_batches():
    assert MatrixProduct(op="aten.bmm", dtype="bf16", m=2, n=3, k=5, batch=7, count=11, ms=1.0).num_flops == 4620
