import multiprocessing
import os

from ampwise.observe.process import _known, process_id


def test_it_is_this_process():
    assert process_id() == os.getpid()


def test_a_forked_child_knows_its_own():
    process_id()  # known before the fork
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=lambda: theirs.send((process_id(), os.getpid())), daemon=True)
    child.start()
    try:
        assert ours.poll(30)
        known, own = ours.recv()
    finally:
        child.join(30)
    assert known == own == child.pid != os.getpid()


def test_where_nothing_forks_it_is_known_too(monkeypatch):
    monkeypatch.delattr(os, "register_at_fork")
    assert _known.__wrapped__().number == os.getpid()
