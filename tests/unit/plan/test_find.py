from pathlib import Path

import pytest

from ampwise._base.errors import PlanError, UsageError
from ampwise.plan.find import find_plan
from ampwise.plan.plan import Plan
from ampwise.plan.presets import presets


def test_a_plan_is_found_by_file_preset_short_form_or_format(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text('version = 1\ndefault = "fp32"')
    (tmp_path / "fp16-safe").write_text('version = 1\ndefault = "fp32"')
    assert find_plan("mine") == find_plan("./fp16-safe") == find_plan(Path("fp16-safe")) == Plan(default="fp32")
    assert find_plan("fp16-safe") is presets()["fp16-safe"].plan
    assert find_plan("p=fp32,c=bf16") == find_plan("bfloat16") == find_plan("bf16") == Plan(default="bf16")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("fp16-saf", '"fp16-saf" is neither a plan file nor a preset; did you mean "fp16-safe"?'),
        ("", '"" is neither a plan file nor a preset'),
        ("none.toml", "none.toml does not exist"),
        ("a\0b", "is neither a plan file nor a preset"),
    ],
)
def test_what_is_none_is_refused(word, said):
    with pytest.raises(PlanError) as caught:
        find_plan(word)
    assert said in str(caught.value)


@pytest.mark.parametrize("word", [None, 3, {"default": "bf16"}])
def test_what_names_no_plan_is_refused(word):
    with pytest.raises(
        UsageError, match=f"a plan was given as {type(word).__name__}; give an ampwise.Plan, a plan file"
    ):
        find_plan(word)
