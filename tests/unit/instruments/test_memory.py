import gc
import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampwise.instruments.memory import Ledger, PeakMemory
from ampwise.interpose.internal import internal
from ampwise.observe.events import EventBus, StepOutcome

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def bus():
    gc.collect()
    return EventBus()


def end_step(bus, optimizer=None):
    bus.publish(StepOutcome(optimizer=optimizer))


def peak_over(bus, work, *, step=1):
    """The peak of a step that does ``work``, less what was alive before."""
    with PeakMemory(bus, step=step) as idle:
        for _ in range(step + 1):
            end_step(bus)
    with PeakMemory(bus, step=step) as memory:
        for index in range(step + 1):
            if index == step:
                work()
            end_step(bus)
    assert memory.note is None
    return memory.peak_tensor_bytes - idle.peak_tensor_bytes


def test_the_largest_sum_alive_at_once_counts(bus):
    def work():
        first = torch.zeros(1000)
        second = torch.zeros(500)
        del first
        third = torch.zeros(600)
        del second, third

    assert peak_over(bus, work) == 6000


def test_views_share_their_storage(bus):
    def work():
        whole = torch.zeros(10, 100)
        _views = (whole.t(), whole[3:], whole.view(-1), whole.detach(), torch.nn.Parameter(whole))

    assert peak_over(bus, work) == 4000


def test_a_storage_that_was_resized_counts_with_its_new_size(bus):
    def work():
        tensor = torch.zeros(10)
        tensor.resize_(1000).add_(1)

    assert peak_over(bus, work) == 4000


def test_casts_of_autocast_are_seen(bus):
    weight = torch.nn.Parameter(torch.zeros(64, 64))
    x = torch.zeros(1, 64)

    def work(enabled):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            torch.nn.functional.linear(x, weight)

    assert peak_over(bus, lambda: work(enabled=False)) == 64 * 4
    assert peak_over(bus, lambda: work(enabled=True)) == 64 * 64 * 2 + 64 * 2 + 64 * 2


@pytest.mark.filterwarnings("ignore:.*[Ss]parse")  # torch says it once a process
def test_odd_tensors_do_not_stop_the_count(bus):
    def work():
        torch.zeros(1000, device="meta").add(1)
        sparse = torch.eye(10).to_sparse()
        sparse.mul(2).to_sparse_csr()
        torch.vmap(torch.sin)(torch.zeros(3))
        torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged).sum()

    assert peak_over(bus, work) > 0


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_count_their_parts():
    from ampwise.compat.memory import storages_of

    coo = torch.eye(4).to_sparse()
    assert sum(storage.nbytes() for storage in storages_of(coo)) == 4 * 4 + 2 * 4 * 8
    counts, places, values = torch.arange(5), torch.arange(4), torch.ones(4)
    for compressed in (torch.sparse_csr_tensor, torch.sparse_csc_tensor):
        parts = storages_of(compressed(counts, places, values, (4, 4)))
        assert sum(storage.nbytes() for storage in parts) == 5 * 8 + 4 * 8 + 4 * 4


def test_our_own_operators_are_not_counted(bus):
    def work():
        with internal():
            torch.zeros(1000)

    assert peak_over(bus, work) == 0


def test_tensors_alive_at_the_start_and_their_gradients_count(bus):
    with PeakMemory(bus, step=1) as before:
        end_step(bus)
        end_step(bus)
    parameter = torch.nn.Parameter(torch.zeros(1000))
    (parameter * 2).sum().backward()
    with PeakMemory(bus, step=1) as memory:
        end_step(bus)
        end_step(bus)
    assert memory.peak_tensor_bytes - before.peak_tensor_bytes == 8000


class Touchy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("asked")


def test_a_subclass_is_not_asked(bus):
    touchy = torch.zeros(1000).as_subclass(Touchy)
    with PeakMemory(bus, step=0) as memory:
        end_step(bus)
    assert memory.note is None
    del touchy


def test_state_born_in_the_first_step_counts(bus):
    parameter = torch.nn.Parameter(torch.zeros(1000))
    parameter.grad = torch.zeros(1000)
    with PeakMemory(bus, step=0) as idle:
        end_step(bus)
    with PeakMemory(bus, step=0) as memory:
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
        optimizer.step()
        end_step(bus, optimizer)
    assert memory.peak_tensor_bytes - idle.peak_tensor_bytes == 4000
    assert memory.slowed_steps == {0}


def test_a_loop_with_two_optimizers_is_watched_for_a_whole_round(bus):
    critic, generator = (torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]) for _ in range(2))
    with PeakMemory(bus, step=4) as memory:
        for _ in range(3):
            end_step(bus, critic)
            end_step(bus, critic)
            end_step(bus, generator)
    assert memory.slowed_steps == {4, 5}
    assert memory.note is None


def test_the_mode_is_on_in_the_sampled_step_only(bus):
    depth = []
    with PeakMemory(bus, step=2) as memory:
        for _ in range(4):
            depth.append(torch._C._len_torch_dispatch_stack())
            end_step(bus)
    assert depth == [0, 0, 1, 0]
    assert memory.slowed_steps == {2}


def test_a_run_that_ends_too_early_says_so(bus):
    with PeakMemory(bus, step=5) as memory:
        end_step(bus)
    assert memory.peak_tensor_bytes is None
    assert memory.note == "peak tensor memory not measured: the run ended before step 6 did"


def test_a_script_that_raises_in_the_sampled_step_is_left_without_the_mode(bus):
    with pytest.raises(KeyError), PeakMemory(bus, step=1) as memory:  # noqa: PT012
        end_step(bus)
        raise KeyError
    assert memory.peak_tensor_bytes is None
    assert torch._C._len_torch_dispatch_stack() == 0


class Logging(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_scripts_own_is_not_disturbed(bus):
    with PeakMemory(bus, step=1) as memory:
        for _ in range(3):
            with Logging():
                torch.zeros(3)
                end_step(bus)
    assert memory.note == "peak tensor memory not measured: the script's own dispatch mode is on"


def test_a_mode_entered_within_the_sampled_step_is_left_first(bus):
    with PeakMemory(bus, step=1) as memory:
        end_step(bus)
        with Logging() as own:
            end_step(bus)
            assert torch._C._get_dispatch_stack_at(torch._C._len_torch_dispatch_stack() - 1) is own
        end_step(bus)
        assert torch._C._len_torch_dispatch_stack() == 0
    assert memory.slowed_steps == {1}


def test_a_fault_of_the_count_leaves_the_script_alone(bus, monkeypatch):
    def broken(self, storage):
        raise ValueError("no such storage")

    with PeakMemory(bus, step=1) as memory:
        end_step(bus)
        monkeypatch.setattr(Ledger, "see", broken)
        assert torch.zeros(3).tolist() == [0.0, 0.0, 0.0]
        end_step(bus)
    assert memory.peak_tensor_bytes is None
    assert memory.note == "peak tensor memory not measured: ValueError: no such storage"


def test_the_thread_that_trains_is_watched(bus):
    grew = []

    def train():
        end_step(bus)
        torch.zeros(1000)
        grew.append(torch._C._len_torch_dispatch_stack())
        end_step(bus)
        grew.append(torch._C._len_torch_dispatch_stack())

    with PeakMemory(bus, step=1) as memory:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    assert grew == [1, 0]
    assert memory.peak_tensor_bytes >= 4000


def test_compiled_code_has_no_figure(bus, monkeypatch):
    monkeypatch.setattr("ampwise.instruments.memory.has_compiled_code", lambda: True)
    with PeakMemory(bus, step=0) as memory:
        end_step(bus)
    assert memory.peak_tensor_bytes is None
    assert memory.note == "peak tensor memory not measured: what compiled code allocates cannot be seen"


def test_an_accelerators_bytes_come_first():
    memory = PeakMemory(EventBus(), step=0)
    memory._is_complete = True
    memory._ledger.peak_bytes = {torch.device("cpu"): 900, torch.device("cuda", 0): 70, torch.device("cuda", 1): 80}
    assert memory.peak_tensor_bytes == 80


def test_no_gpu_no_allocated_bytes():
    if not torch.cuda.is_initialized():
        assert PeakMemory(EventBus(), step=0).peak_allocated_bytes is None
