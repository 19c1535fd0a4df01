from ampwise._base.suggest import closest, not_one_of


def test_the_nearest_word_is_suggested():
    assert not_one_of("bf61", ["auto", "bf16", "fp16"], kind="precision") == (
        '"bf61" is not a precision; did you mean "bf16"? (one of: auto, bf16, fp16)'
    )


def test_nothing_is_suggested_for_what_is_far_from_all():
    assert closest("zzzz", ["auto", "bf16"]) is None
    assert "did you mean" not in not_one_of("zzzz", ["auto", "bf16"], kind="precision")
