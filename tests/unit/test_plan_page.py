"""What docs/plans.md says is so."""

import re
import tomllib
from pathlib import Path

import pytest

from ampwise._base.errors import PlanError
from ampwise.plan.file import parse_plan
from ampwise.plan.names import kinds
from ampwise.plan.patterns import is_match
from ampwise.plan.presets import presets
from ampwise.plan.tables import HEAD_KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "plans.md").read_text()


def test_the_table_of_presets_is_the_data():
    rows = [f"| `{row.name}` | {row.about} | {'; '.join(row.sources)} |" for row in presets().values()]
    table = PAGE.partition("| preset | what it does | from |\n|---|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == rows


def test_the_file_shown_is_a_plan():
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    plan = parse_plan(text)
    assert plan.resolve("layers.3.wo").compute == plan.resolve("attn", "softmax").compute == "fp32"
    assert tomllib.loads(text)["version"] == 1


def test_every_key_and_kind_is_told():
    assert all(f"`{key}`" in PAGE for key in HEAD_KEYS)
    assert all(f"`{word}`" in PAGE for word in kinds())


def test_the_mistakes_shown_are_those_reported():
    text = (
        'version = 1\ndefault = "fp16"\nlist = "cuda"\n\n[[rule]]\nmodule = "a"\ncompute = "bf61"\n[[rule]]\n'
        'op = "softmax"\ncompute = "fp32"\n[[rule]]\nop = "F.softmax"\ncompute = "bf16"\n'
    )
    with pytest.raises(PlanError) as caught:
        parse_plan(text, source="plan.toml")
    assert f"ampwise: {caught.value}".replace("F.softmax", "softmax") in PAGE


@pytest.mark.parametrize(
    ("pattern", "module", "fits"),
    [
        ("layers.*.wo", "layers.0.ff.wo", True),
        ("*.attn", "attn", True),
        ("layers.[0-3].*", "layers.3.wo", True),
        ("layers.[0-3].*", "layers.4.wo", False),
        (r"re:layers\.\d+\.wo", "layers.12.wo", True),
        (r"re:layers\.\d+\.wo", "layers.0.ff.wo", False),
    ],
)
def test_the_patterns_shown_mean_what_is_said(pattern, module, fits):
    assert f"`{pattern}`" in PAGE
    assert is_match(pattern, module) is fits
