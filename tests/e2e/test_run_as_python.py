"""`ampwise run script` says and returns what `python script` does. The scripts leave torch out: each is quick."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPTS = {
    "globals": "import sys\nprint(sorted(globals()), __name__, __file__, __package__, __spec__, __cached__, __doc__)",
    "doc": '"""What it is."""\nx: int = 3\nprint(__doc__, __annotations__)',
    "loader": "print(type(__loader__).__name__, __loader__.name, __loader__.path, __loader__.get_source('__main__'))",
    "argv": "import sys\nprint(sys.argv, sys.path[0])",
    "main": "import __main__, sys\nprint(__main__ is sys.modules['__main__'], __main__.__dict__ is globals())",
    "exit_5": "import sys\nprint('a')\nsys.exit(5)",
    "exit_none": "import sys\nprint('a')\nsys.exit(None)",
    "exit_256": "import sys\nsys.exit(257)",
    "exit_text": "import sys\nprint('out')\nsys.exit('bye')",
    "exit_object": "import sys\nsys.exit([1, 2])",
    "raises": "def f():\n    return 1 / 0\nf()",
    "chained": "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('no a') from error",
    "context": "try:\n    {}['a']\nexcept KeyError:\n    int('x')",
    "group": "raise ExceptionGroup('both', [ValueError('a'), TypeError('b')])",
    "syntax": "x = (\n",
    "encoding": "# -*- coding: latin-1 -*-\nprint('caf\xe9'.encode())",
    "own_excepthook": "import sys\nsys.excepthook = lambda kind, value, tb: print('hook', kind, tb.tb_lineno)\n\n1 / 0",
    "atexit": "import atexit\natexit.register(print, 'bye')\nprint('hi')\nraise SystemExit(3)",
    "atexit_pickle": (
        "import atexit, pickle, sys\nclass A: pass\n"
        "atexit.register(lambda: print(type(pickle.loads(pickle.dumps(A())))))\nsys.exit(3)"
    ),
    "pool_left_open": (
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\n"
        "print(pool.submit(int, '3').result())\nraise SystemExit(4)"
    ),
    "thread_not_joined": (
        "import threading, time\ndef late():\n    time.sleep(0.2)\n    print('late', flush=True)\n"
        "threading.Thread(target=late).start()\nprint('end', flush=True)\nraise SystemExit(4)"
    ),
    "pool_of_processes": (
        "import multiprocessing, sys\ndef double(x):\n    return 2 * x\nif __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n        print(pool.map(double, [1, 2]))\n"
        "    sys.exit(6)"
    ),
    "fork": (
        "import os, sys\nif os.fork() == 0:\n    sys.exit(9)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\nsys.exit(8)"
    ),
    "inspect": "import inspect\ndef f(): pass\nprint(inspect.getsource(f))\nraise SystemExit(1)",
    "dataclass": "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int\nprint(A(3))\nraise SystemExit(1)",
    "stderr_closed": "import sys\nsys.stderr.close()\nraise SystemExit(3)",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "recursion": "def f():\n    f()\ntry:\n    f()\nexcept RecursionError as error:\n    print(error)\n    exit(3)",
}


def python(*arguments, cwd, **options):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, timeout=240, check=False, **options
    )
    return SimpleNamespace(status=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())


def check_same(plain, ours):
    lines = ours.err.splitlines(keepends=True)
    said = [line for line in lines if line.startswith("ampwise: ")]
    assert ours.out == plain.out
    assert "".join(line for line in lines if line not in said) == plain.err
    if plain.status == 0:  # nothing was trained, which is all that ampwise adds
        assert (ours.status, len(said)) == (3, 1)
        assert "no training step found" in said[0]
    else:
        assert ours.status == plain.status
        assert said == []


@pytest.mark.parametrize("name", list(SCRIPTS))
def test_a_script_runs_as_under_python(name, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPTS[name], encoding="latin-1" if name == "encoding" else "utf-8")
    arguments = ["script.py", "--lr", "3e-4", "-m", "--", "--json", "x"]
    plain = python(*arguments, cwd=tmp_path)
    check_same(plain, python("-m", "ampwise", "run", *arguments, cwd=tmp_path))


@pytest.mark.parametrize("path", ["./script.py", "../{name}/script.py", "{folder}/script.py", "link.py", "."])
def test_a_path_is_kept_as_it_was_written(path, tmp_path):
    (tmp_path / "script.py").write_text("import sys\nprint(__file__, sys.argv, sys.path[0])\nraise OSError")
    (tmp_path / "__main__.py").write_text(
        "import sys\nprint(__file__, sys.argv, sys.path[0], __package__)\nsys.exit(4)"
    )
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "real.py").write_text("import sys\nprint(__file__, sys.path[0])\nsys.exit(4)")
    (tmp_path / "link.py").symlink_to("elsewhere/real.py")
    written = path.format(name=tmp_path.name, folder=tmp_path)
    check_same(python(written, cwd=tmp_path), python("-m", "ampwise", "run", written, cwd=tmp_path))


@pytest.mark.parametrize("module", ["package", "package.train", "package.inner.train"])
def test_a_module_runs_as_under_python(module, tmp_path):
    code = (
        "import sys\nfrom {dots}helper import value\n"
        "print(__name__, __package__, __spec__.name, sys.argv, sys.path[0])\n"
        "print(sys.modules['__main__'].__spec__ is __spec__, value)\nsys.exit(4)"
    )
    (tmp_path / "package" / "inner").mkdir(parents=True)
    for name, dots in (
        ("__init__", ""),
        ("__main__", "."),
        ("train", "."),
        ("inner/__init__", ""),
        ("inner/train", ".."),
    ):
        text = "" if name.endswith("__init__") else code.format(dots=dots)
        (tmp_path / "package" / f"{name}.py").write_text(text)
    (tmp_path / "package" / "helper.py").write_text("value = 3")
    plain = python("-m", module, "--steps", "9", cwd=tmp_path)
    check_same(plain, python("-m", "ampwise", "run", "-m", module, "--steps", "9", cwd=tmp_path))


def test_a_modules_syntax_error_is_cpythons(tmp_path):
    (tmp_path / "bad.py").write_text("x = (\n")
    ours = python("-m", "ampwise", "run", "-m", "bad", cwd=tmp_path)
    assert ours.status == 1
    assert ours.err.endswith("SyntaxError: '(' was never closed\n")
    assert "ampwise" not in ours.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.py"], "can't open file"),
        (["empty"], "can't find '__main__' module"),
        (["-m", "no_such_module"], "No module named no_such_module"),
        (["-m", "package.none"], "No module named package.none"),
        (["-m", "none.py"], "to run a file: ampwise run none.py"),
        (["-m", "package"], "No module named package.__main__"),
        (["--precision", "bf61", "none.py"], 'did you mean "bf16"?'),
        (["--device", "gpu", "none.py"], "write cpu, cuda"),
        (["--malloc", "fast", "none.py"], "'auto', 'tuned', 'system'"),
        (["--precison", "bf16", "none.py"], "--precision"),
        (["--", "no-such-launcher", "x"], "there is no command"),
        ([], "SCRIPT"),
        (["--show-code", "none.py"], "none.py"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_in_a_line(arguments, words, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    refused = python("-m", "ampwise", "run", *arguments, cwd=tmp_path)
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.startswith("ampwise: ")
    assert words in refused.err
    assert "Traceback" not in refused.err


def wait_until_asleep(pid):
    """A signal that comes before the script's last line would show another line in its traceback."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        time.sleep(0.2)
        return
    while stat.read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.01)


def interrupted(*arguments, cwd, number=signal.SIGINT):
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout.readline() == b"ready\n"
    wait_until_asleep(process.pid)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=120)
    return SimpleNamespace(status=process.returncode, out=out.decode(), err=err.decode())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_script_as_under_python(number, tmp_path):
    (tmp_path / "script.py").write_text(
        "import atexit, time\natexit.register(print, 'bye', flush=True)\nprint('ready', flush=True)\ntime.sleep(600)\n"
    )
    plain = interrupted("script.py", cwd=tmp_path, number=number)
    ours = interrupted("-m", "ampwise", "run", "script.py", cwd=tmp_path, number=number)
    assert vars(ours) == vars(plain)
    assert ours.status == -number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_forwarded_to_a_launcher_once(number, tmp_path):
    (tmp_path / "launcher.py").write_text(
        "import signal, sys, time\nseen = []\n"
        "for n in (signal.SIGINT, signal.SIGTERM):\n    signal.signal(n, lambda n, _: seen.append(n))\n"
        "print('ready', flush=True)\n"
        "while not seen:\n    time.sleep(0.01)\n"
        "time.sleep(0.2)\nprint(*map(int, seen), flush=True)\nsys.exit(20 + len(seen))\n"
    )
    ours = interrupted("-m", "ampwise", "run", "--", sys.executable, "launcher.py", cwd=tmp_path, number=number)
    assert (ours.status, ours.out, ours.err) == (21, f"{int(number)}\n", "")


def test_a_launcher_that_a_signal_ends_returns_as_a_shell_would(tmp_path):
    (tmp_path / "killed.py").write_text("import os\nos.kill(os.getpid(), 9)")
    assert python("-m", "ampwise", "run", "--", sys.executable, "killed.py", cwd=tmp_path).status == 128 + 9


def test_a_script_may_stand_behind_the_dashes(tmp_path):
    (tmp_path / "script.py").write_text("import sys\nprint(sys.argv)\nsys.exit(5)")
    done = python("-m", "ampwise", "run", "--", "script.py", "--", "-x", cwd=tmp_path)
    assert (done.status, done.out) == (5, "['script.py', '--', '-x']\n")


def test_a_users_own_sitecustomize_still_runs_in_children(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import os\nos.environ['SEEN'] = 'yes'\n")
    (tmp_path / "child.py").write_text(
        "import os, sys\nprint(os.environ.get('SEEN'), sys.modules['sitecustomize'].__file__)"
    )
    (tmp_path / "script.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'], check=True)\nsys.exit(3)"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    plain = python("script.py", cwd=tmp_path, env=environ)
    assert plain.out.startswith("yes")
    check_same(plain, python("-m", "ampwise", "run", "script.py", cwd=tmp_path, env=environ))


def test_an_option_behind_a_script_that_refuses_it_is_pointed_out(tmp_path):
    (tmp_path / "train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    ours = python("-m", "ampwise", "run", "train.py", "--precision", "bf16", cwd=tmp_path)
    plain = python("train.py", "--precision", "bf16", cwd=tmp_path)
    assert (ours.status, plain.status) == (2, 2)
    said = ours.err.removeprefix(plain.err)
    assert said == (
        "ampwise: --precision stands after the script, so the script got it; if it is meant for ampwise, write: "
        "ampwise run --precision bf16 ... train.py\n"
    )
