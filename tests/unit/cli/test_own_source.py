"""How a script takes its arguments, told from its own source and that of its modules."""

import pytest

from ampwise.cli.own_source import reading_of
from ampwise.runner.script import Target

HELPER = "def options():\n    import argparse\n    return argparse.ArgumentParser().parse_known_args()[0]\n"


def read(folder, text, **files):
    for name, source in {"mine.py": text, **files}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    return reading_of(Target(path=str(folder / "mine.py")))


def test_a_script_without_arguments_reads_none(tmp_path):
    reading = read(tmp_path, "import torch\nsteps = 3\n")
    assert reading.is_certain
    assert not reading.reads_arguments
    assert reading.mentions("--steps")


@pytest.mark.parametrize(
    "line",
    [
        "args = parser.parse_args()",
        "import click",
        "from absl import flags",
        "parser = HfArgumentParser(TrainingArguments)",
        "from installed.train import main",
        "config = OmegaConf.from_cli()",
        "import pyrallis",
        "exec(open('configurator.py').read())",
        "import runpy; runpy.run_path('train.py')",
        "import importlib; importlib.import_module(name).start()",
        "import installed; installed.main()",
        "import subprocess, sys; subprocess.run(['python', *sys.argv])",
        "import os, sys; os.execv(sys.executable, sys.argv)",
    ],
)
def test_what_refuses_options_or_hands_them_on_is_not_judged(tmp_path, line):
    assert not read(tmp_path, line + "\n").is_certain


def test_modules_of_the_scripts_own_are_read_too(tmp_path):
    sources = {"lib/__init__.py": "", "lib/inner.py": "from . import deep\n", "lib/deep.py": HELPER + "lr_max = 1\n"}
    reading = read(tmp_path, "from lib.inner import options\n", **sources)
    assert reading.is_certain
    assert reading.reads_arguments
    assert reading.mentions("--lr-max")
    assert not reading.mentions("--lr")


def test_modules_that_import_each_other_end(tmp_path):
    assert read(tmp_path, "import one\n", **{"one.py": "import two\n", "two.py": "import one, mine\n"}).is_certain


@pytest.mark.parametrize("text", ["x = '\udcff'", "# coding: no-such\n"])
def test_a_source_that_cannot_be_read_is_not_judged(tmp_path, text):
    (tmp_path / "mine.py").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert not reading_of(Target(path=str(tmp_path / "mine.py"))).is_certain


def test_what_is_not_there_is_not_judged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not reading_of(Target(path="no.py")).is_certain
    assert not reading_of(Target(module="no_such.train")).is_certain


def test_a_module_and_a_package_are_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    for name in ("__init__", "__main__", "train"):
        (tmp_path / "pkg" / f"{name}.py").write_text(f"this_is_{name} = 1\n")
    assert "this_is_train" in reading_of(Target(module="pkg.train")).text
    assert "this_is___main__" in reading_of(Target(module="pkg")).text
    assert "this_is___main__" in reading_of(Target(path="pkg")).text
