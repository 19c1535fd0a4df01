# pyright: reportPrivateImportUsage=false
"""Words that the ranks of a group leave each other in the store they met in: nobody waits for anybody.

Semi-private: ``ProcessGroup.get_group_store``.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch.distributed as dist

from ampwise.compat.distributed import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWords:
    """Words about one thing, kept apart from those about others."""

    rank: int
    """This rank's, among all."""
    store: Any

    @classmethod
    def of(cls, group: Group, name: str) -> Self | None:
        """The words of the group about ``name``; every rank that asks for the nth time shares those of its nth time.

        None where the group has no store that keeps words, as torch's fake groups.
        """
        try:
            store = group.get_group_store()
            count = store.add(f"ampwise/{name}/{dist.get_rank(group)}", 1)
        except RuntimeError:
            return None
        return cls(rank=dist.get_rank(), store=dist.PrefixStore(f"ampwise/{name}/{count}", store))

    def first(self, key: str, mine: str) -> str:
        """What the first rank to say something said under ``key``."""
        return self.store.compare_set(key, "", mine).decode()

    def get(self, key: str) -> str | None:
        """What was said under ``key``; None where nothing was."""
        return self.store.get(key).decode() if self.store.check([key]) else None
