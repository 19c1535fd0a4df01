import re

import pytest

from ampwise._base.errors import UsageError
from ampwise.formats import FORMATS, find_format, get_format


def test_names_and_aliases_are_all_different():
    words = [word for row in FORMATS.values() for word in (row.name, *row.aliases)]
    assert len(words) == len(set(words))
    assert all(word == word.lower() for word in words)


def test_the_names_are_those_users_say():
    assert list(FORMATS) == ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2"]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("half", "fp16"),
        ("float16", "fp16"),
        ("torch.float16", "fp16"),
        ("BF16", "bf16"),
        ("bfloat16", "bf16"),
        ("float32", "fp32"),
        (" double ", "fp64"),
        ("e4m3", "fp8_e4m3"),
        ("float8_e5m2", "fp8_e5m2"),
    ],
)
def test_aliases(said, meant):
    assert get_format(said).name == meant


def test_an_unknown_format_is_refused_with_what_was_meant():
    text = '"bf61" is not a format; did you mean "bf16"? (one of: fp64, fp32, tf32, bf16, fp16, fp8_e4m3, fp8_e5m2)'
    with pytest.raises(UsageError, match=re.escape(text)):
        get_format("bf61")
    assert find_format("bf61") is None


def test_a_row_fits_its_storage():
    for row in FORMATS.values():
        assert row.num_bits <= row.storage_bits
        assert row.bias == 2 ** (row.exponent_bits - 1) - 1


@pytest.mark.parametrize("given", [3, None, ["fp16"]])
def test_what_is_no_text_is_no_format(given):
    with pytest.raises(UsageError, match="is not a format"):
        get_format(given)
