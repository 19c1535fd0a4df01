import pytest

from ampwise import UsageError
from ampwise.estimate.rules_of_thumb import OPTIMIZERS, Sizes, States, estimate_by_thumb

GIB = 2**30


def gib(precision="fp32", **sizes):
    return round(estimate_by_thumb(Sizes(**sizes), precision=precision).allocated_bytes / GIB, 2)


@pytest.mark.parametrize(("params", "expected"), [(7_000_000_000, 104.31), (130_000_000, 1.94), (1_300_000_000, 19.37)])
def test_adam_in_fp32_takes_sixteen_bytes_a_parameter(params, expected):
    assert gib(num_params=params) == expected


def test_mixed_precision_halves_the_activations_and_nothing_else():
    given = {"num_params": 130_000_000, "activation_bytes": 2 * GIB}
    assert gib(**given) == 3.94
    assert gib("bf16", **given) == gib("fp16", **given) == 2.94
    assert gib("tf32", **given) == 3.94


@pytest.mark.parametrize(
    ("sizes", "bytes_a_parameter"),
    [
        ({"optimizer": "sgd"}, 8),
        ({"optimizer": "momentum"}, 12),
        ({"optimizer": "adam8bit"}, 10),
        ({"states": States.MASTER}, 16),
        ({"states": States.PURE}, 8),
        ({"states": States.PURE, "optimizer": "adam8bit"}, 6),
        ({"num_shards": 4}, 4),
        ({"num_shards": 4, "zero_stage": 2}, 7),
        ({"num_shards": 4, "zero_stage": 1}, 10),
        ({"num_trainable": 10_000}, 4 + 0.12),
        ({"num_trainable": 10_000, "base_bits": 4}, 0.5 * 0.99 + 0.16),
        ({"num_trainable": 10_000, "base_bits": 16, "states": States.PURE}, 2 + 0.06),
    ],
)
def test_what_is_kept_of_each_parameter(sizes, bytes_a_parameter):
    total = estimate_by_thumb(Sizes(num_params=1_000_000, **sizes)).allocated_bytes
    assert total == pytest.approx(bytes_a_parameter * 1_000_000)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_categories_add_up(optimizer):
    made = estimate_by_thumb(Sizes(num_params=12_345, num_shards=7, optimizer=optimizer, activation_bytes=999))
    assert sum(part.bytes for part in made.categories) == made.allocated_bytes


def test_whether_it_fits():
    sizes = Sizes(num_params=1_000_000_000)
    assert estimate_by_thumb(sizes, capacity_bytes=16_000_000_000).fits
    tight = estimate_by_thumb(sizes, capacity_bytes=15_999_999_999)
    assert (tight.fits, tight.margin_bytes) == (False, -1)
    assert estimate_by_thumb(sizes).fits is None


def test_every_contradiction_is_named_at_once():
    with pytest.raises(UsageError) as error:
        Sizes(num_params=10, num_trainable=20, optimizer="adm", num_shards=0, zero_stage=4, base_bits=5)
    for text in ("--trainable 20", 'did you mean "adam"', "--shards 0", "--zero 4", "--base-bits 5"):
        assert text in str(error.value)


def test_an_unknown_precision_is_refused():
    with pytest.raises(UsageError, match='did you mean "bf16"'):
        estimate_by_thumb(Sizes(num_params=1), precision="bf61")


def test_it_says_what_it_leaves_out():
    plain = estimate_by_thumb(Sizes(num_params=1))
    assert any("--activations" in text for text in plain.assumptions)
    assert any(
        "scales" in text for text in estimate_by_thumb(Sizes(num_params=9, num_trainable=1, base_bits=4)).assumptions
    )
