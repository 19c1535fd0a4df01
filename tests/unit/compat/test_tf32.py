from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from ampwise.compat.tf32 import Tf32State, matmul_tf32, tf32_enabled, tf32_state

ATTRIBUTES = {
    "generic": lambda: torch.backends,
    "cuda": lambda: torch.backends.cudnn,
    "matmul": lambda: torch.backends.cuda.matmul,
    "conv": lambda: torch.backends.cudnn.conv,
    "rnn": lambda: torch.backends.cudnn.rnn,
    "mkldnn_matmul": lambda: torch.backends.mkldnn.matmul,
}


def readings() -> dict[str, str]:
    return {name: owner().fp32_precision for name, owner in ATTRIBUTES.items()}


@contextmanager
def everything_restored() -> Iterator[None]:
    """Whatever a test sets through either switch, torch's defaults hold afterwards."""
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True
        for name, owner in ATTRIBUTES.items():
            owner().fp32_precision = "tf32" if name in {"conv", "rnn"} else "none"


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    with everything_restored():
        yield


@pytest.mark.parametrize(("on", "expected"), [(True, "tf32"), (False, "ieee")])
def test_all_three_operators_follow_and_return(on, expected):
    before = readings(), tf32_state()
    with tf32_enabled(on):
        state = tf32_state()
        assert (state.matmul, state.conv, state.rnn) == (expected, expected, expected)
    assert (readings(), tf32_state()) == before


@pytest.mark.parametrize("on", [True, False])
def test_the_old_switches_can_still_be_read_and_agree(on):
    with tf32_enabled(on):
        assert torch.get_float32_matmul_precision() == ("high" if on else "highest")
        assert torch.backends.cuda.matmul.allow_tf32 is on
        assert torch.backends.cudnn.allow_tf32 is on
        with torch.backends.cudnn.flags(enabled=False):  # reads the old switch, as every RNN double backward does
            pass


def test_the_state_returns_when_the_body_raises():
    before = readings()
    with pytest.raises(KeyError), tf32_enabled(True):
        raise KeyError
    assert readings() == before


def test_torch_still_has_the_clash_that_is_reported():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="mix of the legacy and new"):
        torch.get_float32_matmul_precision()
    clash = tf32_state().clash
    assert clash is not None
    assert "torch.get_float32_matmul_precision()" in clash
    assert "torch.backends.cuda.matmul.allow_tf32" in clash
    assert "cudnn.allow_tf32" not in clash
    assert "products: tf32" in clash


def test_no_clash_by_default():
    assert tf32_state().clash is None


def test_a_clash_of_the_users_own_is_left_as_it_was():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    before = readings(), tf32_state()
    with tf32_enabled(False):
        assert tf32_state().matmul == "ieee"
    assert (readings(), tf32_state()) == before
    assert tf32_state().clash is not None


def test_what_is_inherited_stays_inherited():
    with tf32_enabled(True):
        pass
    torch.backends.fp32_precision = "ieee"
    assert {readings()[name] for name in ("cuda", "matmul", "mkldnn_matmul")} == {"ieee"}


def test_what_is_inherited_from_all_backends_stays_inherited():
    torch.backends.fp32_precision = "ieee"
    with tf32_enabled(True):
        assert readings()["matmul"] == "tf32"
    torch.backends.fp32_precision = "tf32"
    assert {readings()[name] for name in ("cuda", "matmul", "mkldnn_matmul")} == {"tf32"}


def test_the_measuring_switch_touches_products_only():
    before = readings()
    with matmul_tf32(True):
        assert readings() == {**before, "matmul": "tf32"}
    with matmul_tf32(False):
        assert readings() == {**before, "matmul": "ieee"}
    assert readings() == before


new_setting = st.tuples(st.sampled_from(sorted(ATTRIBUTES)), st.sampled_from(["ieee", "tf32", "none"]))
old_setting = st.one_of(
    st.tuples(st.just("precision"), st.sampled_from(["highest", "high", "medium"])),
    st.tuples(st.sampled_from(["allow_matmul", "allow_cudnn"]), st.booleans()),
)


def apply(setting: tuple[str, Any]):
    match setting:
        case ("precision", value):
            torch.set_float32_matmul_precision(value)
        case ("allow_matmul", value):
            torch.backends.cuda.matmul.allow_tf32 = value
        case ("allow_cudnn", value):
            torch.backends.cudnn.allow_tf32 = value
        case (name, value):
            ATTRIBUTES[name]().fp32_precision = value


def readable(state: Tf32State) -> set[str]:
    names = ("old_matmul", "old_allow_matmul", "old_allow_cudnn")
    return {name for name in names if getattr(state, name) is not None}


@given(st.lists(st.one_of(new_setting, old_setting), max_size=5), st.booleans())
def test_law_every_reading_returns_from_any_state(settings, on):
    with everything_restored():
        for setting in settings:
            apply(setting)
        before = readings(), tf32_state()
        with tf32_enabled(on):
            inside = tf32_state()
            assert {inside.matmul, inside.conv, inside.rnn} == {"tf32" if on else "ieee"}
        assert (readings(), tf32_state()) == before


@given(st.lists(old_setting, max_size=5), st.booleans())
def test_law_a_user_of_the_old_switch_never_meets_a_clash(settings, on):
    with everything_restored():
        for setting in settings:
            apply(setting)
        assume(tf32_state().clash is None)  # torch's old switches can clash with each other
        with tf32_enabled(on):
            assert tf32_state().clash is None
