import speeds
from ampwise.doctor.rules.dr403_launch_bound import RULE


def case(**kernels):
    return speeds.on_cuda(speeds.run(kernels=speeds.on_gpu(**kernels)))


def test_an_idle_gpu_is_told_with_its_kernels():
    (finding,) = RULE.check(case(device_busy_ms=9.0))
    assert finding.message == "The GPU stands idle for 91% of the step, waiting for the host to launch kernels."
    assert "900 kernels of 10 us on average, busy for 9 of 100 ms" in finding.evidence
    assert "torch.compile(model)" in finding.remedy


def test_the_profilers_own_time_does_not_count():
    assert list(RULE.check(case(device_busy_ms=40.0, cost_ms=50.0))) == []


def test_the_wait_for_data_is_another_rules():
    waits = speeds.process(data_ms=400.0)
    run = speeds.run(kernels=speeds.on_gpu(device_busy_ms=15.0), process=waits)
    assert list(RULE.check(speeds.on_cuda(run))) == []


def test_it_is_silent_on_a_cpu_and_without_a_profile():
    for run in (speeds.run(kernels=speeds.on_cpu(operator_ms=5.0)), speeds.run()):
        assert list(RULE.check(speeds.case(run))) == list(RULE.reassure(speeds.case(run))) == []


def test_a_busy_gpu_is_told():
    assert list(RULE.check(case())) == []
    assert list(RULE.reassure(case())) == ["the GPU is busy for 90% of a step"]
