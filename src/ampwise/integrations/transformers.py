"""A callback for Transformers' ``Trainer``: telemetry in its logs, the findings at its end, and plans."""

import atexit
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

# not from transformers itself: a type checker would read all of its models
from transformers.trainer import Trainer
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from ampwise._base.errors import UsageError
from ampwise.examine.watch import ALL
from ampwise.integrations.telemetry import Telemetry
from ampwise.plan.find import AnyPlan, find_plan
from ampwise.runtime.step.planned import apply_to_all, scale_of_plan


class AmpwiseCallback(TrainerCallback):
    """Tells what ``ampwise doctor`` would tell of a training, and puts a plan on its model.

    Example::

        with AmpwiseCallback(save="run.json").on(trainer):
            trainer.train()

    The trainer's logs get ``ampwise/loss_scale``, ``ampwise/skipped_steps``, ``ampwise/gradient_norm`` and
    ``ampwise/underflow_share`` (see ``Telemetry.scalars``) beside the loss. When the training ends, by itself, by an
    exception or by Ctrl-C, the findings are shown, the recording is saved and the plan is taken off.

    ``Trainer(callbacks=[AmpwiseCallback()])`` does, too, but a ``Trainer`` tells its callbacks of no exception. So the
    findings of a training that one ended are shown when the process ends, or the next training begins, or at
    ``close``. And its other loggers have written before they see the figures, which then stand in
    ``trainer.state.log_history`` alone.

    Args:
        plan: put on the model from the training's begin to its end: a plan, or what names one (see ``apply_plan``).
        instruments: those of ``ampwise.watch``, for the first steps only, which they slow; ``()`` for none.
        steps: how many steps they watch; None: all.
        every: the gradients of one step in so many are measured.
        save: the file that the recording goes to, which ``ampwise report`` shows.

    Attributes:
        telemetry: after a training, ``telemetry.diagnosis`` holds the findings.

    Raises:
        UsageError: there is no such plan or instrument, a number is less than 1, or the file's folder is not there.
    """

    def __init__(
        self,
        *,
        plan: AnyPlan | None = None,
        instruments: Iterable[str] = ALL,
        steps: int | None = 20,
        every: int = 10,
        save: str | Path | None = None,
    ) -> None:
        self._plan = None if plan is None else find_plan(plan)
        self._take_off: Callable[[], None] | None = None
        self._tells = True
        self._told_before: BaseException | None = None
        self.telemetry = Telemetry(instruments=instruments, steps=steps, every=every, save=save)

    @contextmanager
    def on(self, trainer: Trainer) -> Generator[Self]:
        """Serve ``trainer`` within the block, before its loggers, whatever ends the block."""
        handler = trainer.callback_handler
        handler.callbacks.insert(0, self)
        try:
            yield self
        except BaseException as error:
            self._end(error)
            raise
        finally:
            handler.callbacks[:] = [one for one in handler.callbacks if one is not self]
            self.close()

    def close(self) -> None:
        """End what an exception left: show the findings, save the recording, take the plan off, detach.

        After a training that ended by itself there is nothing to do.
        """
        self._end(self._what_ended_it())

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put the plan on the model and begin to watch.

        Raises:
            UsageError: the plan does not fit the model, or needs a loss scale, and the trainer has none.
        """
        del args, control
        self.close()
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        if self._plan:
            if scale_of_plan(self._plan) is not None and getattr(optimizer, "scaler", None) is None:
                raise UsageError(
                    "the plan computes in fp16, whose gradients vanish without a loss scale, and this Trainer has "
                    "none: give it TrainingArguments(fp16=True) on a GPU, or a plan in bf16"
                )
            inner = getattr(optimizer, "optimizer", optimizer)
            self._take_off = apply_to_all((model,), self._plan, optimizers=(inner,))
        self._tells = state.is_world_process_zero
        self._told_before = _last_told()
        atexit.register(self.close)  # nobody else tells this callback that the training raised
        self.telemetry.start(model, optimizer)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Put the figures beside the loss, for the trainer's history and for the loggers behind."""
        del args, control, kwargs
        if self.telemetry.is_running and logs is not None and "loss" in logs:
            figures = {f"ampwise/{name}": value for name, value in self.telemetry.scalars().items()}
            logs.update(figures)
            state.log_history[-1].update(figures)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Show the findings, save the recording, take the plan off."""
        del args, state, control, kwargs
        self._end(None)

    def _what_ended_it(self) -> BaseException | None:
        """The exception being handled, or the one that Python showed since the training began."""
        told = _last_told()
        return sys.exc_info()[1] or (None if told is self._told_before else told)

    def _end(self, error: BaseException | None) -> None:
        atexit.unregister(self.close)
        take_off, self._take_off = self._take_off, None
        try:
            self.telemetry.finish(error, tells=self._tells)
        finally:
            self.telemetry.close()
            self._told_before = None
            if take_off is not None:
                take_off()


def _last_told() -> BaseException | None:
    """The exception that Python, or a notebook, showed last."""
    return getattr(sys, "last_value", None)
