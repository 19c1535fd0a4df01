"""What would make a training step take less, and what it would take then: the run's ledger with other sizes."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from ampwise.estimate.ledger import Ledger, Storage
from ampwise.estimate.replay import SizeOf, replay
from ampwise.estimate.whereabouts import Whereabouts
from ampwise.estimate.worth import worth_a_line
from ampwise.records.estimate import Remedy
from ampwise.records.memory import MemoryCategory as Kind
from ampwise.records.site import Phase


def remedies_of(ledger: Ledger, whereabouts: Whereabouts, *, is_expandable: bool) -> tuple[Remedy, ...]:
    """What to change, the largest saving first; each alone, and none that saves less than a hundredth.

    Args:
        ledger: Of all of the run.
        whereabouts: Knows what storages are for.
        is_expandable: The allocator's segments can grow already.
    """
    before = ledger.allocator.peak_reserved_bytes
    kinds = {one.born: whereabouts.category_of(one) for one in ledger.storages}
    found: list[Remedy] = []
    for what, size_of in _changes(ledger, kinds):
        after = replay(ledger, size_of=size_of).peak_reserved_bytes
        found.append(Remedy(what=what, saved_bytes=before - after, needed_bytes=after))
    if not is_expandable:
        settings = replace(ledger.allocator.settings, expandable_segments=True)
        after = replay(ledger, settings=settings).peak_reserved_bytes
        what = "segments that grow: PYTORCH_ALLOC_CONF=expandable_segments:True"
        found.append(Remedy(what=what, saved_bytes=before - after, needed_bytes=after))
    return worth_a_line(found, before)


def _changes(ledger: Ledger, kinds: dict[int, Kind]) -> Iterator[tuple[str, SizeOf]]:
    yield (
        "half the batch, two of them accumulated to a step",
        lambda one: one.num_bytes // 2 if _grows_with_batch(one, kinds[one.born]) else one.num_bytes,
    )
    blocks = _blocks(ledger, kinds)
    if blocks:
        share = _kept_share(blocks, num_steps=len(ledger.moments))
        inside = {one.born for storages in blocks.values() for one in storages}
        named = f"activation checkpointing of the {len(blocks)} blocks {_shown(blocks)} (torch.utils.checkpoint)"
        yield (
            f"{named}, for about a third more time",
            lambda one: int(one.num_bytes * share) if one.born in inside else one.num_bytes,
        )
    yield (
        "the optimizer with fused=True, which makes no copies of its own",
        lambda one: 0 if kinds[one.born] is Kind.TEMPORARY and one.spot.phase is Phase.OPTIMIZER else one.num_bytes,
    )
    yield (
        "an optimizer whose state has 8 bits, such as bitsandbytes'",
        lambda one: one.num_bytes // 4 if kinds[one.born] is Kind.OPTIMIZER_STATE else one.num_bytes,
    )


def _grows_with_batch(storage: Storage, kind: Kind) -> bool:
    """Activations, and what the passes make on their way; the copies of weights that autocast makes do not grow."""
    is_in_pass = storage.spot.phase in {Phase.FORWARD, Phase.BACKWARD}
    return kind is Kind.ACTIVATION or (kind is Kind.TEMPORARY and is_in_pass)


def _blocks(ledger: Ledger, kinds: dict[int, Kind]) -> dict[str, list[Storage]]:
    """The activations of all steps, by the numbered module that they were made in: ``layers.3``."""
    found: defaultdict[str, list[Storage]] = defaultdict(list)
    for one in ledger.storages:
        if kinds[one.born] in {Kind.ACTIVATION, Kind.CAST} and one.spot.module is not None:
            words = one.spot.module.path.split(".")
            place = next((index for index, word in enumerate(words) if word.isdecimal()), None)
            if place is not None:
                found[".".join(words[: place + 1])].append(one)
    families = Counter(name.rpartition(".")[0] for name in found)
    family = max(families, key=lambda name: families[name], default="")
    blocks = {name: storages for name, storages in found.items() if name.rpartition(".")[0] == family}
    return blocks if len(blocks) > 1 else {}


def _kept_share(blocks: dict[str, list[Storage]], *, num_steps: int) -> float:
    """Which share of the blocks' activations is held: every block's last, and all of the largest, which runs again."""
    sizes = [sum(one.num_bytes for one in storages) for storages in blocks.values()]
    num_steps = max(1, num_steps)
    # what follows the last block may not keep its result
    ends = len(blocks) * min(max(storages, key=lambda one: one.born).num_bytes for storages in blocks.values())
    return min(1.0, (max(sizes) / num_steps + ends) / max(1, sum(sizes) / num_steps))


def _shown(blocks: dict[str, list[Storage]]) -> str:
    names = list(blocks)
    return f"{names[0]} to {names[-1].rpartition('.')[2]}"
