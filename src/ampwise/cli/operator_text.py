"""What ``ampwise explain`` says of an operator."""

from collections.abc import Iterator, Sequence

from ampwise._base.text import inert_line
from ampwise.plan.explain import OperatorPlace, PlannedOperator
from ampwise.plan.operators import Behaviour, CastPolicy, OperatorDescription, in_words

_DEVICES = {"cpu": "CPU", "cuda": "CUDA"}


def operator_rows(description: OperatorDescription) -> Iterator[tuple[str, str]]:
    """What happens to the operator on each device, as name and text."""
    for device_type, name in _DEVICES.items():
        behaviours = [one for one in description.behaviours if one.device_type == device_type]
        for who, policies in (
            ("torch.autocast", [one.stock for one in behaviours]),
            ("ampwise run", [one.under_run for one in behaviours]),
        ):
            texts = [
                f"{in_words(policy)}{_which(one, behaviours)}" for one, policy in zip(behaviours, policies, strict=True)
            ]
            yield f"{name}, {who}", "; ".join(texts)
        for because in dict.fromkeys(one.because for one in behaviours if one.because):
            yield "  because", because
    if description.note:
        yield "note", description.note


def planned_rows(planned: PlannedOperator) -> Iterator[tuple[str, str]]:
    """What a plan makes of the operator, as name and text: the first place that fits decides."""
    for place in planned.places:
        name = "elsewhere" if place.rule is None else f"rules[{place.index}]"
        where = "" if place.rule is None or place.rule.module is None else f"in {_module(place.rule.module)}: "
        yield name, f"{where}{_what_happens(place)}"
        if place.rule is not None and place.rule.because:
            yield "  because", inert_line(place.rule.because, max_length=1000)


def operator_head(description: OperatorDescription) -> str:
    """The operators a word names, and where the lists are from."""
    names = dict.fromkeys(operator for one in description.behaviours for operator in one.operators)
    return f"{', '.join(names)}: an operator, under autocast of torch {description.torch_version}"


def _which(one: Behaviour, behaviours: Sequence[Behaviour]) -> str:
    return f" ({', '.join(one.operators)})" if len(behaviours) > 1 else ""


def _module(pattern: str) -> str:
    return inert_line(pattern, max_length=60)


def _what_happens(place: OperatorPlace) -> str:
    if place.policies is None:
        formats = place.compute if place.rule is None else place.rule.formats()
        return f"runs in {formats}"
    texts = {
        device: "; ".join(_in_region(one, place.compute) for one in said) for device, said in place.policies.items()
    }
    if len(set(texts.values())) == 1:
        is_listed = any(policy is not None for said in place.policies.values() for policy in said)
        return f"{next(iter(texts.values()))}{', by the cast lists' * is_listed}"
    return "by the cast lists, " + "; ".join(f"on {_DEVICES[device]} {text}" for device, text in texts.items())


def _in_region(policy: CastPolicy | None, compute: str) -> str:
    return f"runs in {compute}" if policy is CastPolicy.LOWER else in_words(policy)
