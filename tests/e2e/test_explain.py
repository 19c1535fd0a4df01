import json
import math
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ampwise._base.errors import UsageError
from ampwise.cli.explain import command


def _explain(*args):
    return CliRunner().invoke(command, list(args))


def _lines(*args):
    result = _explain(*args)
    assert result.exit_code == 0, result.output
    return {line.split()[0]: line for line in result.output.splitlines() if line.strip()}, result.output


def test_a_format():
    _, text = _lines("fp16")
    assert text.startswith("fp16: IEEE binary16 (also float16, half)")
    for fact in (
        "65504; 65520 and above overflow to inf",
        "6.103516e-05; below it numbers are subnormal",
        "2.980232e-08 (2^-25) and below become 0",
        "0.0009765625; 1.0 + 0.0005 comes out as 1.001",
        "needs loss scaling",
        "exact up to 2048",
    ):
        assert fact in text


@pytest.mark.parametrize("name", ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "half"])
def test_every_format_has_a_page_that_fits_a_terminal(name):
    _, text = _lines(name)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("word", ["-6.1e-5", "-1.00001e-40", "1e-8", "65520", "softmax", "nn.BCELoss", "mean", "prod"])
def test_every_page_fits_a_terminal(word):
    _, text = _lines(word)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(("name", "is_named"), [("fp16", True), ("bf16", False), ("tf32", False)])
def test_gpus_without_tensor_cores_are_named_where_their_capability_would_do(name, is_named):
    assert ("but for GTX 16xx" in _lines(name)[1]) == is_named


def test_a_title_is_not_repeated_as_another_name():
    assert _lines("bf16")[1].startswith("bf16: bfloat16\n")


def test_e4m3_overflows_to_nan_only_above_its_threshold():
    _, text = _lines("fp8_e4m3")
    assert "448; above 464 overflow to nan" in text


def test_a_small_number():
    lines, text = _lines("1e-8")
    assert "underflows to zero" in lines["fp16"]
    assert "rounded" in lines["bf16"]
    assert "underflows" in lines["1"]
    assert "subnormal" in lines["1024"]
    assert "rounded" in lines["65536"]
    assert "keeps it from zero: 4; all its digits: 8192" in text


def test_a_number_next_to_one():
    lines, text = _lines("1.0005")
    assert "1.000977" in lines["fp16"]
    assert "It needs no loss scale." in text


def test_a_number_too_large():
    lines, text = _lines("65520")
    assert lines["fp16"].split()[1:3] == ["inf", "overflows"]
    assert lines["fp32"].split()[1:3] == ["65520", "exact"]
    assert "No loss scale helps: it overflows without one." in text


def test_a_negative_number_is_no_option():
    lines, _ = _lines("-3e5")
    assert lines["fp16"].split()[1] == "-inf"
    assert lines["fp32"].split()[1] == "-300000"
    assert _lines("-3e5", "--json")[1] == _lines("--json", "--", "-3e5")[1]


@pytest.mark.parametrize("word", ["nan", "inf", "-inf", "0", "-0"])
def test_numbers_that_no_scale_changes(word):
    lines, text = _lines(word)
    assert float(lines["fp16"].split()[1]) == float(word) or word == "nan"
    assert "loss scale" not in text


def test_a_number_that_fp32_cannot_hold():
    assert "fp32, in which gradients are unscaled, cannot hold it" in _lines("1e-60")[1]


def test_a_large_scale_is_written_as_a_power():
    assert "keeps it from zero: 2^42; all its digits: 2^53" in _lines("1e-20")[1]


def test_json_of_a_number():
    document = json.loads(_explain("--json", "65520").output)
    fp16 = next(image for image in document["number"]["images"] if image["format"] == "fp16")
    assert fp16["becomes"] == {"float": "inf"}
    assert fp16["outcome"] == "overflow"


def test_json_of_a_format():
    facts = json.loads(_explain("--json", "bfloat16").output)["format"]
    assert facts["name"] == "bf16"
    assert facts["eps"] == 2**-7
    assert math.isclose(facts["max"], 3.3895e38, rel_tol=1e-4)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("fp61", '"fp61" is neither a format nor a number nor an operator; did you mean "fp64"?'),
        ("sofmax", 'did you mean "softmax"?'),
        ("flaot16", 'did you mean "float16"?'),
        ("train.py", '"train.py" is neither a format nor a number nor an operator ('),
        ("1e99999", "far beyond every format"),
        ("\x1b[31mx", "is neither a format nor a number"),
    ],
)
def test_an_unknown_word_is_refused_in_one_line(word, text):
    error = _explain(word).exception
    assert isinstance(error, UsageError)
    assert error.exit_status == 2
    assert text in str(error)
    assert "\n" not in str(error)
    assert "\x1b" not in str(error)


def test_an_unknown_option_is_named():
    result = _explain("--jsn", "fp16")
    assert result.exit_code == 2
    assert "--json" in result.output


def test_it_runs_without_torch():
    code = (
        "import sys; from ampwise.cli.explain import command\n"
        "command.main(['1e-8'], standalone_mode=False); command.main(['fp16', '--json'], standalone_mode=False)\n"
        "sys.exit(sorted({'torch', 'rich', 'pydantic'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "underflows to zero" in done.stdout


@pytest.mark.parametrize(
    "word", ["softmax", "F.layer_norm", "nn.BCELoss", "@", "attention", "relu", "index_put_", "lstm"]
)
def test_an_operator_on_each_device(word):
    lines, text = _lines(word)
    assert "an operator, under autocast of torch" in text
    for device in ("CPU,", "CUDA,"):
        assert device in lines
    assert max(map(len, text.splitlines())) <= 110


def test_an_operator_that_differs_by_device_says_why():
    _, text = _lines("cross_entropy")
    assert "CUDA, torch.autocast  is in no list" in text
    assert "CUDA, ampwise run     runs in fp32" in text
    assert text.count("because") == 1


def test_an_operator_as_json():
    found = json.loads(_explain("softmax", "--json").output)["operator"]
    assert [(one["device_type"], one["stock"], one["under_run"]) for one in found["behaviours"]] == [
        ("cpu", None, "fp32_set_opt_dtype"),
        ("cuda", "fp32_set_opt_dtype", "fp32_set_opt_dtype"),
    ]


def test_an_operator_under_a_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "plan.toml").write_text(
        'version = 1\ndefault = "fp16"\n[[rule]]\nmodule = "*.wo"\ncompute = "fp32"\nbecause = "overflows"\n'
        '[[rule]]\nop = "softmax"\nmodule = "*.attn"\ncompute = "bf16"\noutput = "fp32"\n'
    )
    _, text = _lines("--plan", "plan.toml", "softmax")
    assert text.splitlines() == [
        "softmax, under plan.toml and the cast lists of torch 2.13; the first that fits:",
        "  rules[1]   in *.attn: runs in bf16, output fp32",
        "  rules[0]   in *.wo: runs in fp32",
        "    because  overflows",
        "  elsewhere  runs in fp32, by the cast lists",
    ]
    assert "elsewhere  runs in fp16, by the cast lists" in _lines("--plan", "plan.toml", "linear")[1]
    assert "elsewhere  is in no list: runs in its arguments' dtype" in _lines("--plan", "bf16", "relu")[1]
    document = json.loads(_explain("--plan", "bf16", "--json", "softmax").output)
    assert document["planned_operator"]["places"][0]["policies"]["cpu"] == ["fp32_set_opt_dtype"]
    assert "neither a plan file nor a preset" in str(_explain("--plan", "plan.tmol", "softmax").exception)
