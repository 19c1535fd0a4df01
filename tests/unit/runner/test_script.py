import sys
import threading

import pytest

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.runner.script import RefusedRun, ScriptEnd, StopRun, Target, run_target, source_of


@pytest.fixture(autouse=True)
def put_back():
    main, argv, path = sys.modules["__main__"], list(sys.argv), list(sys.path)
    yield
    sys.modules["__main__"] = main
    sys.argv[:], sys.path[:] = argv, path


def write(folder, text, name="script.py"):
    (folder / name).write_text(text)
    return Target(path=str(folder / name), argv=("1", "--x"))


def test_the_main_module_stays_after_the_last_line(tmp_path):
    target = write(tmp_path, "import sys\nvalue = sys.argv[1:]\ndef f(): return value")
    assert run_target(target) == ScriptEnd(status=0)
    main = sys.modules["__main__"]
    assert main.f() == ["1", "--x"]
    assert sys.path[0] == str(tmp_path)


@pytest.mark.parametrize(
    ("raised", "status"), [("SystemExit(0)", 0), ("SystemExit", 0), ("SystemExit(True)", 1), ("SystemExit(-1)", 255)]
)
def test_the_status_is_what_python_would_exit_with(tmp_path, raised, status):
    end = run_target(write(tmp_path, f"raise {raised}"))
    assert (end.status, end.stopped) == (status, False)


def test_a_stop_ends_well_and_passes_except_exception(tmp_path):
    text = (
        "from ampwise.runner.script import StopRun\n"
        "try:\n    raise StopRun\nexcept Exception:\n    pass\nraise ValueError"
    )
    end = run_target(write(tmp_path, text))
    assert (end.status, end.stopped) == (0, True)
    assert StopRun().code == 0


def test_a_refusal_reaches_the_caller_past_the_scripts_except(tmp_path, monkeypatch):
    error = CannotRunError("no")
    monkeypatch.setattr("ampwise.runner.script.refusal_for_test", RefusedRun(error), raising=False)
    text = (
        "import ampwise.runner.script as s\ntry:\n    raise s.refusal_for_test\nexcept Exception:\n    pass\n"
        "raise ValueError"
    )
    with pytest.raises(CannotRunError) as caught:
        run_target(write(tmp_path, text))
    assert caught.value is error
    assert RefusedRun(error).code == 3


def test_an_error_goes_to_the_handler_which_gives_the_status(tmp_path):
    seen = []
    end = run_target(write(tmp_path, "1 / 0"), on_error=lambda error: seen.append(error) or 3)
    assert end.status == 3
    assert isinstance(end.error, ZeroDivisionError)
    assert seen == [end.error]


def test_ctrl_c_is_no_ordinary_end(tmp_path):
    end = run_target(write(tmp_path, "raise KeyboardInterrupt"), on_error=lambda _: 130)
    assert (end.status, end.interrupted) == (130, True)


def test_threads_that_the_script_left_are_waited_for(tmp_path):
    text = (
        "import threading, time\ndone = []\ndef late():\n    time.sleep(0.05)\n    done.append(1)\n"
        "threading.Thread(target=late).start()\n"
    )
    run_target(write(tmp_path, text))
    assert sys.modules["__main__"].done == [1]
    assert threading.active_count() >= 1


def test_future_flags_of_ampwise_do_not_reach_the_script(tmp_path):
    run_target(write(tmp_path, "def f(x: int): pass\nkind = type(f.__annotations__['x'])"))
    assert sys.modules["__main__"].kind is type


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Target(path="/no/such.py"), r"can't open file '/no/such.py': \[Errno 2\] No such file or directory"),
        (Target(module="no.such"), "No module named no.such"),
        (Target(module=".relative"), "No module named .relative"),
        (Target(module="math"), "math has no|no code object"),
    ],
)
def test_what_is_not_there_is_a_usage_error(target, words):
    with pytest.raises(UsageError, match=words):
        run_target(target)


def test_a_module_missing_inside_the_package_is_the_packages_fault(tmp_path, monkeypatch):
    (tmp_path / "pkg_missing").mkdir()
    (tmp_path / "pkg_missing" / "__init__.py").write_text("import not_installed_anywhere")
    monkeypatch.chdir(tmp_path)
    end = run_target(Target(module="pkg_missing.train"), on_error=lambda _: 1)
    assert (end.status, end.error.name) == (1, "not_installed_anywhere")


def test_the_command_is_what_was_typed():
    assert Target(path="a b.py", argv=("x",)).command == ("a b.py", "x")
    assert Target(module="a.b", argv=("x",)).command == ("-m", "a.b", "x")


def test_the_source_is_read_in_its_own_encoding(tmp_path):
    (tmp_path / "latin.py").write_bytes("# coding: latin-1\nx = 'é'\n".encode("latin-1"))
    path = str(tmp_path / "latin.py")
    assert source_of(Target(path=path)) == (path, "# coding: latin-1\nx = 'é'\n")
    with pytest.raises(UsageError, match="can't open"):
        source_of(Target(path=str(tmp_path)))
