import importlib
import pickle
import sys

import pytest

from ampwise.runner.imports import after_import


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "imported_later.py").write_text("value = 3\nclass A: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imported_later", raising=False)
    finders = list(sys.meta_path)
    yield "imported_later"
    sys.modules.pop("imported_later", None)
    assert sys.meta_path == finders


def test_the_callback_comes_right_after_the_module_was_executed(module):
    seen = []
    after_import(module, lambda: seen.append(sys.modules[module].value))
    assert seen == []
    imported = importlib.import_module(module)
    assert seen == [3]
    importlib.reload(imported)
    assert seen == [3]


def test_a_module_that_is_there_already_calls_back_at_once():
    seen = []
    after_import("sys", lambda: seen.append(1))()
    assert seen == [1]


def test_the_undo_forgets_it(module):
    seen = []
    undo = after_import(module, lambda: seen.append(1))
    undo()
    undo()
    importlib.import_module(module)
    assert seen == []


def test_two_may_wait_for_one_module(module):
    seen = []
    undos = [after_import(module, lambda number=number: seen.append(number)) for number in (1, 2)]
    importlib.import_module(module)
    assert sorted(seen) == [1, 2]
    for undo in undos:
        undo()


def test_the_module_is_as_python_would_have_made_it(module):
    after_import(module, lambda: None)
    imported = importlib.import_module(module)
    kind = importlib.machinery.SourceFileLoader
    assert type(imported.__loader__) is kind
    assert type(imported.__spec__.loader) is kind
    assert importlib.util.find_spec(module) is imported.__spec__
    assert pickle.loads(pickle.dumps(imported.A)) is imported.A


def test_looking_for_the_module_does_not_import_it(module):
    seen = []
    undo = after_import(module, lambda: seen.append(1))
    spec = importlib.util.find_spec(module)
    assert spec.loader.is_package(module) is False
    assert seen == []
    undo()


def test_a_missing_module_is_still_missing():
    undo = after_import("no_such_module_at_all", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_at_all")
    undo()


def test_an_error_of_the_callback_comes_out_of_the_import(module):
    def refuse():
        raise SystemExit(3)

    after_import(module, refuse)
    with pytest.raises(SystemExit):
        importlib.import_module(module)
    assert module not in sys.modules
