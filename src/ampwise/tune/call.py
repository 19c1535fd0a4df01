"""``ampwise.tune_script()``: the search for a plan, from a program."""

import tempfile
from pathlib import Path

from ampwise.plan.find import AnyPlan, find_plan
from ampwise.records.tuning import TuningRecord
from ampwise.runner.script import Target
from ampwise.tune.question import Question, format_called
from ampwise.tune.tune import Tuner


def tune_script(
    script: str,
    *arguments: str,
    target: str = "fp16",
    tolerance: float | None = None,
    plan: AnyPlan | None = None,
    num_steps: int = 30,
    seed: int = 0,
    budget_min: float | None = None,
    device: str | None = None,
) -> TuningRecord:
    """Which modules of a training script have to stay in fp32, found by running it; ``ampwise tune`` from a program.

    The script runs in processes of its own and its files are left alone. ``record.plan`` is the plan as TOML, or None
    where ``record.outcome`` says why there is none.

    Args:
        script: The file.
        *arguments: The script's own.
        target: The format to compute in: ``fp16``, ``bf16``, ``fp8``; emulated on a CPU.
        tolerance: How far the mean loss may be from fp32's, as a share of it; None allows what another seed does to
            it, and 1 % at least.
        plan: One to begin with, whose rules stay in front; or what names it.
        num_steps: Of each run; the losses of their second half are compared.
        seed: Added to the script's own seeds; the next one confirms what was found.
        budget_min: Minutes after which no further run begins.
        device: ``cpu``, ``cuda:1``; None takes the current one.

    Raises:
        UsageError: an argument makes no sense, or ``plan`` does not fit the model.
        PlanError: there is no such plan, or it has mistakes.
        CannotRunError: the script's loss cannot be judged: there is none, or its noise is larger than the tolerance.
    """
    question = Question(
        low=format_called(target),
        tolerance=tolerance,
        base=None if plan is None else find_plan(plan),
        num_steps=num_steps,
        seed=seed,
        budget_min=budget_min,
        device=device,
    )
    with tempfile.TemporaryDirectory(prefix="ampwise-tune-") as scratch:
        return Tuner(
            target=Target(path=script, argv=arguments), question=question, saved=str(Path(scratch, "saved"))
        ).tune()
