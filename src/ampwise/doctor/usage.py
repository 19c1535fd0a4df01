"""What the rules on usage share: the lines that did what they should not, and how often of how often."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.records.usage import Misuse, MisusePlace


def misused(case: Case, kind: Misuse) -> Iterator[tuple[MisusePlace, str]]:
    """Each line that did so, with the steps watched in words; nothing where nobody watched."""
    usage = case.run.usage
    if usage is not None:
        steps = f"in {usage.num_steps} step{'s' * (usage.num_steps != 1)} watched"
        yield from ((place, steps) for place in usage.places(kind))
