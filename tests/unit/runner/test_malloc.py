import subprocess
import sys

import pytest

from ampwise.runner.malloc import ENVIRONMENT, children_environment, set_allocator
from ampwise.runner.spec import Malloc


class FakeMallopt:
    def __init__(self, answer=1):
        self.calls = []
        self.answer = answer

    def __call__(self, parameter, value):
        self.calls.append((parameter, value))
        return self.answer


def apply(malloc, *, environ=None, on_cpu=True, answer=1):
    mallopt = FakeMallopt(answer)
    return set_allocator(malloc, environ=environ or {}, on_cpu=on_cpu, mallopt=mallopt), mallopt


@pytest.mark.parametrize("malloc", [Malloc.AUTO, Malloc.TUNED])
def test_tuned_keeps_large_tensors_and_can_be_taken_back(malloc):
    setting, mallopt = apply(malloc)
    assert setting.words.startswith("tuned")
    assert mallopt.calls == [(-4, 0), (-1, -1)]
    setting.undo()
    assert mallopt.calls[2:] == [(-4, 65_536), (-1, 131_072)]


@pytest.mark.parametrize(
    ("malloc", "environ", "on_cpu", "words"),
    [
        (Malloc.SYSTEM, {}, True, "system"),
        (Malloc.AUTO, {}, False, "system (the training is not on the CPU)"),
        (Malloc.AUTO, {"MALLOC_ARENA_MAX": "1", "PATH": "x"}, True, "the user's own (MALLOC_ARENA_MAX)"),
        (Malloc.AUTO, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"}, True, "the user's own (GLIBC_TUNABLES)"),
        (Malloc.AUTO, {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, True, "the user's own (libjemalloc.so.2)"),
        (Malloc.AUTO, {"LD_PRELOAD": "/a.so:/usr/lib/libtcmalloc.so"}, True, "the user's own (libtcmalloc.so)"),
    ],
)
def test_what_is_left_alone_says_why(malloc, environ, on_cpu, words):
    setting, mallopt = apply(malloc, environ=environ, on_cpu=on_cpu)
    assert setting.words == words
    setting.undo()
    assert mallopt.calls == []


def test_asked_for_by_name_the_users_own_is_overruled():
    setting, mallopt = apply(Malloc.TUNED, environ={"MALLOC_ARENA_MAX": "1"}, on_cpu=False)
    assert setting.words.startswith("tuned")
    assert mallopt.calls


def test_tunables_of_something_else_do_not_count():
    setting, _ = apply(Malloc.AUTO, environ={"GLIBC_TUNABLES": "glibc.cpu.x86_ibt=off"})
    assert setting.words.startswith("tuned")


def test_a_refusal_is_said_and_children_get_the_environment():
    setting, _ = apply(Malloc.AUTO, answer=0)
    assert "refused" in setting.words
    assert children_environment(Malloc.AUTO, environ={}, mallopt=FakeMallopt(0)) == ENVIRONMENT
    assert children_environment(Malloc.TUNED, environ={"MALLOC_X_": "1"}, mallopt=FakeMallopt(0)) == ENVIRONMENT
    assert children_environment(Malloc.AUTO, environ={"MALLOC_X_": "1"}, mallopt=FakeMallopt(0)) == {}
    assert children_environment(Malloc.SYSTEM, environ={}, mallopt=FakeMallopt(0)) == {}
    assert children_environment(Malloc.AUTO, environ={}, mallopt=FakeMallopt(1)) == {}


def test_without_glibc_nothing_is_done(monkeypatch):
    monkeypatch.setattr("os.confstr", lambda _: None)
    setting = set_allocator(Malloc.TUNED, environ={}, on_cpu=True)
    assert setting.words == "system (not glibc's, so left as it is)"


FAULTS = """
import ctypes, resource, sys
from ampwise.runner.malloc import set_allocator
from ampwise.runner.spec import Malloc
set_allocator(Malloc(sys.argv[1]), environ={}, on_cpu=True)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def use():
    block = libc.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    libc.free(block)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own behaviour")
def test_tuned_memory_is_not_faulted_in_again():
    tuned, system = (
        int(subprocess.run([sys.executable, "-c", FAULTS, malloc], capture_output=True, check=True).stdout)
        for malloc in ("tuned", "system")
    )
    assert tuned < 100
    assert system > tuned * 10 or system < 100  # huge pages make both few
