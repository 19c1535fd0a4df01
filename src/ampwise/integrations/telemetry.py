"""Watches a training that another library runs: figures for its logger; at its end, a recording and what is wrong."""

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampwise._base.errors import UsageError
from ampwise.doctor.diagnose import diagnose
from ampwise.examine.watch import ALL, Models, Watch
from ampwise.formats.table import get_format
from ampwise.interpose.internal import internal
from ampwise.observe.events import BUS, EventBus, StepOutcome, StepStarted
from ampwise.observe.statistics import sample
from ampwise.records.diagnosis import Diagnosis
from ampwise.records.files import save_recording
from ampwise.records.recording import Recording
from ampwise.runner.instruments import rows_of

_SAMPLE: Final = 1024
"""Elements of a gradient whose sizes are looked at."""
_NORMAL: Final = float(get_format("fp16").smallest_normal)
_WIDE: Final = frozenset({torch.float32, torch.bfloat16, torch.float16})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gradients:
    """What was measured of one step's gradients, the loss scale taken out, on their device."""

    norm: Tensor
    sample: Tensor | None
    """Some of their numbers; None where none can be taken."""


class Telemetry:
    """What is worth knowing of a training while it runs, and of the whole when it has ended.

    Law: nothing waits for the device but ``scalars`` and ``finish``; after ``finish`` or ``close`` nothing is attached.

    Args:
        instruments: those of ``ampwise.watch``, for the first steps only, which they slow.
        steps: how many steps they watch; None: all. Losses, skipped steps and loss scales are recorded in any case.
        every: the gradients of one step in so many are measured for ``scalars``.
        save: the file that the recording goes to when the training ends.
        show: takes the findings' text when the training ends; by default it is written to stderr.
        bus: where the loop's events are published.

    Raises:
        UsageError: there is no such instrument, a number is less than 1, or the file's folder is not there.
    """

    def __init__(
        self,
        *,
        instruments: Iterable[str] = ALL,
        steps: int | None = 20,
        every: int = 10,
        save: str | Path | None = None,
        show: Callable[[str], object] | None = None,
        bus: EventBus = BUS,
    ) -> None:
        for name, number in (("steps", steps), ("every", every)):
            if number is not None and number < 1:
                raise UsageError(f"{name}={number}: give a number of steps of 1 or more")
        self._instruments = tuple(row.name for row in rows_of(instruments))
        self._num_watched, self._every = steps, every
        if save is not None and not Path(save).absolute().parent.is_dir():
            raise UsageError(
                f"save={str(save)!r}: there is no such folder; make it, or name a file in one that is there"
            )
        self._save, self._bus = None if save is None else Path(save), bus
        self._show = show or _say
        self._undo = ExitStack()
        self._watch: Watch | None = None
        self.diagnosis: Diagnosis | None = None
        self._forget()

    @property
    def is_running(self) -> bool:
        """Whether a training is being watched."""
        return self._watch is not None

    def start(self, model: Models | None, optimizer: Optimizer | None) -> None:
        """Watch from the next step on; a training that was never finished is let go."""
        self.close()
        self._forget()
        with ExitStack() as undo:
            self._watch = undo.enter_context(Watch(model, optimizer, instruments=self._instruments, bus=self._bus))
            undo.callback(self._bus.subscribe(StepStarted, self._on_start))
            undo.callback(self._bus.subscribe(StepOutcome, self._on_step))
            self._undo = undo.pop_all()

    def scalars(self) -> dict[str, float]:
        """The latest figures, as far as there are any, as numbers: waits for the device, so ask when a logger writes.

        ``gradient_norm`` is of all gradients of the optimizer that stepped, the loss scale taken out, as they were when
        it stepped: after clipping. With a loss scale there are ``loss_scale``, ``skipped_steps`` so far, and
        ``underflow_share``: of the gradients that are not zero, those that fp16 holds at that scale with fewer digits
        than others, or loses.
        """
        with internal():
            return {name: float(value) for name, value in self._figures.items()}

    @property
    def figures(self) -> dict[str, float | Tensor]:
        """``scalars`` without a wait: 0-dim tensors where a number is on its way."""
        return dict(self._figures)

    def finish(self, error: BaseException | None = None, *, tells: bool = True) -> Recording | None:
        """End watching; give what was seen, save it and show what is wrong with it. None where nothing was watched.

        Args:
            error: what ended the training.
            tells: False on ranks that are not to speak: nothing is saved or shown.
        """
        watch = self._watch
        if watch is None:
            return None
        self._detach(error)
        recording = watch.recording
        if tells:
            if self._save is not None:
                save_recording(recording, self._save)
            self.diagnosis = diagnose(recording)
            self._show(self._words(self.diagnosis))
        return recording

    def close(self) -> None:
        """Detach, and keep nothing of what was seen."""
        self._detach(None)

    def _detach(self, error: BaseException | None) -> None:
        undo, self._undo, self._watch = self._undo, ExitStack(), None
        undo.__exit__(type(error) if error is not None else None, error, None)

    def _forget(self) -> None:
        self._num_steps = 0
        self._measured: _Gradients | None = None
        self._figures: dict[str, float | Tensor] = {}

    def _words(self, diagnosis: Diagnosis) -> str:
        where = f"; the recording is in {self._save}, ampwise report shows it" if self._save is not None else ""
        return f"ampwise: {self._num_steps} steps seen{where}\n{diagnosis}\n"

    def _on_start(self, event: StepStarted) -> None:
        if self._num_steps % self._every == 0 and event.optimizer is not None:
            with internal(), torch.no_grad():
                self._measured = _measure(event.optimizer)

    def _on_step(self, event: StepOutcome) -> None:
        with internal(), torch.no_grad():
            if event.scale is not None:
                scale, stepped = event.scale, event.stepped
                self._figures["loss_scale"] = scale.detach().clone() if isinstance(scale, Tensor) else scale
                # added up where it lies
                skipped = ~stepped if isinstance(stepped, Tensor) else not stepped
                self._figures["skipped_steps"] = self._figures.get("skipped_steps", 0.0) + skipped
            measured, self._measured = self._measured, None
            if measured is not None:
                self._figures["gradient_norm"] = measured.norm if event.grad_norm is None else event.grad_norm.detach()
                if event.scale is not None and measured.sample is not None:
                    self._figures["underflow_share"] = _underflow_share(measured.sample, event.scale)
        self._num_steps += 1
        if self._num_steps == self._num_watched and self._watch is not None:
            self._watch.rest()


def _say(text: str) -> None:
    sys.stderr.write(text)  # whichever it is by then: a notebook and a test put their own in place


def _measure(optimizer: Optimizer) -> _Gradients | None:
    """The gradients that ``optimizer`` is about to use; None where it has none of a kind that can be measured."""
    gradients = [
        one.grad
        for group in optimizer.param_groups
        for one in group["params"]
        if one.grad is not None and one.grad.dtype in _WIDE and one.grad.layout is torch.strided and one.grad.numel()
    ]
    if not gradients:
        return None
    norm = torch.nn.utils.get_total_norm(gradients)
    own = [sample(one, limit=_SAMPLE).float() for one in gradients if type(one) is Tensor and one.device == norm.device]
    numbers = torch.cat(own) if own else None
    divisor = getattr(optimizer, "grad_scale", None)  # a fused optimizer takes the loss scale out by itself
    if isinstance(divisor, Tensor):
        norm = norm / divisor
        numbers = None if numbers is None else numbers / divisor
    return _Gradients(norm=norm, sample=numbers)


def _underflow_share(numbers: Tensor, scale: float | Tensor) -> Tensor:
    is_small = (numbers * scale).abs() < _NORMAL
    is_held = numbers != 0
    return (is_small & is_held).sum() / is_held.sum().clamp(min=1)
