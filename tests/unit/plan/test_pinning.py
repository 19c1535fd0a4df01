"""A plan made under another torch."""

import pytest

from ampwise.plan import operators, pinning
from ampwise.plan.operators import CastPolicy, cast_lists
from ampwise.plan.pinning import outdated_pin
from ampwise.plan.plan import Plan


def test_the_installed_release_and_no_pin_are_up_to_date():
    assert outdated_pin(Plan(default="fp16")) is None
    assert outdated_pin(Plan(default="fp16", torch=cast_lists().torch_version)) is None


def test_a_release_without_lists_cannot_be_compared():
    said = outdated_pin(Plan(default="fp16", torch="1.13"))
    assert said == (
        'torch = "1.13": the installed torch is 2.13, and ampwise has no cast lists of torch 1.13: '
        "operators may run in other formats than then"
    )


@pytest.mark.parametrize("num", [0, 1, 5])
def test_what_changed_is_named(monkeypatch, num):
    now = cast_lists()
    names = [name for name, policy in now.devices["cuda"].items() if policy is CastPolicy.FP32][:num]
    cuda = {**now.devices["cuda"], **dict.fromkeys(names, CastPolicy.LOWER)}
    then = operators.CastLists(torch_version="2.12", note=None, devices={"cuda": cuda}, remedies={})
    monkeypatch.setattr(pinning, "cast_lists", lambda asked: then if asked == "2.12" else now)
    said = outdated_pin(Plan(default="fp16", torch="2.12"))
    if not num:
        assert said is None
        return
    assert f"{min(names)} on cuda runs in fp32" in said
    assert said.endswith("and 2 more") == (num == 5)
