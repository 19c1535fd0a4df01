import re

import pytest

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.formats import FORMATS
from ampwise.plan.presets import PRECISIONS, get_precision


def test_rows():
    assert list(PRECISIONS) == ["fp32", "tf32", "bf16", "fp16"]
    assert [name for name, row in PRECISIONS.items() if row.needs_loss_scaling] == ["fp16"]
    assert all(row.compute in FORMATS and row.needs for row in PRECISIONS.values())


@pytest.mark.parametrize(
    ("said", "meant"), [("fp16", "fp16"), ("half", "fp16"), ("bfloat16", "bf16"), ("FP32", "fp32")]
)
def test_a_precision_is_found_by_any_name_of_its_format(said, meant):
    assert get_precision(said) is PRECISIONS[meant]


def test_an_unknown_precision_is_refused_with_what_was_meant():
    text = '"bf61" is not a precision; did you mean "bf16"? (one of: auto, fp32, tf32, bf16, fp16)'
    with pytest.raises(UsageError, match=re.escape(text)):
        get_precision("bf61")


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp64"])
def test_a_format_that_autocast_lacks_cannot_run_and_names_emulation(name):
    with pytest.raises(CannotRunError, match=f"autocast cannot compute in {name}.*--emulate {name}"):
        get_precision(name)
