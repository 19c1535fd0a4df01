"""What a command does that torchrun started on every rank: the first leads, the others follow."""

from collections.abc import Generator
from contextlib import contextmanager

from ampwise._base.errors import UsageError
from ampwise.runner.bootstrap import own_environment
from ampwise.runner.child import Runner, run_child
from ampwise.runner.script import Target
from ampwise.runner.store import team_of
from ampwise.runner.team import Lead, follow


def follow_leader(target: Target, *, verb: str) -> int | None:
    """The status of a process that only made its part of each run; None where this one leads, or is alone.

    Raises:
        UsageError: another launcher than torchrun started several of them.
    """
    environ = own_environment()
    team = team_of(environ)
    size = environ.get("WORLD_SIZE", "1")
    if team is None and size.isdecimal() and int(size) > 1:
        raise UsageError(
            f"{size} processes of ampwise {verb} were started, and nothing lets them agree on one report; start them "
            f"with torchrun: torchrun --nproc-per-node {size} -m ampwise {verb} train.py"
        )
    return follow(team, target) if team is not None and team.is_led else None


def refuse_ranks(*, verb: str, then: str) -> None:
    """Refuse what is done once, by one process.

    Args:
        verb: the command.
        then: what to do with its result on all ranks.

    Raises:
        UsageError: several processes of it were started.
    """
    size = own_environment().get("WORLD_SIZE", "1")
    if size.isdecimal() and int(size) > 1:
        raise UsageError(
            f"{size} processes of ampwise {verb} were started, and each would do all of it; start one, without "
            f"torchrun. What it finds serves all ranks: torchrun --nproc-per-node {size} -m ampwise {then}"
        )


@contextmanager
def runner_of_ranks() -> Generator[Runner]:
    """What makes a run: on this process's machine alone, or on every rank."""
    team = team_of(own_environment())
    if team is None:
        yield run_child
        return
    lead = Lead(team)
    try:
        yield lead
    finally:
        lead.dismiss()
