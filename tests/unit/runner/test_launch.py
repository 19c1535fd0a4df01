import os
import signal
import sys
import threading
import time

import pytest

from ampwise._base.errors import UsageError
from ampwise.runner import launch
from ampwise.runner.launch import run_command


@pytest.fixture(params=["waited", "handled"])
def way(request, monkeypatch):
    """Both ways to forward signals, wherever the tests run."""
    if request.param == "handled":
        monkeypatch.setattr(launch, "_forward_waited", launch._forward_handled)
    elif not hasattr(signal, "sigtimedwait"):
        pytest.skip("no sigtimedwait here")
    before = [signal.getsignal(number) for number in launch._FORWARDED]
    yield request.param
    assert [signal.getsignal(number) for number in launch._FORWARDED] == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def python(code, **environ):
    return run_command([sys.executable, "-c", code], environ=environ)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("code", "status"), [("pass", 0), ("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 15)", 143)]
)
def test_the_status_is_the_commands(code, status):
    assert python(code) == status


@pytest.mark.usefixtures("way")
def test_the_command_has_the_environment_given():
    assert python("import os; raise SystemExit(int(os.environ['N']))", N="5") == 5


@pytest.mark.usefixtures("way")
def test_sigterm_reaches_the_command(tmp_path):
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(9))\n"
        f"pathlib.Path({str(ready)!r}).touch()\ntime.sleep(600)"
    )

    def send():
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    assert python(code) == 9
    sender.join()


def test_a_command_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r'there is no command "no-such".*torchrun'):
        run_command(["no-such"], environ={"PATH": str(tmp_path)})
