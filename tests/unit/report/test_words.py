import dataclasses

import pytest

from ampwise.records.comparison import Verdict
from ampwise.records.run import RunEnd
from ampwise.report import words
from ampwise.report.cells import Tone


@pytest.mark.parametrize(
    ("name", "text", "tone"),
    [
        (
            "normal",
            "auto (bf16) trains 2.31x as fast as fp32 and needs 38% less memory; its loss is within fp32's own noise.",
            Tone.GOOD,
        ),
        (
            "crashed",
            "tf32 trains as fast as fp32 and needs as much memory; its loss is within fp32's own noise.",
            Tone.GOOD,
        ),
        ("out_of_memory", "fp32 did not finish, so there is no ratio; fp16 takes 40.0 ms a step.", Tone.BAD),
        ("diverged", "fp16 trains 1.82x as fast as fp32 and needs 28% less memory, but its loss diverged.", Tone.BAD),
        (
            "skipping",
            "fp16 trains 1.93x as fast as fp32 and needs as much memory, but its loss drifts away from fp32's.",
            Tone.CAUTION,
        ),
        (
            "repeated",
            "bf16+compile trains 2.70x as fast as fp32 and needs 32% less memory; its loss is within fp32's own noise.",
            Tone.GOOD,
        ),
        ("empty", "This recording holds no runs and no comparison.", Tone.PLAIN),
    ],
)
def test_the_headline_says_what_it_came_to(made, name, text, tone):
    assert words.headline(getattr(made, name)()) == words.Sentence(text=text, tone=tone)


def _compared(made, *variants):
    return made.recording([], variants)


@pytest.mark.parametrize(("count", "said"), [(1, "one run"), (2, "2 runs")])
def test_without_a_comparison_the_runs_are_counted(made, count, said):
    recording = dataclasses.replace(made.recording([made.FP32] * count, []), comparison=None)
    assert words.headline(recording).text == f"This recording holds {said} and no comparison."


def test_one_variant_alone_says_its_time(made):
    assert words.headline(_compared(made, made.summary("fp32", "fp32"))).text == "fp32 takes 100 ms a step."


def test_a_first_variant_whose_others_failed_is_alone(made):
    recording = _compared(made, made.summary("fp32", "fp32"), made.failed("fp16", "fp16", "boom"))
    assert words.headline(recording).text == "Only fp32 finished; it takes 100 ms a step."


def test_none_finished(made):
    recording = _compared(made, made.failed("fp32", None, "boom"), made.failed("fp16", None, "boom"))
    assert words.headline(recording).text == "No variant finished."


def test_a_diverged_variant_is_no_headline_beside_a_sound_one(made):
    slow = made.summary("bf16", "bf16", ratio_time=1.5, verdict=Verdict.WITHIN_NOISE)
    fast = made.summary("fp16", "fp16", ratio_time=3.0, verdict=Verdict.DIVERGED)
    assert words.headline(_compared(made, made.summary("fp32", "fp32"), fast, slow)).text.startswith(
        "bf16 trains 1.50x"
    )


@pytest.mark.parametrize(
    ("ratios", "text"),
    [
        ((0.5, 0.8), "fp16 takes 2.00x as long as fp32 and needs 25% more memory"),
        ((1.02, 0.98), "fp16 trains as fast as fp32 and needs as much memory"),
        ((None, 2.0), "fp16 needs 50% less memory"),
        ((2.0, float("nan")), "fp16 trains 2.00x as fast as fp32"),
        ((None, None), "fp16 was not timed"),
    ],
)
def test_a_sentence_says_what_is_known(made, ratios, text):
    first = made.summary("fp32", "fp32")
    variant = made.summary("fp16", "fp16", ratio_time=ratios[0], ratio_memory=ratios[1], verdict=None)
    assert words.sentence(variant, first).text == f"{text}."


def test_every_later_variant_gets_a_sentence(made):
    texts = [sentence.text for sentence in words.sentences(made.crashed().comparison)]
    assert texts[0].startswith("bf16 did not finish: RuntimeError at model.py:41")
    assert texts[1].startswith("tf32 trains")


def test_the_projection_names_each_variant(made):
    text = words.projection(made.normal().comparison)
    assert text == "100,000 steps would take 2.79 h in fp32, 72.5 min in auto (bf16)."


def test_nothing_is_projected_unless_asked(made):
    comparison = made.normal().comparison
    assert words.projection(dataclasses.replace(comparison, project_steps=None)) is None


@pytest.mark.parametrize("end", list(RunEnd))
def test_every_end_has_words(end):
    assert words.ending(end)


def test_what_was_equal_names_the_allocator_and_the_work(made):
    facts = words.equal_for_all(made.normal())
    assert facts[0].startswith("the allocator: tuned (mallopt")
    assert any("2 runs of 60 steps a variant" in fact for fact in facts)


def test_a_script_that_does_it_itself_is_credited_with_no_gain(made):
    own = "torch.autocast entered at own.py:9"
    runs = [made.run("fp32", "fp32", left_alone=own), made.run("auto", "bf16", left_alone=own, time_ms=50.0)]
    recording = made.recording(runs, [made.summary("fp32", "fp32"), made.BF16])
    said = f"All ran alike: the script's own mixed precision was left to it ({own})."
    assert words.headline(recording) == words.Sentence(text=said, tone=Tone.CAUTION)


def test_a_script_that_ended_before_the_steps_asked_for_is_said(made):
    short = made.run("fp32", "fp32", num_steps=8, end=RunEnd.FINISHED)
    recording = made.recording([short, made.run("bf16", "bf16")], [made.summary("fp32", "fp32"), made.BF16])
    assert words.notes(recording) == {"fp32": ["the script came to its own end after 8 of 60 steps"]}
