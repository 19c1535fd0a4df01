"""Estimates of a script: one process each, in which it trains for two steps on a GPU that is not there."""

import socket
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Final, TextIO

from ampwise._base.errors import CannotRunError, RecordError
from ampwise.estimate.mixed_precision import with_mixed_precision
from ampwise.estimate.order import GPUS_PER_NODE, OWN, GpuSpec, Order
from ampwise.estimate.wanted import Wanted, slow_note, wanted
from ampwise.records.estimate import Estimate
from ampwise.records.files import load
from ampwise.runner.bootstrap import own_environment, plain_environment
from ampwise.runner.process import last_lines, running
from ampwise.runner.script import Target
from ampwise.runner.summary import NO_STEP_FOUND

_ADVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ModuleNotFoundError": "; install it here too, or let the script go without it",
        "ImportError": "; install it here too, or let the script go without it",
        "FileNotFoundError": "; what a step reads must be here: start where it lies, or put a little of the same shape "
        "there",
    }
)
"""What to do, by how a reason begins."""
Predict = Callable[[Target, Wanted], Estimate]
"""What a step of the script takes, in a precision or by a plan.

Raises:
    CannotRunError: the script ended before its first step; the text is its own.
"""


def estimate_script(
    target: Target,
    gpu: GpuSpec,
    *,
    asked: Sequence[Wanted],
    world_size: int | None = None,
    time_limit_s: float = 120.0,
    on_start: Callable[[str], None] | None = None,
) -> tuple[Estimate, ...]:
    """What a training step of ``target`` takes on ``gpu``, in each precision.

    Args:
        target: The script.
        gpu: The GPU that is imagined; this machine needs none.
        asked: Precisions and plans.
        world_size: How many processes train together, one GPU each; None leaves it to the script.
        time_limit_s: How long each run may take to its second step.
        on_start: Told of each by name before its run.

    Raises:
        CannotRunError: the script ended before its first step; the text is its own.
    """
    made: dict[str, Estimate] = {}
    best = wanted("auto", gpu=gpu)
    with predicting(gpu, world_size=world_size, time_limit_s=time_limit_s) as predict:

        def predicted(one: Wanted) -> Estimate:
            if one.name not in made:
                if on_start is not None:
                    on_start(one.name)
                made[one.name] = predict(target, one)
            return made[one.name]

        first = predicted(asked[0])
        if first.precision == OWN:
            return (first,)  # the others would be the same
        found = [(one, predicted(one)) for one in asked]
        same = next((one for one in asked if one.plan is None and one.compute == best.compute), best)
        return tuple(
            with_mixed_precision(
                estimate,
                compute=one.compute,
                best=same.compute,
                how=f"--precision {same.compute}",
                predict=lambda: predicted(same),
            )
            if one.plan is None
            else estimate
            for one, estimate in found
        )


@contextmanager
def predicting(
    gpu: GpuSpec,
    *,
    world_size: int | None = None,
    expandable_segments: bool = False,
    has_remedies: bool = True,
    time_limit_s: float = 120.0,
) -> Generator[Predict]:
    """Any number of predictions for ``gpu``, for which torch is loaded once.

    Nothing of the script's is overwritten: ``torch.save`` writes nothing, other saves go to a folder that is removed.

    Args:
        gpu: The GPU that is imagined; this machine needs none.
        world_size: How many processes train together, one GPU each; None leaves it to the script.
        expandable_segments: Whether ``PYTORCH_ALLOC_CONF`` says so.
        has_remedies: Whether to look for what to change where it does not fit.
        time_limit_s: How long each run may take to its second step.
    """
    # a GPU of this machine's would be a real CUDA tensor's, which must not be mistaken for an imaginary one's
    environment = {**plain_environment(own_environment()), "CUDA_VISIBLE_DEVICES": "", **_launched(world_size)}
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "ampwise.estimate.worker", str(theirs.fileno())]
    with tempfile.TemporaryDirectory(prefix="ampwise-estimate-") as folder, ours, theirs:
        output, numbers = Path(folder, "process"), count()
        with running(command, env=environment, cwd=None, output=output, pass_fds=[theirs.fileno()]):
            theirs.close()
            answers = ours.makefile("r", encoding="utf-8")

            def predict(target: Target, asked: Wanted) -> Estimate:
                place = Path(folder, str(next(numbers)))
                Path(place, "scratch").mkdir(parents=True)
                order = Order(
                    target=target,
                    gpu=gpu,
                    precision=asked.name,
                    compute=asked.compute,
                    plan=asked.plan,
                    world_size=world_size,
                    expandable_segments=expandable_segments,
                    has_remedies=has_remedies,
                    scratch=str(place / "scratch"),
                    result=str(place / "estimate.json"),
                    reason=str(place / "reason"),
                    time_limit_s=time_limit_s,
                )
                answer = _answer(order, ours, answers)
                if not answer:
                    raise CannotRunError(f"nothing can be estimated here: {last_lines(output)}")
                made = _estimate(order, place, status=int(answer))
                note = slow_note(gpu, asked.compute) if made.precision != OWN else None
                return made if note is None else replace(made, assumptions=(*made.assumptions, note))

            with answers:
                yield predict


def _answer(order: Order, ours: socket.socket, answers: TextIO) -> str:
    """What the worker says when the order is carried out; nothing where it has died, before or meanwhile."""
    try:
        ours.sendall(f"{order.to_json()}\n".encode())
        return answers.readline()
    except ConnectionError:
        return ""


def _launched(world_size: int | None) -> dict[str, str]:
    """What ``torchrun`` tells the first of so many processes."""
    if world_size is None:
        return {}
    local = str(min(world_size, GPUS_PER_NODE))
    zeros = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_RESTART_COUNT"), "0")
    sizes = {"WORLD_SIZE": str(world_size), "ROLE_WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": local}
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    return {**zeros, **sizes, **place}


def _estimate(order: Order, place: Path, *, status: int) -> Estimate:
    try:
        return load(order.result, Estimate)
    except RecordError:
        raise CannotRunError(_why(order, status, said=last_lines(place))) from None


def _why(order: Order, status: int, *, said: str) -> str:
    """Why the process left no estimate."""
    if Path(order.reason).exists():
        reason = Path(order.reason).read_text(encoding="utf-8")
        last = said.splitlines()[-1:] if reason.startswith("SystemExit") else []  # argparse says there what is wrong
        if status:
            return reason
        advice = next((text for kind, text in _ADVICE.items() if reason.startswith(kind)), "")
        return ": ".join(["the script ended before its first training step", reason, *last]) + advice
    if status == 0:
        return NO_STEP_FOUND
    reason = said.splitlines()[-1] if said else f"its process ended with status {status}"
    return f"the script ended on the imaginary GPU: {reason}"
