import pytest

from ampwise.doctor.rules.dr206_gradients_explode import RULE
from ampwise.records.finding import Confidence
from ampwise.records.numerics import TensorKind
from cases import GOOD, fp32, numerics, of, run, tensor

RISING = [1.5**step for step in range(20)]


def sizes(*amax, scales=(None, None, None), **fields):
    steps = tuple((9 * place, scale) for place, scale in enumerate(scales[: len(amax)]))
    gradient = tensor(TensorKind.WEIGHT_GRADIENT, 1.0, dtype="fp32", amax=amax, **fields)
    return numerics(gradient, steps=steps)


def test_the_growth_and_the_loss_are_told():
    exploding = run(losses=RISING, numerics=sizes(0.5, 20.0, 200.0))
    (finding,) = RULE.check(of(exploding, fp32(losses=RISING)))
    assert finding.message == "The largest gradient grew 400 times from step 0 to step 18."
    assert finding.evidence == "from 0.5 to 200, the loss from 1 to 2217; in fp32 the loss rises too"
    assert finding.confidence is Confidence.CERTAIN


def test_the_loss_scale_is_taken_out():
    falling = sizes(65536.0, 2.0 * 65536.0, 200.0 * 2.0, scales=(65536.0, 65536.0, 2.0), is_scaled=True)
    (finding,) = RULE.check(of(run(losses=RISING, numerics=falling), fp32()))
    assert "from 1 to 200" in finding.evidence
    assert finding.evidence.endswith("in fp32 the loss falls")
    assert finding.confidence is Confidence.LIKELY


@pytest.mark.parametrize(
    "record",
    [
        run(losses=GOOD, numerics=sizes(0.001, 1.0)),
        run(losses=RISING, numerics=sizes(0.5, 20.0)),
        run(losses=RISING, numerics=sizes(0.5)),
        run(losses=RISING, numerics=sizes(0.0, 20.0)),
        run(losses=RISING),
    ],
    ids=["loss falls", "little", "one sample", "from zero", "not measured"],
)
def test_others_are_none(record):
    assert list(RULE.check(of(record))) == []


def test_how_it_went_is_told():
    assert list(RULE.reassure(of(run(numerics=sizes(0.5, 0.25))))) == ["the largest gradient went from 0.5 to 0.25"]
    assert list(RULE.reassure(of(run()))) == []
