"""How many evaluations a search for a plan takes on nets with planted faults, and how small its plans are.

60 random stacks of 24 to 49 linear layers (``tests/helpers/planted_faults.py``), each with 1 to 3 faults of range or of
rounding, a tolerance from 5e-3 to 5e-2 drawn at random, in fp16 or bf16. An evaluation is a run of the net with some
layers in fp32, on a batch that the ranking has not seen; it passes if the output is within the tolerance of fp32's. No
clock is in it: the figures are counts, the same on every machine but for the last bit of a product.

Beside ``ampwise tune``'s search stand: the same without a ranking; the shortest passing prefix in the order of the
model, by bisection (as Polygraphy does); one layer at a time, the least harmful first, from all layers in fp32. The
smallest set known is the smallest that any of them found, and three further orders of leaving one out.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import torch
from _common import OUT, ROOT

from ampwise.tune.search import Unit, search

sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from planted_faults import Planted, planted

FIRST_SEED = 1000
"""The search's two constants were chosen on seeds below 120."""
_NUM_ORDERS = 3


@dataclass(frozen=True, kw_only=True)
class StrategyRow:
    """One strategy over all nets."""

    strategy: str
    evaluations_median: float
    evaluations_p90: int
    evaluations_max: int
    smallest: int
    """Nets in which it found the smallest set known."""
    extra_p90: int
    """Layers more than those."""
    nets: int


class Counted:
    """A net's error, each set asked for once."""

    def __init__(self, net: Planted) -> None:
        self._net = net
        self.errors: dict[frozenset[str], float] = {}

    def __call__(self, kept: Iterable[str]) -> float:
        """The error of keeping these."""
        names = frozenset(kept)
        if names not in self.errors:
            self.errors[names] = self._net.error(names)
        return self.errors[names]

    def passes(self, kept: Iterable[str]) -> bool:
        """Whether it is tolerated."""
        return self(kept) <= 1.0


Strategy = Callable[[Sequence[Unit], Counted], tuple[str, ...]]


def ranked(units: Sequence[Unit], evaluate: Counted) -> tuple[str, ...]:
    return _kept(units, evaluate)


def unranked(units: Sequence[Unit], evaluate: Counted) -> tuple[str, ...]:
    return _kept([Unit(name=unit.name, score=0.0) for unit in units], evaluate)


def _kept(units: Sequence[Unit], evaluate: Counted) -> tuple[str, ...]:
    found = search(units, evaluate)
    if found.best is None:
        sys.exit("no set passes, not even that of all layers")
    return found.best.kept


def prefix(units: Sequence[Unit], evaluate: Counted) -> tuple[str, ...]:
    names = [unit.name for unit in units]
    low, enough = -1, len(names)
    while enough - low > 1:
        middle = (low + enough) // 2
        low, enough = (low, middle) if evaluate.passes(names[:middle]) else (middle, enough)
    return tuple(names[:enough])


def one_at_a_time(units: Sequence[Unit], evaluate: Counted) -> tuple[str, ...]:
    return left_out(sorted(units, key=lambda unit: unit.score), evaluate)


def left_out(units: Sequence[Unit], evaluate: Counted) -> tuple[str, ...]:
    kept = [unit.name for unit in units]
    for unit in units:
        fewer = [name for name in kept if name != unit.name]
        kept = fewer if evaluate.passes(fewer) else kept
    return tuple(kept)


STRATEGIES: dict[str, Strategy] = {
    "ampwise tune": ranked,
    "without a ranking": unranked,
    "prefix, bisected": prefix,
    "one at a time": one_at_a_time,
}


def orders(units: Sequence[Unit], seed: int) -> list[list[Unit]]:
    draw = random.Random(seed)  # noqa: S311 - no secret
    return [draw.sample(units, len(units)) for _ in range(_NUM_ORDERS)]


def row(name: str, counts: list[int], extras: list[int]) -> StrategyRow:
    ninth = int(0.9 * len(counts))
    return StrategyRow(
        strategy=name,
        evaluations_median=statistics.median(counts),
        evaluations_p90=sorted(counts)[ninth],
        evaluations_max=max(counts),
        smallest=sum(extra == 0 for extra in extras),
        extra_p90=sorted(extras)[ninth],
        nets=len(counts),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", type=int, default=60)
    parser.add_argument("--quick", action="store_true", help="12 nets")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    counts: dict[str, list[int]] = {name: [] for name in STRATEGIES}
    extras: dict[str, list[int]] = {name: [] for name in STRATEGIES}
    for seed in range(FIRST_SEED, FIRST_SEED + (12 if arguments.quick else arguments.nets)):
        net = planted(seed)
        units = net.units()
        sizes: dict[str, int] = {}
        for name, strategy in STRATEGIES.items():
            evaluate = Counted(net)
            kept = strategy(units, evaluate)
            if net.error(frozenset(kept)) > 1.0:
                sys.exit(f"{name}, net {seed}: the plan does not pass")
            counts[name].append(len(evaluate.errors))
            sizes[name] = len(kept)
        others = [len(left_out(order, Counted(net))) for order in orders(units, seed)]
        for name, size in sizes.items():
            extras[name].append(size - min(*sizes.values(), *others))
    rows = [row(name, counts[name], extras[name]) for name in STRATEGIES]
    for one in rows:
        counted = f"{one.evaluations_median:g} / {one.evaluations_p90} / {one.evaluations_max}"
        smallest = f"smallest set {one.smallest} of {one.nets}, at the ninth decile {one.extra_p90} layers more"
        print(f"  {one.strategy:20s} evaluations {counted:14s} {smallest}")
    OUT.mkdir(exist_ok=True)
    document = {
        "name": "tune",
        "note": "evaluations: median / ninth decile / most",
        "rows": [asdict(one) for one in rows],
    }
    (OUT / "tune.json").write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
