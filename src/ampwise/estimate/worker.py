"""The main module of an estimate's process: ``python -m ampwise.estimate.worker ORDER``."""

import sys
from contextlib import ExitStack
from pathlib import Path

from ampwise.estimate.order import Order, order_from_json
from ampwise.records.estimate import Estimate
from ampwise.records.files import save
from ampwise.runner.script import ScriptEnd, run_target


def main(text: str) -> int:
    """Run the script on an imaginary GPU, write the estimate to ``order.result``, and give the script's status."""
    order = order_from_json(text)
    end, estimate = _run(order)
    if estimate is not None:
        save(estimate, order.result)
    return end.status


def _run(order: Order) -> tuple[ScriptEnd, Estimate | None]:
    from ampwise.estimate.allocator import AllocatorSettings
    from ampwise.estimate.canary import check_mechanism
    from ampwise.estimate.imagine import imagined
    from ampwise.observe.events import BUS
    from ampwise.runner.inject import inject
    from ampwise.runner.sandbox import redirect_saves
    from ampwise.runner.watch import StepWatch
    from ampwise.runtime.device import Choice

    check_mechanism()
    choice = Choice(precision=order.precision, reason="asked for", slow_factor=None, device="cuda:0")
    settings = AllocatorSettings(expandable_segments=order.expandable_segments)
    with ExitStack() as stack:
        imagination = stack.enter_context(imagined(order.gpu, settings=settings))
        stack.enter_context(redirect_saves(order.scratch, folder=str(Path.cwd())))
        injected = stack.enter_context(inject(choice=choice))
        watch = StepWatch(BUS, stop_after=order.num_steps)
        watch.start()
        stack.callback(watch.close)
        end = run_target(order.target)
        if injected.left_alone is not None:
            imagination.notes.assume(f"the script's own mixed precision: {injected.left_alone}")
        if watch.num_steps == 0 and end.status == 0:
            return end, None
        is_cut_short = end.status != 0 and watch.num_steps < order.num_steps
        return end, imagination.estimate(precision=order.precision, is_lower_bound=is_cut_short)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
