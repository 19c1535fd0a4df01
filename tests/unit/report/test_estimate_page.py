import examined
import recordings
from ampwise.records.estimate import Estimate, Remedy
from ampwise.records.memory import CategoryBytes, MemoryCategory
from ampwise.report.estimate_page import render_estimates_html


def estimate(precision="bf16", **fields):
    given = {
        "allocated_bytes": 3 << 30,
        "reserved_bytes": 4 << 30,
        "categories": (CategoryBytes(category=MemoryCategory.PARAMETER, bytes=3 << 30),),
        "peak_phase": "backward",
        "peak_line": "train.py:31",
        "owners": examined.memory().owners,
        "timeline": examined.memory().points,
        "capacity_bytes": 15 << 30,
        **fields,
    }
    return Estimate(precision=precision, **given)


def test_the_verdict_of_one_that_fits_is_the_heading():
    page = render_estimates_html(
        [estimate("fp32", reserved_bytes=20 << 30), estimate()], device="NVIDIA T4", command=("train.py",)
    )
    heading = page.partition("<h1")[2].partition("</h1>")[0]
    assert "bf16 needs 4.00 GiB; it fits the NVIDIA T4 with 11.0 GiB to spare" in heading
    assert "fp32 needs 20.0 GiB; it does not fit the NVIDIA T4: 5.00 GiB short" in page


def test_the_timeline_the_owners_and_the_peak_of_each():
    page = render_estimates_html([estimate("fp32"), estimate()])
    for said in (
        'data-figure="memory-fp32"',
        'data-figure="memory-bf16"',
        "The peak is in the backward pass, at train.py:31.",
        "Who holds the peak, fp32",
        "layers.1.wo · aten.mm · forward · model.py:41",
        "parameters",
    ):
        assert said in page


def test_a_rule_of_thumb_has_no_timeline_and_hostile_text_stays_text():
    bad = recordings.HOSTILE
    page = render_estimates_html(
        [estimate(bad, owners=(), timeline=(), assumptions=(bad,))], device=bad, command=(bad,)
    )
    head = page.partition("<script")[0]
    assert "<img" not in head
    assert "Memory over one step" not in head


def test_what_to_change_and_the_largest_batch_are_on_the_page():
    short = estimate(
        remedies=(Remedy(what="half the batch", saved_bytes=3 * 2**30, needed_bytes=2**30),), batch_size=None
    )
    page = render_estimates_html([short])
    assert "What to change" in page
    assert "half the batch" in page
    assert "3.00 GiB" in page
    page = render_estimates_html([estimate(batch_size=48)])
    assert "the largest batch that fits: 48" in page
    assert "What to change" not in page
