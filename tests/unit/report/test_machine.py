import json

from ampwise.report.machine import comparison_json

PROMISED = (
    "precision step_ms_median step_ms_iqr final_loss verdict peak_tensor_bytes skipped ratio_time ratio_memory error"
)


def test_each_variant_has_the_promised_fields(made):
    for variant in comparison_json(made.normal())["variants"]:
        assert set(PROMISED.split()) <= set(variant)


def test_the_figures_are_the_recordings(made):
    variant = comparison_json(made.normal())["variants"][1]
    assert (variant["variant"], variant["precision"], variant["ratio_time"]) == ("auto", "bf16", 2.308)
    assert (variant["verdict"], variant["skipped"], variant["error"]) == ("within noise", 0, None)


def test_it_is_json_as_it_stands(any_recording):
    document = comparison_json(any_recording)
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_a_loss_that_is_not_finite_is_tagged(made):
    assert comparison_json(made.diverged())["variants"][1]["final_loss"] == {"float": "nan"}


def test_a_recording_without_comparison_has_no_variants(made):
    document = comparison_json(made.empty())
    assert document["variants"] == []
    assert document["num_steps"] is None
