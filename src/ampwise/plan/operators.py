"""Which precision autocast runs an operator in: torch's cast lists per version, and what ``ampwise run`` adds to them.

Operators are named as torch names aten overloads, without ``aten::``: ``softmax.int``; ``default`` is not written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, assert_never

from ampwise._base.errors import UsageError
from ampwise.plan.names import list_files, nearest, read_data, spelt


class CastPolicy(StrEnum):
    """What autocast does to an operator's floating-point arguments; float64 is always left alone."""

    LOWER = "lower"
    """Casts them to the low precision."""
    FP32 = "fp32"
    """Casts them to fp32."""
    FP32_SET_OPT_DTYPE = "fp32_set_opt_dtype"
    """Asks for a result in fp32, unless the call names a dtype."""
    FP32_APPEND_DTYPE = "fp32_append_dtype"
    """Calls the overload that takes a dtype, with fp32."""
    PROMOTE = "promote"
    """Casts them to the widest of their dtypes."""
    TO_SELF = "to_self"
    """Casts them to the dtype of the tensor that is written in place. ampwise's; torch has none like it."""
    BANNED = "banned"
    """Raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A policy that ``ampwise run`` adds, on every device whose own list does not have the operator."""

    policy: CastPolicy
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CastLists:
    """The cast lists of one torch version, and ampwise's remedies."""

    torch_version: str
    """The version the lists were taken from."""
    note: str | None
    """Said where it is not the version that was asked for."""
    devices: Mapping[str, Mapping[str, CastPolicy]]
    """Device type -> overload -> policy, as torch has them."""
    remedies: Mapping[str, Remedy]
    """Overload -> what ampwise adds."""

    def added(self, device_type: str) -> dict[str, CastPolicy]:
        """What ``ampwise run`` adds on ``device_type``: CUDA's fp32 and promote lists, then the remedies.

        An operator the device's own list has already is left to it, unless it is banned there.
        """
        own = self.devices.get(device_type, self.devices["cuda"])
        kept = {name for name, policy in own.items() if policy is not CastPolicy.BANNED}
        cuda = {name: policy for name, policy in self.devices["cuda"].items() if policy not in _NOT_ADDED}
        wanted = cuda | {name: remedy.policy for name, remedy in self.remedies.items()}
        return {name: policy for name, policy in wanted.items() if name not in kept}

    def in_force(self, device_type: str) -> dict[str, CastPolicy]:
        """What holds on ``device_type`` under ``ampwise run``."""
        return {**self.devices[device_type], **self.added(device_type)}


_NOT_ADDED = (CastPolicy.LOWER, CastPolicy.BANNED)


def cast_lists(torch_version: str | None = None) -> CastLists:
    """What autocast of ``torch_version`` (default: the installed one) does, by operator.

    A version without lists of its own gets the nearest older one's, and a note that says so.

    Raises:
        UsageError: ``torch_version`` does not start with two numbers.
    """
    asked = torch_version or installed_torch_version()
    known = sorted(_release(name.removesuffix(".toml")) for name in list_files())
    wanted = _release(asked) if asked else known[-1]
    found = max((release for release in known if release <= wanted), default=known[0])
    name = ".".join(map(str, found))
    raw = read_data(f"lists/{name}.toml")
    return CastLists(
        torch_version=name,
        note=None if found == wanted else f"ampwise has no cast lists of torch {asked}; these are torch {name}'s",
        devices={device: _by_operator(policies) for device, policies in raw.items()},
        remedies=_remedies(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What happens to some overloads of an operator on one device."""

    operators: tuple[str, ...]
    """The overloads, all of which fare alike."""
    device_type: str
    stock: CastPolicy | None
    """Under torch's autocast; None where no list has them: they run in the dtype their arguments arrive in."""
    under_run: CastPolicy | None
    """Under ``ampwise run``."""
    because: str | None
    """Why ampwise adds to torch's list, where it does beyond CUDA's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDescription:
    """An operator by any of its names, and what autocast does to it on a CPU and on CUDA."""

    name: str
    """As it was asked for."""
    torch_version: str
    note: str | None
    behaviours: tuple[Behaviour, ...]


def describe_operator(name: str, *, torch_version: str | None = None) -> OperatorDescription:
    """In which precision ``name`` runs under autocast; ``softmax``, ``F.softmax``, ``nn.Softmax`` are one operator.

    Raises:
        UsageError: no operator is called so; the text suggests the nearest name.
    """
    lists = cast_lists(torch_version)
    overloads = _overloads(lists)
    packets = _find_packets(name, overloads)
    groups: dict[tuple[Any, ...], list[str]] = {}
    for device_type, stock_policies in lists.devices.items():
        policies = lists.in_force(device_type)
        candidates = [overload for packet in packets for overload in overloads.get(packet, (packet,))]
        # what is not listed beside something that is calls that: conv2d.padding on CUDA calls conv2d
        for overload in [one for one in candidates if one in policies] or candidates:
            stock, in_force = stock_policies.get(overload), policies.get(overload)
            remedy = lists.remedies.get(overload) if in_force is not stock else None
            groups.setdefault((device_type, stock, in_force, remedy and remedy.because), []).append(overload)
    return OperatorDescription(
        name=name,
        torch_version=lists.torch_version,
        note=lists.note,
        behaviours=tuple(
            Behaviour(operators=tuple(operators), device_type=device, stock=stock, under_run=in_force, because=because)
            for (device, stock, in_force, because), operators in groups.items()
        ),
    )


def is_operator(name: str) -> bool:
    """Whether ``describe_operator`` knows ``name``."""
    return bool(spelt(name, _overloads(cast_lists())))


def nearest_operator(name: str) -> str | None:
    """The operator that is probably meant by ``name``, which is none."""
    return nearest(name, _overloads(cast_lists()))


def in_words(policy: CastPolicy | None) -> str:
    """What ``policy`` does, for a person; None is the policy of an operator that is in no list."""
    match policy:
        case None:
            return "is in no list: runs in its arguments' dtype, or as the operators it is made of"
        case CastPolicy.LOWER:
            return "runs in the low precision (bf16 or fp16)"
        case CastPolicy.FP32 | CastPolicy.FP32_SET_OPT_DTYPE | CastPolicy.FP32_APPEND_DTYPE:
            return "runs in fp32"
        case CastPolicy.PROMOTE:
            return "runs in the widest dtype among its arguments"
        case CastPolicy.TO_SELF:
            return "casts what it writes to the dtype of the tensor it writes to"
        case CastPolicy.BANNED:
            return "raises"
    assert_never(policy)


def _overloads(lists: CastLists) -> dict[str, tuple[str, ...]]:
    """Every operator that some list or remedy has, with its overloads there."""
    names = sorted({*lists.remedies, *(name for policies in lists.devices.values() for name in policies)})
    packets = sorted({name.partition(".")[0] for name in names})
    return {packet: tuple(n for n in names if n.partition(".")[0] == packet) for packet in packets}


def _find_packets(name: str, overloads: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    packets = spelt(name, overloads)
    if not packets:
        near = nearest_operator(name)
        hint = f'; did you mean "{near}"?' if near else "; give it as torch spells it, such as softmax or F.layer_norm"
        raise UsageError(f'"{name}" is not an operator that autocast treats{hint}')
    return packets


@cache
def installed_torch_version() -> str | None:
    """Which torch is installed, found without importing it; None where there is none."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def _release(text: str) -> tuple[int, int]:
    try:
        major, minor, *_ = text.split(".")
        return int(major), int(minor)
    except ValueError:
        raise UsageError(f'"{text}" is not a torch version; write it as in 2.13 or 2.13.0+cpu') from None


def _by_operator(policies: Mapping[str, list[str]]) -> dict[str, CastPolicy]:
    return {name: CastPolicy(policy) for policy, names in policies.items() for name in names}


def _remedies() -> dict[str, Remedy]:
    return {
        name: Remedy(policy=CastPolicy(row["policy"]), because=row["because"])
        for row in read_data("remedies.toml")["remedy"]
        for name in row["operators"]
    }
