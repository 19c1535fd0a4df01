"""The estimate of a training step that is a Python function, made in a process of its own."""

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from ampwise._base.errors import AmpwiseError, CannotRunError, UsageError
from ampwise.estimate.gpu import gpu_spec
from ampwise.estimate.mixed_precision import with_mixed_precision
from ampwise.estimate.order import OWN, GpuSpec
from ampwise.estimate.wanted import Wanted, by_plan, wanted
from ampwise.plan.find import AnyPlan, find_plan
from ampwise.records.estimate import Estimate


def estimate_memory(
    step_fn: Callable[[], Any],
    *,
    device: str,
    precision: str = "fp32",
    plan: AnyPlan | None = None,
    num_calls: int = 2,
) -> Estimate:
    """How much GPU memory ``step_fn`` takes on a GPU that need not be here.

    The function is called in a forked copy of this process, where ``"cuda"`` is the imagined GPU: it moves its model
    and data there and makes an optimizer's step. What it changes, changes in the copy alone. With a ``precision`` of
    16 bits its forward passes run under autocast, unless it has one of its own.

    Args:
        step_fn: Makes one training step; takes nothing, and what it gives is not looked at.
        device: The GPU: ``"h100-80gb"``.
        precision: ``auto``, ``fp32``, ``tf32``, ``bf16``, ``fp16``, a preset or a plan's file.
        plan: In its place: a plan, or what names one.
        num_calls: How often it is called; the optimizer's state is made in the first call.

    Raises:
        UsageError: no such GPU or precision, both a precision and a plan, or ``step_fn`` cannot be called.
        CannotRunError: the function raised (the text is its own), CUDA is in use in this process, or this system
            cannot fork.
    """
    if not callable(step_fn):
        raise UsageError(f"estimate_memory was given a {type(step_fn).__name__}; give a function that makes one step")
    if plan is not None and precision != "fp32":
        raise UsageError("the plan says the precision already, as its default; leave precision out")
    gpu = gpu_spec(device)
    want = wanted(precision, gpu=gpu) if plan is None else by_plan("plan", find_plan(plan))
    if torch.cuda.is_initialized():
        raise CannotRunError("CUDA is in use in this process already; estimate before the first tensor on the GPU")
    if "fork" not in multiprocessing.get_all_start_methods():
        raise CannotRunError("this system cannot fork a process; write the step as a script: ampwise estimate step.py")
    made = _in_copy(step_fn, gpu, want, num_calls)
    if want.plan is not None or made.precision == OWN:
        return made
    best = wanted("auto", gpu=gpu)
    return with_mixed_precision(
        made,
        compute=want.compute,
        best=best.compute,
        how=f'precision="{best.compute}"',
        predict=lambda: _in_copy(step_fn, gpu, best, num_calls),
    )


def _in_copy(step_fn: Callable[[], Any], gpu: GpuSpec, want: Wanted, num_calls: int) -> Estimate:
    """The estimate that a forked copy of this process makes."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sending, step_fn, gpu, want, num_calls))
    process.start()
    sending.close()
    try:
        made = receiving.recv()
    except EOFError:
        process.join()
        made = f"its process ended with status {process.exitcode}"
    finally:
        process.join()
        receiving.close()
    if isinstance(made, Estimate):
        return made
    raise CannotRunError(f"no estimate: {made}")


def _child(sending: Connection, step_fn: Callable[[], Any], gpu: GpuSpec, want: Wanted, num_calls: int) -> None:
    try:
        sending.send(_imagine(step_fn, gpu, want, num_calls))
    except AmpwiseError as error:
        sending.send(str(error))
    except Exception as error:  # noqa: BLE001 # whatever the user's function raised is told in the other process
        last = traceback.extract_tb(error.__traceback__)[-1]
        sending.send(f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})")
    finally:
        sending.close()


def _imagine(step_fn: Callable[[], Any], gpu: GpuSpec, want: Wanted, num_calls: int) -> Estimate:
    from ampwise.estimate.canary import check_mechanism
    from ampwise.estimate.imagine import imagined
    from ampwise.plan.file import parse_plan
    from ampwise.runner.inject import inject
    from ampwise.runner.spec import Lists
    from ampwise.runtime.hardware.device import Choice

    check_mechanism()
    plan = None if want.plan is None else parse_plan(want.plan)
    lists = Lists.CUDA if plan is None else plan.lists
    choice = Choice(precision=want.compute, reason="asked for", slow_factor=None, device="cuda:0")
    with imagined(gpu) as imagination, inject(choice=choice, plan=plan, lists=lists) as injected:
        for _call in range(num_calls):
            step_fn()
        name = want.name
        if injected.left_alone is not None:
            name = OWN
            imagination.notes.assume(f"{OWN} is the function's own mixed precision: {injected.left_alone}")
        for note in injected.notes:
            imagination.notes.assume(note)
        if not imagination.ledger.storages:
            raise CannotRunError('the function puts nothing on the GPU: move its model and data to "cuda"')
        return imagination.estimate(precision=name)
