"""What ``ampwise tune`` refuses before the first run."""

import pytest

from ampwise.cli.main import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("import torch")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-o", "nowhere/plan.toml"), "the folder nowhere does not exist"),
        (("-o", "."), "it is a folder"),
        (("-o", "train.py"), "names the script train.py"),
        ((), "Missing option '-o'"),
        (("-o", "plan.toml", "--target", "fp17"), '"fp17" is not a format to find a plan in; did you mean "fp16"?'),
        (("-o", "plan.toml", "--target", "fp32"), "(one of: fp16, bf16, fp8, fp8_e5m2)"),
        (("-o", "plan.toml", "--target", "tf32"), '"tf32" is not a format to find a plan in'),
        (("-o", "plan.toml", "--keep-in", "fp8"), "one of fp16, bf16, fp8_e4m3, fp8_e5m2, with fp32 or bf16 beside it"),
        (("-o", "plan.toml", "--target", "bf16", "--keep-in", "bf16"), "keep modules in fp32"),
        (("-o", "plan.toml", "--tolerance", "-1"), "--tolerance"),
        (("-o", "plan.toml", "--steps", "3"), "3 steps are too few"),
        (("-o", "plan.toml", "--resume"), "there is nothing to resume: plan.toml.state does not exist"),
        (("-o", "plan.toml", "--plan", "bf16"), 'default = "bf16"'),
    ],
)
@pytest.mark.usefixtures("folder")
def test_mistakes_are_told_before_the_first_run(arguments, says, capsys):
    assert main(["tune", *arguments, "train.py"]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""


def test_out_of_time_is_an_answer(folder, capsys):
    assert main(["tune", "--budget", "0", "-o", "plan.toml", "train.py"]) == 1
    assert "time was over" in capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == ["train.py"]


def test_a_pipe_takes_the_plan_and_has_no_state_beside_it(folder, capsys):
    assert main(["tune", "--budget", "0", "-o", "/dev/null", "train.py"]) == 1
    assert "--resume" not in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["train.py"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("model.py", "import torch\n"),
        ("pyproject.toml", '[project]\nname = "mine"\n'),
        ("plan.toml", "default = 'fp61'\n"),
    ],
)
def test_a_file_that_is_no_plan_is_not_replaced(folder, capsys, name, text):
    (folder / name).write_text(text)
    assert main(["tune", "-o", name, "train.py"]) == 2
    assert (
        f"ampwise: {name} is there and is no plan that ampwise can read, so it is not replaced"
        in capsys.readouterr().err
    )
    assert (folder / name).read_text() == text


@pytest.mark.usefixtures("folder")
def test_several_processes_of_one_search_are_refused(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert main(["tune", "-o", "plan.toml", "train.py"]) == 2
    said = capsys.readouterr().err
    assert "4 processes of ampwise tune were started, and each would do all of it; start one, without torchrun" in said
    assert "torchrun --nproc-per-node 4 -m ampwise run --plan plan.toml train.py" in said
