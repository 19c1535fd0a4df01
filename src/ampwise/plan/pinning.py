"""Whether the cast lists that a plan was made with are those of the installed torch."""

from collections.abc import Iterator

from ampwise.plan.operators import CastLists, cast_lists, in_words, installed_torch_version
from ampwise.plan.plan import Plan

_NUM_SHOWN = 3


def outdated_pin(plan: Plan) -> str | None:
    """What the installed torch does otherwise than the release that the plan names; None where nothing is known to be.

    torch itself carries its lists out, so a plan cannot bring an older release's back: it can only say.
    """
    installed = installed_torch_version()
    if plan.torch is None or installed is None or _release(installed) == plan.torch:
        return None
    said = f'torch = "{plan.torch}": the installed torch is {_release(installed)}'
    then, now = cast_lists(plan.torch), cast_lists(installed)
    if then.torch_version != plan.torch or now.torch_version != _release(installed):
        unknown = plan.torch if then.torch_version != plan.torch else _release(installed)
        return f"{said}, and ampwise has no cast lists of torch {unknown}: operators may run in other formats than then"
    changes = list(_changes(then, now))
    if not changes:
        return None
    more = f" and {len(changes) - _NUM_SHOWN} more" if len(changes) > _NUM_SHOWN else ""
    return f"{said}, whose cast lists changed: {'; '.join(changes[:_NUM_SHOWN])}{more}"


def _changes(then: CastLists, now: CastLists) -> Iterator[str]:
    for device in sorted(then.devices.keys() & now.devices.keys()):
        before, after = then.devices[device], now.devices[device]
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) is not after.get(name):
                yield f"{name} on {device} {in_words(after.get(name))}"


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])
