import json
import signal
import sys
from pathlib import Path

import pytest

from ampwise._base.errors import CannotRunError
from ampwise.cli.main import main
from ampwise.compare import measure
from ampwise.compare.measure import ComparisonInterrupted, Progress
from ampwise.records.comparison import Comparison, VariantSummary, Verdict
from ampwise.records.files import load_recording
from ampwise.records.recording import Recording
from ampwise.records.run import RunEnd, RunRecord
from recordings import ENVIRONMENT


def recording(*, error=None):
    row = VariantSummary(
        variant="bf16",
        precision="bf16",
        step_ms_median=10.0,
        step_ms_iqr=1.0,
        samples_per_second=3.0,
        projected_hours=None,
        final_loss=1.0,
        verdict=None if error else Verdict.DRIFTING,
        verdict_reason=None if error else "far away",
        peak_tensor_bytes=1,
        peak_allocated_bytes=None,
        num_skipped=0,
        final_scale=None,
        ratio_time=1.0,
        ratio_memory=1.0,
        error=error,
    )
    run = RunRecord(variant="bf16", precision="bf16", reason="asked for", repeat=0, end=RunEnd.STOPPED)
    return Recording(
        created="2026-01-01T00:00:00+00:00",
        command=("train.py",),
        environment=ENVIRONMENT,
        runs=(run,),
        comparison=Comparison(variants=(row,), num_steps=60, num_repeats=2, project_steps=None),
    )


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("print('not run by the command itself')\n")
    return str(path)


@pytest.fixture
def compared(monkeypatch):
    """The plans that were compared; none really is."""
    seen = []

    def fake(target, plan, *, on_progress, run):
        on_progress(Progress(variant="bf16", run=1, num_runs=2, num_done=3, num_total=120))
        seen.append((target, plan))
        return recording()

    monkeypatch.setattr(measure, "compare", fake)
    return seen


def refuse(capsys, *arguments):
    status = main(["compare", *arguments])
    captured = capsys.readouterr()
    assert captured.out == ""
    return status, captured.err


def test_options_stand_before_the_script_and_the_rest_is_the_scripts(compared, script, capsys):
    options = [
        "--precision",
        "bf16,fp16",
        "--steps",
        "7",
        "--repeat",
        "3",
        "--project-steps",
        "9",
        "--malloc",
        "system",
    ]
    assert main(["compare", *options, "--lists", "stock", script, "--steps", "0", "-m", "--json"]) == 0
    target, plan = compared[0]
    assert (target.path, target.argv) == (script, ("--steps", "0", "-m", "--json"))
    assert ([v.name for v in plan.variants], plan.num_steps, plan.num_repeats) == (["bf16", "fp16"], 7, 3)
    assert (plan.project_steps, plan.malloc, plan.lists) == (9, "system", "stock")
    assert "far away" in capsys.readouterr().out


def test_a_module_keeps_its_own_options(compared, capsys):
    assert main(["compare", "-m", "json.tool", "--steps", "9"]) == 0
    target, plan = compared[0]
    assert (target.module, target.argv, plan.num_steps, plan.num_repeats) == ("json.tool", ("--steps", "9"), 60, 2)
    assert [variant.name for variant in plan.variants] == ["fp32", "auto"]


def test_json_is_one_document_and_nothing_else_on_stdout(compared, script, tmp_path, capsys):
    record, report = tmp_path / "run.json", tmp_path / "report.html"
    assert main(["compare", "--json", "--record", str(record), "--report", str(report), script]) == 0
    captured = capsys.readouterr()
    variant = json.loads(captured.out)["variants"][0]
    assert set(variant) >= {
        "precision",
        "step_ms_median",
        "step_ms_iqr",
        "final_loss",
        "verdict",
        "peak_tensor_bytes",
        "skipped",
        "ratio_time",
        "ratio_memory",
        "error",
    }
    assert captured.err == f"record: {record}\nreport: {report}\n"
    assert load_recording(record) == recording()
    assert report.read_text().startswith("<!")


def test_nothing_finished_is_status_3(script, monkeypatch, capsys):
    monkeypatch.setattr(measure, "compare", lambda *_, **__: recording(error="ValueError: no"))
    assert main(["compare", script]) == 3
    assert "bf16 did not finish: ValueError: no" in " ".join(capsys.readouterr().out.split())


def test_an_interrupted_comparison_shows_and_saves_what_there_is(script, monkeypatch, tmp_path, capsys):
    def interrupted(*_, **__):
        raise ComparisonInterrupted(recording())

    monkeypatch.setattr(measure, "compare", interrupted)
    record = tmp_path / "run.json"
    assert main(["compare", "--record", str(record), script]) == 130
    captured = capsys.readouterr()
    assert "far away" in captured.out
    assert "ampwise: interrupted; this is what had been measured" in captured.err
    assert record.exists()


def test_the_scratch_folder_is_gone_where_nothing_was_left_in_it(script, monkeypatch, capsys):
    seen = []

    def fake(target, plan, *, on_progress, run):
        folder = Path(plan.scratch)
        (folder / "fp32-0-abc").mkdir()
        seen.append(folder)
        return recording()

    monkeypatch.setattr(measure, "compare", fake)
    assert main(["compare", script]) == 0
    assert not seen[0].exists()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--steps", "0"], 2, "'--steps'"),
        (["--repeat", "0"], 2, "'--repeat'"),
        (["--precision", "fp32,bf61"], 2, 'did you mean "bf16"?'),
        (["--precision", "fp8_e4m3"], 3, "autocast cannot compute in fp8_e4m3"),
        (["--device", "cuda:77"], 3, "device cuda:77"),
        (["--device", "gpu"], 2, '"gpu" is not a device'),
        (["--report", "/no/such/folder/report.html"], 2, "cannot write /no/such/folder/report.html"),
        (["--record", "/"], 2, "it is a folder"),
        (["--report", "same", "--record", "./same"], 2, "name two files"),
    ],
)
def test_bad_options_are_refused_before_any_run(
    compared, script, arguments, status, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert refuse(capsys, *arguments, script)[0] == status
    assert compared == []
    _, err = refuse(capsys, *arguments, script)
    assert err.startswith("ampwise: ")
    assert said in err


def test_a_missing_script_is_refused(compared, capsys):
    status, err = refuse(capsys, "nowhere.py")
    assert (status, compared) == (2, [])
    assert "nowhere.py': [Errno 2] No such file or directory" in err
    status, err = refuse(capsys, "-m", "nowhere.py")
    assert status == 2
    assert err == "ampwise: No module named nowhere.py; to compare a file: ampwise compare nowhere.py\n"


def test_a_syntax_error_is_pythons_own(compared, tmp_path, capsys):
    path = tmp_path / "broken.py"
    path.write_text("x = (\n")
    status, err = refuse(capsys, str(path))
    assert (status, compared) == (1, [])
    assert err.startswith(f'  File "{path}", line 1\n')
    assert "SyntaxError: '(' was never closed" in err


def test_a_script_may_be_a_folder(compared, tmp_path, capsys):
    (tmp_path / "__main__.py").write_text("")
    assert main(["compare", str(tmp_path)]) == 0


def test_importing_the_command_leaves_torch_out():
    import subprocess

    code = "import ampwise.cli.compare, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("option", ["--report", "--record"])
def test_the_script_is_not_replaced_by_what_is_written(compared, script, option, capsys):
    text = Path(script).read_text()
    status, err = refuse(capsys, option, str(Path(script).parent / "." / Path(script).name), script)
    assert (status, compared) == (2, [])
    assert "names the script" in err
    assert Path(script).read_text() == text


def test_a_launcher_is_no_script(compared, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, err = refuse(capsys, "python", "train.py")
    assert (status, compared) == (2, [])
    assert "no launchers such as python" in err


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "ampwise: interrupted before a run had finished; nothing was measured\n"),
        (CannotRunError("no step"), 3, "ampwise: no step\n"),
        (signal.SIGTERM, 143, ""),
        (signal.SIGHUP, 129, ""),
    ],
)
def test_a_comparison_that_comes_to_nothing_leaves_no_folder(script, monkeypatch, capsys, end, status, said):
    seen = []

    def ended(target, plan, *, on_progress, run):
        seen.append(Path(plan.scratch))
        Path(plan.scratch, "stdout").write_text("kept")
        if isinstance(end, BaseException):
            raise end
        signal.raise_signal(end)

    monkeypatch.setattr(measure, "compare", ended)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        returned = main(["compare", script])
    except SystemExit as leaving:
        returned = leaving.code
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert (returned, capsys.readouterr().err) == (status, said)
    assert not seen[0].exists()
    # a process that leaves by a signal hears no second one, which would end the removal of its folder
    assert after == (dict.fromkeys(before, signal.SIG_IGN) if isinstance(end, signal.Signals) else before)


def test_what_cannot_be_run_is_refused_before_the_first_run(compared, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "train.py").write_text("")
    status, err = refuse(capsys, "empty")
    assert (status, compared) == (2, [])
    assert err.startswith("ampwise: can't find '__main__' module in 'empty'")
    status, err = refuse(capsys, "-m", "train.py")
    assert (status, compared) == (2, [])
    assert err == "ampwise: No module named train.py; to compare a file: ampwise compare train.py\n"


@pytest.mark.parametrize(
    ("error", "arguments", "said"),
    [
        ("exit status 2: train.py: error: unrecognized arguments: --steps 5", ["--steps", "5"], True),
        ("exit status 2: train.py: error: unrecognized arguments: --steps=5", ["--steps=5"], True),
        ("exit status 2: train.py: error: unrecognized arguments: --epoch", ["--epoch", "5"], False),
        ("ValueError: no", ["--steps", "5"], False),
        (None, ["--steps", "5"], False),
    ],
)
def test_an_option_behind_a_script_that_refuses_it_is_pointed_out(script, monkeypatch, capsys, error, arguments, said):
    Path(script).write_text("parse_args()\n")
    monkeypatch.setattr(measure, "compare", lambda *_, **__: recording(error=error))
    main(["compare", script, *arguments])
    hint = "ampwise: --steps stands after the script, so the script got it; if it is meant for ampwise, write: "
    write = f"ampwise compare {' '.join(arguments)} ... {script}\n"
    assert capsys.readouterr().err == (hint + write if said else "")
