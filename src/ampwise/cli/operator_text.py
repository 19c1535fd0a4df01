"""What ``ampwise explain`` says of an operator."""

from collections.abc import Iterator, Sequence

from ampwise.plan.operators import Behaviour, OperatorDescription, in_words

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


def operator_head(description: OperatorDescription) -> str:
    """The operators a word names, and where the lists are from."""
    names = dict.fromkeys(operator for one in description.behaviours for operator in one.operators)
    return f"{', '.join(names)}: an operator, under autocast of torch {description.torch_version}"


def _which(one: Behaviour, behaviours: Sequence[Behaviour]) -> str:
    return f" ({', '.join(one.operators)})" if len(behaviours) > 1 else ""
