import json

import pytest
from click.testing import CliRunner

from ampwise._base.errors import UsageError
from ampwise.cli.estimate import command


def estimate(*arguments):
    result = CliRunner().invoke(command, arguments, env={"COLUMNS": "80"}, standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.stdout, result.return_value


def test_one_precision_is_a_flat_document():
    text, status = estimate("--params", "7e9", "--optimizer", "adam", "--json")
    document = json.loads(text)
    assert status == 0
    assert document["allocated_bytes"] == 112_000_000_000
    assert document["by_category"]["optimizer_state"] == 56_000_000_000
    assert (document["fits"], document["device"]) == (None, None)
    assert {"reserved_bytes", "peak_phase", "assumptions"} <= set(document)


def test_several_precisions_are_variants():
    document = json.loads(
        estimate("--params", "130M", "--activations", "2GiB", "--precision", "fp32,bf16", "--json")[0]
    )
    assert [one["precision"] for one in document["variants"]] == ["fp32", "bf16"]
    assert [one["allocated_bytes"] for one in document["variants"]] == [2_080_000_000 + 2**31, 2_080_000_000 + 2**30]


def test_the_status_is_1_only_where_no_precision_fits():
    sizes = ("--params", "1M", "--optimizer", "sgd", "--activations", "1GB", "--precision", "fp32,bf16")
    assert [estimate(*sizes, "--memory", size)[1] for size in ("1GB", "1.1GB", "2GB")] == [1, 0, 0]


def test_the_table_fits_80_columns_and_says_what_is_short():
    text, status = estimate("--params", "7B", "--precision", "fp32,bf16,fp16", "--device", "a100-40gb")
    assert status == 1
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "it does not fit the NVIDIA A100 40GB: 64.8 GiB short" in text
    assert "rule of thumb" in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "--params 7e9"),
        (("--params", "7B", "train.py"), "either a script or"),
        (("--params", "many"), '"many" is not a count'),
        (("--params", "7B", "--device", "a101-40gb"), 'did you mean "a100-40gb"'),
        (("--params", "7B", "--device", "t4", "--memory", "16GB"), "give one of them"),
        (("--params", "7B", "--memory", "24"), "--memory 24 is 24 bytes"),
        (("--params", "7B", "--optimizer", "adan"), 'did you mean "adam"'),
        (("--params", "7B", "--precision", "fp23"), 'did you mean "fp32"'),
        (("--params", "7B", "--precision", ","), "names nothing"),
        (("--params", "7B", "--base-bits", "4"), "--trainable"),
    ],
)
def test_what_cannot_be_estimated_is_refused(arguments, text):
    with pytest.raises(UsageError) as error:
        estimate(*arguments)
    assert text in str(error.value)


def test_a_page_is_written_where_it_was_asked_for(tmp_path):
    page = tmp_path / "memory.html"
    estimate("--params", "130M", "--memory", "24GB", "--report", str(page))
    assert "it fits this memory" in page.read_text("utf-8")


def test_a_page_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        estimate("--params", "130M", "--report", str(tmp_path / "no" / "memory.html"))
