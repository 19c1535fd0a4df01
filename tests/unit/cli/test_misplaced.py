"""An option of ampwise's behind the script: told before the run, where nobody else would read it."""

from pathlib import Path

import pytest

from ampwise.cli import casts, compare, doctor, estimate, plan_script, run, tune
from ampwise.cli.main import main
from ampwise.cli.misplaced import hint_after_refusal, misplaced, script_behind, warn_of_misplaced
from ampwise.runner.script import Target

RUN = run.command
BY_HAND = "import sys\nname = sys.argv[1]\n"
KNOWN = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--precision')\n"


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import torch\nprecision = 1\n")
    return "mine.py"


def warned(*argv, command=RUN, text=None, script="mine.py"):
    if text is not None:
        Path(script).write_text(text)
    return warn_of_misplaced(Target(path=script, argv=argv), command)


@pytest.mark.parametrize(
    ("argv", "write"),
    [
        (["--precision", "bf16"], "ampwise run --precision bf16 ... mine.py"),
        (["--precision=bf16"], "ampwise run --precision=bf16 ... mine.py"),
        (["data", "--json", "x"], "ampwise run --json ... mine.py"),
        (["--plan", "my plan.toml"], "ampwise run --plan 'my plan.toml' ... mine.py"),
        (["--no-summary"], "ampwise run --no-summary ... mine.py"),
        (["--precision"], "ampwise run --precision ... mine.py"),
    ],
)
def test_a_script_that_reads_no_arguments_is_warned_of(script, capsys, argv, write):
    assert warned(*argv)
    name = next(word for word in argv if word.startswith("--")).partition("=")[0]
    assert capsys.readouterr().err == (
        f"ampwise: warning: {name} stands after the script, so the script got it; if it is meant for ampwise, "
        f"write: {write}\n"
    )


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ((), None),
        (("--lr", "3"), None),
        (("precision", "-m"), None),
        (("--", "--precision", "bf16"), None),
        (("--precision", "bf16"), KNOWN + "args = parser.parse_args()\n"),
        (("--precision", "bf16"), KNOWN + "args, _ = parser.parse_known_args()\n"),
        (("--precision", "bf16"), BY_HAND + "precision = sys.argv[3]\n"),
    ],
)
def test_options_of_the_scripts_own_are_left_alone(script, capsys, argv, text):
    assert not warned(*argv, text=text)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", [BY_HAND, "import argparse\nargparse.ArgumentParser().parse_known_args()\n"])
def test_one_that_the_script_reads_past_is_warned_of(script, capsys, text):
    assert warned("--precision", "bf16", text=text)
    assert "--precision stands after the script" in capsys.readouterr().err


def test_the_script_of_a_launcher_is_found(script):
    words = ("torchrun", "--nproc-per-node", "2", "mine.py", "--precision", "bf16")
    assert script_behind(words) == Target(path="mine.py", argv=("--precision", "bf16"))
    assert script_behind(("torchrun", "-m", "mine")) is None


def test_a_module_is_named_as_one():
    hint = misplaced(Target(module="pkg.train", argv=("--precision", "bf16")), RUN)
    assert hint is not None
    assert hint.endswith("ampwise run --precision bf16 ... -m pkg.train")


@pytest.mark.parametrize(
    ("words", "owner", "runs"),
    [
        ("run mine.py --precision bf16", run, "_run"),
        ("run mine.py --show-code", run, "_run"),
        ("compare mine.py --steps 5", compare, "_measure"),
        ("doctor mine.py --emulate fp16", doctor, "_examined"),
        ("casts mine.py --emulate fp16", casts, "_run"),
        ("tune -o p.toml mine.py --target fp8", tune, "_tuned"),
        ("estimate mine.py --device t4", estimate, "_of_script"),
        ("plan show bf16 -- mine.py --json", plan_script, "layout_of"),
    ],
)
def test_every_command_with_a_script_warns_before_it_runs(script, monkeypatch, capsys, words, owner, runs):
    class BeganError(Exception):
        pass

    def begin(*_, **__):
        raise BeganError

    monkeypatch.setattr(owner, runs, begin)
    with pytest.raises(BeganError):
        main(words.split())
    option = next(word for word in reversed(words.split()) if word.startswith("--"))
    assert f"ampwise: warning: {option} stands after the script" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "is_said"),
    [
        ("exit status 2", True),
        ("it fails (exit status 2: usage) in fp32 too", True),
        ("exit status 21", False),
        ("CalledProcessError: Command 'make' returned non-zero exit status 2.", False),
        (None, False),
    ],
)
def test_a_refusal_of_the_scripts_is_followed_by_the_hint(capsys, failure, is_said):
    hint_after_refusal(Target(path="mine.py", argv=("--precision", "bf16")), RUN, failure)
    assert ("write: ampwise run --precision bf16 ... mine.py" in capsys.readouterr().err) == is_said


def test_no_summary_keeps_run_silent(script, monkeypatch, capsys):
    monkeypatch.setattr(run, "_run", lambda *_, **__: 0)
    assert main(["run", "--no-summary", "mine.py", "--precision", "bf16"]) == 0
    assert capsys.readouterr().err == ""
