"""The main module of the process that estimates: ``python -m ampwise.estimate.worker FILENO``.

It loads torch once and copies itself for each order, so that every script runs in a process that has run no other.
"""

import gc
import os
import socket
import sys
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ampwise._base.errors import AmpwiseError
from ampwise.estimate.order import OWN, Order, order_from_json
from ampwise.records.estimate import Estimate
from ampwise.records.files import save
from ampwise.runner.script import ScriptEnd, run_target

if TYPE_CHECKING:
    from ampwise.estimate.imagine import Imagination


def serve(fileno: int) -> int:
    """Carry out each order that comes through a socket in a copy of this process, and answer with its status."""
    _load()
    with socket.socket(fileno=fileno) as channel, channel.makefile("r", encoding="utf-8") as orders:
        while text := orders.readline():
            copy = os.fork()
            if copy == 0:
                break
            _, status = os.waitpid(copy, 0)
            channel.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        else:
            return 0
    return _in_copy(text)


def _load() -> None:
    """What every run needs, and takes seconds to import."""
    imagine = import_module("ampwise.estimate.imagine")
    for name in ("ampwise.runner.inject", *imagine.MODULES):
        import_module(name)
    gc.freeze()  # else a copy's collector would write to, and so copy, every page of this process


def _in_copy(text: str) -> int:
    """Carry out an order; what the script prints is kept beside its result."""
    place = Path(order_from_json(text).result).parent
    for fileno, name in ((1, "stdout"), (2, "stderr")):
        with Path(place, name).open("wb") as file:
            os.dup2(file.fileno(), fileno)
    return main(text)


def main(text: str) -> int:
    """Run the script on an imaginary GPU, and write the estimate to ``order.result``, or why there is none."""
    order = order_from_json(text)
    try:
        estimate = _run(order)
    except AmpwiseError as error:
        Path(order.reason).write_text(str(error), encoding="utf-8")
        return error.exit_status
    if estimate is not None:
        save(estimate, order.result)
    return 0


def _run(order: Order) -> Estimate | None:
    from ampwise.estimate.allocator import AllocatorSettings
    from ampwise.estimate.canary import check_mechanism
    from ampwise.estimate.imagine import imagined
    from ampwise.estimate.limits import StepLimit, ended_after, leave_memory_to_others
    from ampwise.estimate.untouched import files_untouched
    from ampwise.observe.events import BUS
    from ampwise.plan.file import parse_plan
    from ampwise.runner.inject import inject
    from ampwise.runner.spec import Lists
    from ampwise.runtime.hardware.device import Choice

    leave_memory_to_others()
    check_mechanism()
    plan = None if order.plan is None else parse_plan(order.plan)
    choice = Choice(precision=order.compute, reason="asked for", slow_factor=None, device="cuda:0")
    settings = AllocatorSettings(expandable_segments=order.expandable_segments)
    with ExitStack() as stack:
        imagination = stack.enter_context(imagined(order.gpu, settings=settings, world_size=order.world_size))
        stack.enter_context(files_untouched(order.scratch))
        injected = stack.enter_context(
            inject(choice=choice, plan=plan, lists=Lists.CUDA if plan is None else plan.lists)
        )
        limit = StepLimit(BUS, imagination.ledger, num_steps=order.num_steps)
        stack.enter_context(limit.watching())
        reason, end_error = None, None
        try:
            with ended_after(order.time_limit_s):
                end = run_target(order.target)
            reason, end_error = _reason(end), end.error
        except AmpwiseError as error:
            if limit.num_steps == 0:
                raise
            reason = str(error)
        if injected.left_alone is not None:
            imagination.notes.assume(f"{OWN} is the script's own mixed precision: {injected.left_alone}")
            order = replace(order, precision=OWN)
        for note in injected.notes:
            imagination.notes.assume(note)
        if reason is not None and limit.num_steps == 0 and not isinstance(end_error, NotImplementedError):
            Path(order.reason).write_text(reason, encoding="utf-8")
            return None
        if reason is None and limit.num_steps == 0:
            return None
        return _picture(imagination, order, reason=reason if limit.num_steps < order.num_steps else None)


def _reason(end: ScriptEnd) -> str | None:
    """What ended the script early, with the user's line; None where it ended well."""
    if end.status == 0:
        return None
    from ampwise.observe.frames import is_users_file

    error = end.error
    said = f"status {end.status}" if error is None else f"{type(error).__name__}: {error}"
    place, trace = "", None if error is None else error.__traceback__
    while trace is not None:
        if is_users_file(trace.tb_frame.f_code.co_filename):
            place = f" (at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{said.splitlines()[0]}{place}"


def _picture(imagination: "Imagination", order: Order, *, reason: str | None) -> Estimate:
    estimate = imagination.estimate(
        precision=order.precision, is_lower_bound=reason is not None, has_remedies=order.has_remedies
    )
    if reason is None:
        return estimate
    from ampwise.estimate.rules_of_thumb import Sizes, estimate_by_thumb

    said = [f"a lower bound: the script ended early: {reason}"]
    num_params = imagination.whereabouts.num_parameters
    if num_params:
        thumb = estimate_by_thumb(Sizes(num_params=num_params), precision=order.compute)
        said.append(
            f"by rule of thumb its {num_params:,} parameters take {thumb.allocated_bytes:,} bytes with Adam, "
            "activations left out"
        )
    return replace(estimate, assumptions=(*said, *estimate.assumptions))


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1])))
