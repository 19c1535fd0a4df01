"""The store in which torchrun lets the processes that it started together leave each other word."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

POLL_S: Final = 0.1
ATTEMPT: Final = "TORCHELASTIC_RESTART_COUNT"
"""Where torchrun says which of its attempts this is."""
AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """The ranks, and the store in which torchrun lets them leave each other word."""

    rank: int
    size: int
    address: str
    """The store's, as ``host:port/prefix``."""
    store: Any

    @property
    def is_led(self) -> bool:
        """Whether another rank leads."""
        return self.rank != 0

    def put(self, key: str, value: str) -> None:
        """Leave word."""
        self.store.set(key, value)

    def get(self, key: str) -> str | None:
        """The word left under ``key``; None where there is none yet."""
        return self.store.get(key).decode() if self.store.check([key]) else None

    def wait_for(self, key: str, *, seconds: float | None = None, pulse: str | None = None) -> str | None:
        """The word under ``key`` once it is there; None where it does not come in time.

        Args:
            key: where the word is left.
            seconds: how long to wait; None is for ever.
            pulse: where whoever is waited for says that it is at work: with each new word there the time begins anew.
        """
        begun, beat = time.monotonic(), None
        while True:
            found = self.get(key)
            if pulse is not None and beat != (beat := self.get(pulse)):
                begun = time.monotonic()
            if found is not None or (seconds is not None and time.monotonic() - begun > seconds):
                return found
            time.sleep(POLL_S)


def team_of(environ: Mapping[str, str]) -> Team | None:
    """The team this process belongs to; None where torchrun did not start it together with others."""
    size = environ.get("WORLD_SIZE", "1")
    if not size.isdecimal() or int(size) < 2 or environ.get(AGENT_STORE) != "True":
        return None
    address = f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}/ampwise/{environ.get(ATTEMPT, '0')}"
    return Team(rank=int(environ["RANK"]), size=int(size), address=address, store=store_of(address))


def store_of(address: str) -> Any:
    """The store at ``host:port/prefix``."""
    from ampwise.compat.distributed import store_at

    place, _, prefix = address.partition("/")
    host, _, port = place.rpartition(":")
    return store_at(host, int(port), prefix=prefix)


def first_word(store: Any, key: str, mine: str) -> str:
    """What the first of all ranks left under ``key``."""
    return store.compare_set(key, "", mine).decode()
