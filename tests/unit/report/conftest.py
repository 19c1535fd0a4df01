import importlib.util
import sys
from pathlib import Path

import pytest

_HOME = Path(__file__).parent / "recordings.py"


def _recordings():
    """The module of handmade recordings: tests are no package, so it is found by its place."""
    name = "handmade_recordings"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, _HOME)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def made():
    """Recordings made by hand: ``made.normal()``, ``made.crashed()``, ..."""
    return _recordings()


def pytest_generate_tests(metafunc):
    if "any_recording" in metafunc.fixturenames:
        makers = _recordings().ALL
        metafunc.parametrize("any_recording", [make() for make in makers], ids=[make.__name__ for make in makers])
