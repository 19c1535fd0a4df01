import io

import pytest
from rich.console import Console

from ampwise.records.estimate import Estimate, Remedy
from ampwise.records.memory import CategoryBytes, MemoryCategory, MemoryOwner
from ampwise.records.site import Phase, Site
from ampwise.report.estimates import estimates_json, render_estimates, verdict

GIB = 2**30


def estimate(precision="fp32", **fields):
    parts = (CategoryBytes(category=MemoryCategory.PARAMETER, bytes=3 * GIB),)
    given = {"allocated_bytes": 3 * GIB, "reserved_bytes": 4 * GIB, "categories": parts, **fields}
    return Estimate(precision=precision, **given)


def text(*estimates, **fields):
    file = io.StringIO()
    render_estimates(estimates, Console(file=file, width=200), **fields)
    return file.getvalue()


def owner(module, size):
    site = Site(phase=Phase.FORWARD, module=module)
    return MemoryOwner(category=MemoryCategory.ACTIVATION, site=site, bytes=size, num_storages=1)


def test_where_the_peak_is_and_in_which_modules():
    owners = (owner("layers.1", GIB), owner(None, 5 * GIB), owner("layers.0", 2 * GIB), owner("layers.1", 3 * GIB))
    said = text(estimate(peak_phase="backward", peak_line="train.py:31", owners=owners))
    assert "fp32's peak is in the backward pass, at train.py:31; most in layers.1 4.00 GiB, layers.0 2.00 GiB" in said
    assert "in the optimizer's step" in text(estimate(peak_phase="optimizer"))
    assert "between the passes" in text(estimate(peak_phase="other"))
    assert "peak is" not in text(estimate())


def test_what_to_change_says_what_is_needed_then():
    remedies = (
        Remedy(what="half the batch", saved_bytes=2 * GIB, needed_bytes=2 * GIB),
        Remedy(what="fused=True", saved_bytes=GIB // 2, needed_bytes=7 * GIB // 2),
    )
    said = text(estimate(capacity_bytes=3 * GIB, remedies=remedies))
    assert "fp32 would need 2.00 GiB, which fits, with half the batch" in said
    assert "fp32 would need 3.50 GiB, with fused=True" in said


def test_the_band_is_of_tensors_alone_up_to_convolutions_most():
    wide = estimate(least_bytes=2 * GIB, convolution_bytes=GIB)
    assert wide.band_bytes == (2 * GIB, 5 * GIB)
    assert estimates_json([wide])["band_bytes"] == (2 * GIB, 5 * GIB)
    assert "5.00 GiB" in text(wide)
    assert "at most" not in text(estimate(least_bytes=2 * GIB, convolution_bytes=0))
    assert estimate().band_bytes is None


@pytest.mark.parametrize(("capacity", "is_tight"), [(5, False), (4.5, True)])
def test_a_fit_that_convolutions_may_undo_is_said_to_be_one(capacity, is_tight):
    tight = estimate(capacity_bytes=int(capacity * GIB), convolution_bytes=GIB)
    assert tight.fits
    assert ("512 MiB short if convolutions take their most" in verdict(tight)) is is_tight
