import pytest

from ampwise.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["python", "train.py"], "write ampwise run -- python ..."),
        (["--show-code", "none.py"], "can't open file"),
        (["--show-code", "--", "python", "train.py"], "--show-code shows a script"),
        (["--device", "gpu", "train.py"], '"gpu" is not a device'),
    ],
)
def test_what_cannot_be_run_is_said_with_what_to_write(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ampwise: ")
    assert said in err


@pytest.mark.parametrize("command", [["run", "--show-code"], ["compare"]])
def test_a_syntax_error_is_cpythons_without_a_frame_of_ours(command, tmp_path, capsys):
    script = tmp_path / "bad.py"
    script.write_text("x = (\n")
    assert main([*command, str(script)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f'  File "{script}", line 1',
        "    x = (",
        "        ^",
        "SyntaxError: '(' was never closed",
    ]
