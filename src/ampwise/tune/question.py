"""What is looked for: a plan in which format, how near to fp32, from which plan on, for how long."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ampwise._base.errors import CannotRunError, UsageError
from ampwise._base.suggest import not_one_of
from ampwise._base.text import inert_line
from ampwise._base.version import __version__
from ampwise.emulate.recipes import RECIPES
from ampwise.formats.table import find_format
from ampwise.plan.plan import Plan
from ampwise.plan.writing import to_toml
from ampwise.runner.script import Target
from ampwise.runner.spec import Malloc
from ampwise.tune.parity import LEAST_STEPS

FORMATS: Final = ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2")
"""What a plan can be looked for in."""
LAST_SEED: Final = 2**32 - 1
"""The last that Python seeds its hashes with; a search takes a seed and the next."""
WORDS: Final = ("fp16", "bf16", "fp8", "fp8_e5m2")
"""The same as users say it."""
HIGH: Final = ("fp32", "bf16")
"""What a module may stay in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is looked for, and how."""

    low: str = "fp16"
    """The format to compute in."""
    high: str = "fp32"
    """The format of the modules that cannot: ``fp32`` or ``bf16``."""
    tolerance: float | None = None
    """How far the mean loss may be from fp32's, as a share of it; None allows fp32's own noise, and 1 % at least."""
    base: Plan | None = None
    """A plan to begin with, whose rules hold where none of the found ones do."""
    num_steps: int = 30
    """Of each run; their second half is compared."""
    seed: int = 0
    """Added to the script's own seeds; the next one confirms what was found."""
    budget_min: float | None = None
    """Minutes after which no further run begins."""
    device: str | None = None
    malloc: Malloc = Malloc.AUTO

    def __post_init__(self) -> None:
        if self.low not in FORMATS or self.high not in HIGH:
            raise UsageError(f"a plan is looked for in one of {', '.join(FORMATS)}, with {' or '.join(HIGH)} beside it")
        if self.high in {self.low, self.ground}:
            raise UsageError(f"{self.high} is what {self.low} is computed beside already; keep modules in fp32")
        if self.num_steps < LEAST_STEPS:
            raise UsageError(
                f"{self.num_steps} steps are too few: of {LEAST_STEPS} or more, the second half's losses are compared"
            )
        if self.tolerance is not None and not (0 <= self.tolerance < math.inf):
            raise UsageError(f"a tolerance is a share of the loss, such as 0.01; {self.tolerance} is none")
        if self.budget_min is not None and not (0 <= self.budget_min < math.inf):
            raise UsageError(f"a budget is a number of minutes, such as 20; {self.budget_min} is none")
        if not 0 <= self.seed < LAST_SEED:
            raise UsageError(f"a seed is a whole number from 0 to {LAST_SEED - 1}; {self.seed} is none")
        if self.base is not None:
            _check_base(self.base, self.ground)

    @property
    def ground(self) -> str:
        """What autocast casts to: for fp8, which only products with weights are in, bf16."""
        return RECIPES[self.low].autocast or "fp32"

    def start(self) -> Plan:
        """The plan where nothing is kept."""
        return self.base or Plan(default=self.ground)

    def emulated(self) -> str | None:
        """The format that the CPU is to be given hardware for; None where the runs are on a device of its own.

        Raises:
            CannotRunError: fp8 is emulated only, and the device is no CPU.
        """
        from ampwise.runtime.hardware.placement import current_device, parse_device

        device = current_device() if self.device is None else parse_device(self.device)
        if device.type == "cpu":
            return self.low
        if self.low.startswith("fp8"):
            raise CannotRunError(f"a plan in {self.low} is found by emulation, on a CPU: add --device cpu")
        return None

    def in_words(self, target: Target) -> dict[str, str]:
        """All that the answer depends on, by name: a search is resumed only with the same."""
        from ampwise.plan.operators import installed_torch_version

        return {
            "script": " ".join(target.command),
            "text of the script": _fingerprint(target),
            "format": f"{self.low}, {self.high} beside it",
            "tolerance": "fp32's noise" if self.tolerance is None else f"{self.tolerance:g}",
            "plan to begin with": to_toml(self.start()),
            "number of steps": str(self.num_steps),
            "seed": str(self.seed),
            "device": self.device or "the current one",
            "version of ampwise": __version__,
            "version of torch": installed_torch_version() or "none",
        }


def format_called(word: object) -> str:
    """The format to compute in that a user means.

    Raises:
        UsageError: no plan is looked for in that.
    """
    found = find_format(word) if isinstance(word, str) else None
    if found is None or found.name not in FORMATS:
        given = inert_line(str(word), max_length=60)
        raise UsageError(f"target: {not_one_of(given, WORDS, kind='format to find a plan in')}")
    return found.name


def _fingerprint(target: Target) -> str:
    path = Path(target.path or "")
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "not read"


def _check_base(base: Plan, ground: str) -> None:
    if base.default != ground:
        raise UsageError(
            f'the plan to begin with has default = "{base.default}", and one is looked for whose default is {ground}; '
            f'write default = "{ground}" in it, or name another --target'
        )
    if base.parameters != "fp32":
        raise UsageError(
            f"the plan to begin with keeps parameters in {base.parameters}, where no module can compute in fp32; "
            'write parameters = "fp32" in it'
        )
    fp8 = next((index for index, rule in enumerate(base.rules) if rule.compute.startswith("fp8")), None)
    if fp8 is not None:
        raise UsageError(f"rules[{fp8}] of the plan to begin with computes in fp8; name --target fp8 and leave it out")
