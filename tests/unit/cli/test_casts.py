import pytest

from ampwise._base.errors import UsageError
from ampwise.cli.casts import _spec
from ampwise.runner.spec import Lists

GIVEN = {"lists": Lists.CUDA.value, "device": None, "steps": 3, "precision": None, "plan": None, "emulate": None}


def test_emulation_says_the_precision_too():
    spec = _spec({**GIVEN, "emulate": "half"})
    assert (spec.precision, spec.emulate) == ("fp16", "fp16")


def test_by_default_the_machine_decides():
    assert (_spec(GIVEN).precision, _spec(GIVEN).emulate) == ("auto", None)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"emulate": "fp16", "precision": "bf16"}, "leave --precision out"),
        ({"plan": "bf16", "precision": "bf16"}, "leave --precision out"),
        ({"emulate": "fp61"}, 'did you mean "fp16"'),
    ],
)
def test_what_contradicts_itself_is_refused(given, text):
    with pytest.raises(UsageError) as error:
        _spec({**GIVEN, **given})
    assert text in str(error.value)
