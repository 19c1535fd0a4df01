"""``ampwise casts``, through the real command."""

import json

import pytest

from warm import fresh, python

SCRIPT = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index in range(20):
    loss = model(torch.randn(3, 8)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save(model.state_dict(), "best.pt")
    if "--fail" in sys.argv and index == int(sys.argv[2]):
        raise ValueError("boom")
"""


@pytest.fixture
def casts(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)

    def run(*arguments, by=python):
        return by("-m", "ampwise", "casts", *arguments, cwd=tmp_path)

    return run


def test_a_script_is_watched_and_its_files_left_alone(casts, tmp_path):
    done = casts("--precision", "bf16", "train.py", by=fresh)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("bf16: ")
    assert "(2 steps watched)" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_json_is_one_document(casts):
    document = json.loads(casts("--precision", "bf16", "--steps", "2", "--json", "train.py").stdout)
    assert document["casts"]["steps"] == [1]
    products = {
        (call["site"]["module"], call["dtype"])
        for call in document["casts"]["calls"]
        if call["site"]["op"] == "aten.addmm"
    }
    assert products == {("0", "bf16"), ("2", "bf16")}


def test_a_script_that_fails_shows_what_was_watched_before(casts):
    done = casts("--precision", "bf16", "train.py", "--fail", "1")
    assert done.returncode == 0
    assert done.stdout.startswith("bf16: ")
    assert "ampwise: the script ended early at" in done.stderr
    assert "ValueError: boom" in done.stderr


def test_a_script_that_fails_at_once_cannot_be_shown(casts):
    done = casts("train.py", "--fail", "0")
    assert done.returncode == 3
    assert "ValueError: boom" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none.py",), "can't open file"),
        (("--precision", "bf61", "train.py"), '"bf61" is not a precision; did you mean "bf16"?'),
        (("--precision", "bf16", "--plan", "fp16-safe", "train.py"), "--plan says the precision already"),
        (("--steps", "0", "train.py"), "Invalid value for '--steps'"),
    ],
)
def test_mistakes_are_refused_before_the_run(casts, arguments, said):
    done = casts(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""
