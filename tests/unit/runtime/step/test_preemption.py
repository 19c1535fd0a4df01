"""SIGTERM is answered after a whole step, by what the user asked for, and with nothing left behind."""

import gc
import multiprocessing
import os
import signal
import threading
import time

import pytest
import torch

from ampwise import TrainStep, load_checkpoint, save_checkpoint
from ampwise._base.errors import UsageError
from ampwise.runtime.step.preemption import Preemption

CPU = torch.device("cpu")


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(autouse=True)
def handler():
    before = signal.getsignal(signal.SIGTERM)
    yield before
    gc.collect()
    assert signal.getsignal(signal.SIGTERM) is before


def wait_for_the_end(pipe):
    pipe.send("runs")
    time.sleep(60)


def make(save, *, optimizer=torch.optim.SGD, **options):
    model = torch.nn.Linear(2, 1)
    step = TrainStep(
        optimizer(model.parameters(), lr=0.1), modules=model, precision="bf16", on_preemption=save, **options
    )
    return model, step


def lose(model, step, batch=3):
    with step.autocast():
        return model(torch.ones(batch, 2)).pow(2).mean()


@pytest.mark.parametrize("place", ["before the forward pass", "between forward and backward", "in backward"])
def test_the_step_underway_is_finished_saved_and_the_last(tmp_path, place):
    saved = []
    model, step = make(lambda: saved.append([one.clone() for one in model.parameters()]))
    step(lose(model, step))
    if place == "before the forward pass":
        terminate()
    loss = lose(model, step)
    if place == "between forward and backward":
        terminate()
    if place == "in backward":
        loss.register_hook(lambda _: terminate())
    before = [one.clone() for one in model.parameters()]
    with pytest.raises(SystemExit) as left:
        step(loss)
    assert left.value.code == 0
    assert all(torch.equal(a, b) for a, b in zip(saved[0], model.parameters(), strict=True))
    assert not torch.equal(before[0], saved[0][0])
    assert all(one.grad is None for one in model.parameters())


def test_a_window_of_accumulation_is_ended_first(tmp_path):
    model, step = make(lambda: save_checkpoint(tmp_path / "a", step=step, extra={"batch": 1}), accumulation_steps=2)
    terminate()
    assert not step(lose(model, step)).is_update
    with pytest.raises(SystemExit):
        step(lose(model, step))
    assert load_checkpoint(tmp_path / "a", step=step) == {"batch": 1}


def test_a_closure_and_a_captured_step_leave_too():
    saved = []
    model, step = make(lambda: saved.append(1), optimizer=torch.optim.LBFGS)
    terminate()
    with pytest.raises(SystemExit):
        step(lambda: lose(model, step))
    model, step = make(lambda: saved.append(2), capture=True)
    train = step.capture(lambda x: model(x).mean())
    train(torch.ones(3, 2))
    terminate()
    with pytest.raises(SystemExit):
        train(torch.ones(3, 2))
    assert saved == [1, 2]


def test_without_a_signal_nothing_is_called():
    model, step = make(lambda: pytest.fail("nobody sent a signal"))
    for _ in range(3):
        step(lose(model, step))


def test_a_signal_told_twice_is_one():
    model, step = make(lambda: None)
    terminate()
    terminate()
    with pytest.raises(SystemExit):
        step(lose(model, step))


def test_a_save_that_fails_is_seen():
    def fail():
        raise UsageError("the disk is full")

    model, step = make(fail)
    terminate()
    with pytest.raises(UsageError, match="disk is full"):
        step(lose(model, step))


def test_the_signal_is_the_scripts_again_when_the_step_is_gone():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("script"))
    try:

        def make_and_drop():
            _, step = make(lambda: step)  # holds itself, as `lambda: save_checkpoint(step=step)` does

        make_and_drop()
        gc.collect()
        terminate()
        assert heard == ["script"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_whoever_took_the_signal_later_keeps_it(handler):
    watch = Preemption(CPU)
    later = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    watch.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    signal.signal(signal.SIGTERM, later)
    watch.close()
    assert signal.getsignal(signal.SIGTERM) is handler


def test_closed_in_another_thread_it_gives_back_when_the_signal_comes(handler):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("script"))
    try:
        watch = Preemption(CPU)
        thread = threading.Thread(target=watch.close)
        thread.start()
        thread.join(30)
        terminate()
        assert heard == ["script"]
        assert not watch.leaves_now()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_is_refused():
    refused = []

    def make_one():
        try:
            make(lambda: None)
        except UsageError as error:
            refused.append(str(error))

    thread = threading.Thread(target=make_one)
    thread.start()
    thread.join(30)
    assert refused == ["on_preemption= needs the main thread: Python hears signals nowhere else"]


def test_a_lost_process_of_the_training_is_explained():
    def lose_a_peer(_):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1")

    model, step = make(None)
    loss = lose(model, step)
    loss.register_hook(lose_a_peer)
    with pytest.raises(RuntimeError, match="closed by peer") as raised:
        step(loss)
    assert "torchrun names it" in raised.value.__notes__[0]


def test_a_forked_child_can_be_terminated_as_before():
    saved = []
    _, step = make(lambda: saved.append(1))
    context = multiprocessing.get_context("fork")
    ours, its = context.Pipe()
    child = context.Process(target=wait_for_the_end, args=(its,))
    child.start()
    assert ours.poll(30)  # Python drops a signal that comes while it forks
    child.terminate()
    child.join(30)
    code = child.exitcode
    child.kill()
    assert code == -signal.SIGTERM
    assert step.precision == "bf16"
    assert not saved


def test_what_cannot_be_called_is_refused():
    with pytest.raises(UsageError, match=r"on_preemption= is a function that saves.*'last.ckpt' is none"):
        make("last.ckpt")
