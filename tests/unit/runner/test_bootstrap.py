import os
import subprocess
import sys

import pytest

from ampwise.runner import bootstrap
from ampwise.runner.bootstrap import children_environment, plain_environment, spec_from_json, spec_to_json
from ampwise.runner.spec import LaunchSpec, Lists, Malloc

SPEC = LaunchSpec(precision="bf16", lists=Lists.STOCK, malloc=Malloc.TUNED, stop_after=3, scratch="/a b/ü")


def test_a_spec_survives_the_environment():
    assert spec_from_json(spec_to_json(SPEC)) == SPEC


def test_children_get_the_spec_and_our_site_in_front_and_do_not_print():
    environ = children_environment(SPEC, {"PYTHONPATH": os.pathsep.join(["a", "b"]), "HOME": "/h"})
    folders = environ["PYTHONPATH"].split(os.pathsep)
    assert folders[1:] == ["a", "b"]
    assert os.path.exists(os.path.join(folders[0], "sitecustomize.py"))  # noqa: PTH110, PTH118
    assert environ["HOME"] == "/h"
    taken = spec_from_json(environ[bootstrap.VARIABLE])
    assert (taken.precision, taken.summary) == ("bf16", False)
    assert children_environment(SPEC, environ) == environ


def test_a_plain_environment_knows_nothing_of_ampwise():
    before = {"PYTHONPATH": "a", "HOME": "/h"}
    assert plain_environment(children_environment(SPEC, before)) == before
    assert plain_environment(children_environment(SPEC, {"HOME": "/h"})) == {"HOME": "/h"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["python", "-m", "ampwise", "run", "x.py"], True),
        (["python", "-u", "-m", "ampwise"], True),
        (["python", "/venv/bin/ampwise", "compare"], True),
        (["python", "-m", "ampwise.runner.worker", "{}"], True),
        (["python", "-c", "from multiprocessing.resource_tracker import main;main(3)"], True),
        (["python", "/x/torch/_inductor/compile_worker/__main__.py"], True),
        (["python", "-c", "from multiprocessing.spawn import spawn_main"], False),
        (["python", "train.py", "ampwise"], False),
        (["python", "-m", "torch.distributed.run", "-m", "ampwise", "run", "x.py"], False),
        (["python"], False),
        ([], False),
    ],
)
def test_ampwises_own_processes_and_helpers_are_known(arguments, expected):
    assert bootstrap._is_ours(arguments) is expected


def test_a_child_without_torch_starts_and_ends_as_ever(tmp_path):
    parts = tmp_path / "parts"
    parts.mkdir()
    environ = children_environment(LaunchSpec(parts=str(parts)), os.environ)
    code = "import sys; print('torch' in sys.modules, 'ampwise.runner.session' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"False True\n", b"")
    assert list(parts.iterdir()) == []


def test_a_python_without_ampwise_runs_as_it_would(tmp_path):
    environ = children_environment(LaunchSpec(), {**os.environ, "PYTHONPATH": ""})
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import sitecustomize"], env=environ, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
