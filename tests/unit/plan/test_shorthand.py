import pytest

from ampwise._base.errors import PlanError
from ampwise.plan.plan import Plan
from ampwise.plan.shorthand import parse_shorthand, to_shorthand


@pytest.mark.parametrize(
    ("text", "plan", "back"),
    [
        ("p=fp32,c=bf16,o=fp32", Plan(default="bf16", output="fp32"), "p=fp32,c=bf16,o=fp32"),
        ("c=half", Plan(default="fp16"), "p=fp32,c=fp16"),
        (
            " params = float32 , compute=fp8, grad=e5m2",
            Plan(default="fp8", grad="fp8_e5m2"),
            "p=fp32,c=fp8_e4m3,g=fp8_e5m2",
        ),
    ],
)
def test_short_forms(text, plan, back):
    assert parse_shorthand(text) == plan
    assert to_shorthand(plan) == back


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p=fp32", ["c: is missing; write the format to compute in, as in p=fp32,c=bf16"]),
        ("c=bf61", ['c: "bf61" is not a format; did you mean "bf16"?']),
        ("c=bf16,compute=fp16", ["compute: is given twice"]),
        ("x=bf16,bf16,", ['"x=bf16" is not one of p=, c=, o=, g=', '"bf16" is not one of', '"" is not one of']),
    ],
)
def test_every_mistake_is_named(text, said):
    with pytest.raises(PlanError) as caught:
        parse_shorthand(text)
    head, *lines = str(caught.value).splitlines()
    assert head == f'"{text}" is not a short form of a plan:'
    assert len(lines) == len(said)
    assert all(line.startswith(f"  {start}") for line, start in zip(lines, said, strict=True))
