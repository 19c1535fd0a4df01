"""What every test stands on: nothing of ampwise's is left behind, and slow tests run as a seeded sample."""

import gc
import os
import random
import signal
import threading

import pytest
from hypothesis import settings

SAMPLE = 10
"""One slow test in this many runs in ./dev check."""


def pytest_addoption(parser):
    parser.addoption("--all-slow", action="store_true", help="run every slow test, not a seeded tenth of them")


def pytest_configure(config):
    settings.register_profile("on a loaded machine", deadline=None)
    settings.load_profile("on a loaded machine")
    os.environ.setdefault("PYTHONHASHSEED", "0")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a job in the background's; what it starts would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "leaves_behind(what): the test changes global state on purpose")


def pytest_collection_modifyitems(config, items):
    gpu = pytest.mark.skip(reason="torch sees no CUDA device")
    for item in items:
        if item.get_closest_marker("gpu") and not _has_cuda():
            item.add_marker(gpu)
    if config.getoption("--all-slow"):
        return
    slow = sorted((item for item in items if item.get_closest_marker("slow")), key=lambda item: item.nodeid)
    # Every xdist worker must draw the same sample.
    chosen = set(random.Random(os.environ.get("AMPWISE_SLOW_SEED", "0")).sample(slow, k=-(-len(slow) // SAMPLE)))
    skip = pytest.mark.skip(reason="slow: not in this sample; ./dev test --all runs it")
    for item in slow:
        if item not in chosen:
            item.add_marker(skip)


def _has_cuda():
    import torch

    return torch.cuda.is_available()


def _watched():
    """Attributes of torch and Python that ampwise's rows may replace, by identity."""
    from inspect import getattr_static

    from ampwise.interpose.seam import owner_of
    from rows import all_rows

    found = {}
    for row in all_rows():
        try:
            owner = owner_of(row)
            found[row.name] = (owner, row.attribute, getattr_static(owner, row.attribute))
        except (ImportError, AttributeError):
            continue  # an optional library that is not installed
    return found


@pytest.fixture(scope="session")
def made():
    """Recordings made by hand: ``made.normal()``, ``made.crashed()``, ..."""
    import recordings

    return recordings


@pytest.fixture
def alone():
    """Hides from ``gc.get_objects`` what other tests left alive, for tests that count all there is."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def _originals():
    """What the rows' targets were before any test ran."""
    # The first optimizer step imports Dynamo, which replaces torch.manual_seed; the first compilation replaces more.
    from torch._dynamo.eval_frame import TorchPatcher

    TorchPatcher.patch()
    # a collection would walk through half a million objects of torch's and pytest's: a third of a second each
    gc.collect()
    gc.freeze()
    return _watched()


def _torch_state():
    import torch
    from torch.nn.modules import module

    return {
        "default dtype": torch.get_default_dtype(),
        "stance": torch._dynamo.eval_frame._stance.stance,
        "autocast cpu": torch.is_autocast_enabled("cpu"),
        "autocast cuda": torch.is_autocast_enabled("cuda"),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "autocast cpu dtype": torch.get_autocast_dtype("cpu"),
        "grad mode": torch.is_grad_enabled(),
        "matmul precision": torch.backends.cuda.matmul.fp32_precision,
        "conv precision": torch.backends.cudnn.conv.fp32_precision,
        "global hooks": sum(
            len(hooks)
            for hooks in (
                module._global_forward_hooks,
                module._global_forward_pre_hooks,
                module._global_forward_hooks_with_kwargs,
                module._global_forward_hooks_always_called,
                module._global_backward_hooks,
                module._global_backward_pre_hooks,
            )
        ),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "kernels": [
            len(torch._C._dispatch_get_registrations_for_dispatch_key(key))
            for key in ("AutocastCPU", "AutocastCUDA", "CPU")
        ],
        "compile cache tag": torch.compiler.config.cache_key_tag,
    }


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request, _originals):
    """Law: what ampwise attaches it detaches, whatever happens."""
    import sys

    import torch

    from ampwise.interpose.seam import intercepted
    from ampwise.observe.events import BUS

    torch.set_num_threads(1)
    if "torch._dynamo.utils" in sys.modules:  # what another test compiled says nothing of this one
        sys.modules["torch._dynamo.utils"].counters.clear()
    before, argv, path = _torch_state(), list(sys.argv), list(sys.path)
    threads = threading.active_count()
    yield
    if request.node.get_closest_marker("leaves_behind"):
        return
    assert intercepted() == ()
    assert not any(BUS._listeners.values())
    after = _torch_state()
    assert after == before
    from inspect import getattr_static

    for name, (owner, attribute, original) in _originals.items():
        assert getattr_static(owner, attribute) is original, f"{name}: {attribute} is still replaced"
    assert (sys.argv, sys.path) == (argv, path)
    assert threading.active_count() <= threads + 1
