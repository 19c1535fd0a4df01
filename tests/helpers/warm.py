"""``python ...`` in a copy of a process that has imported torch already: importing it is most of what each run takes.

The copy looks fresh: torch is not in ``sys.modules`` until the program imports it, which then finds what was imported
before. What differs: the environment comes too late for the interpreter and for torch's threads. So each command has a
test in a process of its own (``fresh``) beside those that use copies.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_TORCHS = ("torch", "functorch", "torchgen")


def fresh(*arguments, cwd=None, env=None, timeout=300):
    """Python in a process of its own."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=env, timeout=timeout, capture_output=True, text=True, check=False)


def python(*arguments, cwd=None, env=None, timeout=300):
    """As ``fresh``, in a copy; reads nothing from the terminal."""
    arguments = [str(one) for one in arguments]
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        outputs = [str(Path(folder, name)) for name in ("stdout", "stderr")]
        order = {
            "arguments": arguments,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "outputs": outputs,
            "timeout": timeout,
        }
        status = _server().ask(order, timeout=timeout + 10)
        stdout, stderr = (Path(path).read_text(encoding="utf-8") for path in outputs)
    return subprocess.CompletedProcess([sys.executable, *arguments], status, stdout, stderr)


class _Server:
    """The process that was warmed up, from the side of those who ask it."""

    def __init__(self):
        self._socket, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self._answers = self._socket.makefile("r")
        atexit.register(self.close)

    def ask(self, order, *, timeout):
        self._socket.settimeout(timeout)
        self._socket.sendall((json.dumps(order) + "\n").encode())
        try:
            answer = self._answers.readline()
        except TimeoutError:
            self.close()
            _server.cache_clear()
            raise
        assert answer, "the warm process is gone"
        return json.loads(answer)

    def close(self):
        with self._socket, self._answers:
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        atexit.unregister(self.close)


@cache
def _server():
    return _Server()


class _Parked(MetaPathFinder, Loader):
    """Holds torch's modules back until torch is imported."""

    def __init__(self):
        self._modules = {name: one for name, one in sys.modules.items() if name.partition(".")[0] in _TORCHS}
        self._specs = {name: self._modules[name].__spec__ for name in _TORCHS if name in self._modules}
        for name in self._modules:
            del sys.modules[name]

    def find_spec(self, fullname, _path, _target=None):
        if fullname not in self._specs or fullname in sys.modules:
            return None
        return ModuleSpec(fullname, self, origin=self._specs[fullname].origin, is_package=True)

    def create_module(self, spec):
        return self._modules[spec.name]

    def exec_module(self, module):
        module.__spec__ = self._specs[module.__name__]
        for name, one in self._modules.items():
            sys.modules.setdefault(name, one)


class _Forked(subprocess.Popen):
    """A Popen whose processes, where they are ampwise's own, are copies of this one."""

    def _execute_child(self, args, *rest):
        if not isinstance(args, list) or args[:2] != [sys.executable, "-m"] or not args[2].startswith("ampwise."):
            return super()._execute_child(args, *rest)
        (
            _executable,
            _preexec,
            _close,
            pass_fds,
            cwd,
            env,
            *_,
        ) = rest
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = rest[9:15]
        process_group = rest[-1]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            for theirs, ours in ((p2cread, 0), (c2pwrite, 1), (errwrite, 2)):
                if theirs != -1:
                    os.dup2(theirs, ours)
            if process_group >= 0:
                os.setpgid(0, process_group)
            for descriptor in pass_fds:
                os.set_inheritable(descriptor, True)
            _become(args[1:], cwd=cwd, env=env)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        return None


def _become(arguments, *, cwd, env):
    """Go on as ``python *arguments`` would, and end."""
    status = 70
    try:
        status = _status_of(lambda: _run(arguments, cwd=cwd, env=env))
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _status_of(program):
    try:
        program()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 - shown as Python shows it
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _run(arguments, *, cwd, env):
    import runpy

    atexit._clear()  # what it copies has its own to clean up
    if "multiprocessing.util" in sys.modules:
        atexit.register(sys.modules["multiprocessing.util"]._exit_function)
    if cwd is not None:
        os.chdir(cwd)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    sys.orig_argv = [sys.executable, *arguments]
    added = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and one not in _PATH]
    main = sys.modules["__main__"] = ModuleType("__main__")
    if arguments[0] == "-m":
        sys.argv = ["-m", *arguments[2:]]
        sys.path[:] = [str(Path.cwd()), *added, *_PATH]
        runpy._run_module_as_main(arguments[1])
        return
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path[:] = ["", *added, *_PATH]
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
        return
    sys.argv = list(arguments)
    sys.path[:] = [str(Path(arguments[0]).resolve().parent), *added, *_PATH]
    main.__file__ = arguments[0]
    main.__builtins__ = __builtins__
    exec(compile(Path(arguments[0]).read_bytes(), arguments[0], "exec"), main.__dict__)


def _serve(asked):
    for line in asked.makefile("r"):
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.alarm(order["timeout"])
            os.setsid()
            for path, ours in zip(order["outputs"], (1, 2), strict=True):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), ours)
            asked.close()
            _become(order["arguments"], cwd=order["cwd"], env=order["env"])
        _, status = os.waitpid(pid, 0)
        asked.sendall((json.dumps(os.waitstatus_to_exitcode(status)) + "\n").encode())


if __name__ == "__main__":
    _PATH = sys.path[1:]
    import torch._dynamo.eval_frame

    torch._dynamo.eval_frame.TorchPatcher.patch()
    sys.meta_path.insert(0, _Parked())
    del torch
    subprocess.Popen = _Forked
    _serve(socket.socket(fileno=int(sys.argv[1])))
