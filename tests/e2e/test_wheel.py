"""The wheel that is published: it holds all that the source does, and works away from it."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAIN = """
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    loss = model(torch.ones(3, 4)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("done")
"""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]


def check(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "-q"]
    check(*pip, "--no-deps", "--no-build-isolation", "-w", str(built), str(source))
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The commands of a new environment that has the wheel, and this one's packages but for ampwise."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    commands = home / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(commands / "python"), "--disable-pip-version-check", "-q"]
    check(*pip, "install", "--no-deps", "--no-index", str(wheel))
    site = check(commands / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # a folder named in a .pth file is searched last, and its own .pth files, an editable ampwise's say, are not read
    Path(site, "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = check(commands / "python", "-c", "import ampwise; print(ampwise.__file__)", cwd=home)
    assert where.startswith(site)
    return commands


def test_the_wheel_holds_every_file_of_the_source(wheel):
    package = ROOT / "src"
    wanted = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == wanted
    assert {"ampwise/py.typed", "ampwise/runner/_site/sitecustomize.py"} <= found


def test_the_wheel_names_its_extras_and_its_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(about).decode()
        commands = archive.read(about.replace("METADATA", "entry_points.txt")).decode()
    extras = {
        line.removeprefix("Provides-Extra: ") for line in metadata.splitlines() if line.startswith("Provides-Extra")
    }
    assert extras >= {"cli", "tensorboard", "lightning", "transformers"}
    assert "License-Expression: Apache-2.0" in metadata
    assert "ampwise = ampwise.__main__:main" in commands


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--help", "compare"),
        ("explain fp16", "65504"),
        ("explain DR101", "overflow-in-module"),
        ("lint train.py", ""),
        ("plan show fp16-safe", "fp16"),
        ("estimate --params 1e9", "fp32 needs"),
    ],
)
def test_the_wheels_commands_leave_torch_out(installed, tmp_path, line, says):
    (tmp_path / "train.py").write_text(TRAIN)
    program = "import sys, ampwise.__main__ as a; code = a.main(); assert 'torch' not in sys.modules; sys.exit(code)"
    assert says in check(installed / "python", "-c", program, *line.split(), cwd=tmp_path)


def test_the_wheel_works_away_from_its_source(installed, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    ampwise = installed / "ampwise"
    assert "runs in fp32" in check(ampwise, "explain", "softmax", cwd=tmp_path)  # reads the lists
    assert (
        check(ampwise, "run", "--precision", "bf16", "--", str(installed / "python"), "train.py", cwd=tmp_path)
        == "done\n"
    )
    options = ["--precision", "fp32", "--steps", "4", "--repeat", "1", "--report", "report.html"]
    assert "fp32 takes" in check(ampwise, "compare", *options, "train.py", cwd=tmp_path)
    assert "</html>" in (tmp_path / "report.html").read_text()
