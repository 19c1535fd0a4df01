"""Lightning's loops with ampwise: precision plugins that choose, scale and protect, and a callback that explains."""

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import Precision as FabricPrecision
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins import Precision
from torch import Tensor
from torch.nn import Module
from torch.optim import LBFGS, Optimizer

from ampwise._base.errors import UsageError
from ampwise.compat.lightning import between_closure_and_step
from ampwise.compat.optim import has_gradients
from ampwise.compat.tree import map_tensors
from ampwise.examine.watch import ALL
from ampwise.integrations.telemetry import Telemetry
from ampwise.integrations.training_loop import LoopPrecision
from ampwise.plan.find import AnyPlan
from ampwise.runtime.scaling.loss_scale import LossScale

_LIGHTNINGS: dict[str | None, Any] = {"bf16": "bf16-mixed", "fp16": "16-mixed"}
"""The names of our precisions that Lightning has other names for."""


class _Plugin:
    """What both plugins hold, and what they save and give back."""

    def __init__(
        self,
        precision: str = "auto",
        *,
        plan: AnyPlan | None = None,
        loss_scale: LossScale | str | float | None = None,
    ) -> None:
        self.loop = LoopPrecision(precision, plan=plan, loss_scale=loss_scale)
        self.precision = _LIGHTNINGS.get(precision, "32-true")

    def state_dict(self) -> dict[str, Any]:
        """The loss scale's state, as torch's scaler has it."""
        return self.loop.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a loss scale that this plugin or Lightning's own saved."""
        self.loop.load_state_dict(state_dict)

    def teardown(self) -> None:
        """Take the plan back off the models."""
        self.loop.close()


class AmpwisePrecision(_Plugin, Precision):
    """A precision for Lightning's ``Trainer``: ``Trainer(plugins=[AmpwisePrecision("auto")])``.

    Beside what Lightning's own mixed precision does: ``auto`` takes what the hardware is good at; a plan says per
    module what is computed in which format; a skipped step leaves BatchNorm's statistics as they were; fused optimizers
    are clipped too; a loss scale at its minimum warns with the parameters' names. Checkpoints of Lightning's own plugin
    load.

    Args:
        precision: ``auto``, ``fp32``, ``tf32``, ``bf16`` or ``fp16``.
        plan: in the place of a precision: a plan, or what names one. It holds in ``training_step`` and its like, as in
            ``ampwise.autocast(plan=)``; one that keeps updates or asks for fp8 holds in ``forward``s, as in
            ``apply_plan``.
        loss_scale: another than the precision's own: a loss scale, the name of one, or a fixed number.

    Attributes:
        loop: the parts: ``loop.choice`` tells which precision was taken and why, ``loop.scaler`` is the scaler.

    Raises:
        UsageError: there is no such precision, plan or loss scale.
    """

    def connect(
        self, model: Module, optimizers: list[Optimizer], lr_schedulers: list[Any]
    ) -> tuple[Module, list[Optimizer], list[Any]]:
        """Take the model; it is on its device by now."""
        wrapped = getattr(model, "module", model)
        taken = wrapped if isinstance(wrapped, LightningModule) else model
        self.loop.take(taken, tuple(optimizers), calls_forward=False)
        self.precision = _LIGHTNINGS.get(self.loop.decide().precision, "32-true")
        return model, optimizers, lr_schedulers

    @contextmanager
    def train_step_context(self) -> Generator[None]:
        """Around ``training_step``."""
        with self.loop.forward(trains=True):
            yield

    def forward_context(self) -> AbstractContextManager[Any]:
        """Around every other forward pass."""
        return self.loop.forward(trains=False)

    def pre_backward(self, tensor: Tensor, module: LightningModule) -> Tensor:
        """Scale the loss."""
        return super().pre_backward(self.loop.scale(tensor), module)

    def optimizer_step(self, optimizer: Any, model: LightningModule, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Run the closure, which goes backward, then unscale, clip, and step unless a gradient is not finite.

        Raises:
            UsageError: an optimizer that evaluates the loss itself is to step with a loss scale.
        """
        if not self.loop.scaler.is_enabled():
            return super().optimizer_step(optimizer, model=model, closure=closure, **kwargs)
        _refuse_closures(optimizer)
        loss = closure()
        if loss is None and model.automatic_optimization:  # training_step returned None: nothing went backward
            return loss
        if model.automatic_optimization and not has_gradients(optimizer):  # a pass for statistics only, as SWA's last
            between_closure_and_step(self, model, optimizer)
            return self.loop.step_freely(optimizer, **kwargs)
        self.loop.unscale(optimizer)
        between_closure_and_step(self, model, optimizer)
        return self.loop.step(optimizer, **kwargs)


class AmpwiseCallback(Callback):
    """Tells what ``ampwise doctor`` would tell of a training: ``Trainer(callbacks=[AmpwiseCallback()])``.

    The trainer's loggers get ``ampwise/loss_scale``, ``ampwise/skipped_steps``, ``ampwise/gradient_norm`` and
    ``ampwise/underflow_share`` (see ``Telemetry.scalars``) each ``log_every_n_steps``. When the training ends, by
    itself, by an exception or by Ctrl-C, the findings are shown and the recording is saved.

    Args:
        instruments: those of ``ampwise.watch``, for the first steps only, which they slow; ``()`` for none.
        steps: how many steps they watch; None: all.
        every: the gradients of one step in so many are measured.
        save: the file that the recording goes to, which ``ampwise report`` shows.

    Attributes:
        telemetry: after a training, ``telemetry.diagnosis`` holds the findings.

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
    ) -> None:
        self.telemetry = Telemetry(instruments=instruments, steps=steps, every=every, save=save)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to watch; the sanity check has passed by now."""
        self.telemetry.start(pl_module, trainer.optimizers[0] if trainer.optimizers else None)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,  # noqa: ARG002 - Lightning's signature
        batch: Any,  # noqa: ARG002 - Lightning's signature
        batch_idx: int,  # noqa: ARG002 - Lightning's signature
    ) -> None:
        """Hand the figures to the trainer's logger when it is going to write; nothing waits for the device."""
        interval: int = getattr(trainer, "log_every_n_steps", 0)
        if interval and trainer.global_step % interval == 0:
            figures = {f"ampwise/{name}": value for name, value in self.telemetry.figures.items()}
            pl_module.log_dict(figures, on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002 - Lightning's signature
        """Show the findings, save the recording."""
        self.telemetry.finish(tells=trainer.is_global_zero)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002 - Lightning's signature
        """The same, and what ended the training."""
        self.telemetry.finish(exception, tells=trainer.is_global_zero)


class AmpwiseFabricPrecision(_Plugin, FabricPrecision):
    """The same for Lightning's ``Fabric``: ``Fabric(plugins=[AmpwiseFabricPrecision("auto")])``.

    The precision is decided at the first forward pass, when the models are on their device. Clip by
    ``fabric.clip_gradients``, which unscales; in fp16 with ``error_if_nonfinite=False``, else it raises where a step is
    to be skipped. Fabric does not call ``teardown``; call ``loop.close()`` to take a plan back off a model that lives
    on.

    Args, Attributes, Raises:
        as ``AmpwisePrecision``.
    """

    def convert_module(self, module: Module) -> Module:
        """Take the model; its parameters stay in fp32."""
        self.loop.take(module)
        return module

    def forward_context(self) -> AbstractContextManager[Any]:
        """Around the forward pass of every model, and ``fabric.autocast()``."""
        context = self.loop.forward(trains=True)
        self.precision = _LIGHTNINGS.get(self.loop.precision, "32-true")
        return context

    def convert_output(self, data: Any) -> Any:
        """Hand floating-point outputs out in the default dtype, as Lightning does."""
        default = torch.get_default_dtype()
        return map_tensors(lambda one: one.to(default) if one.is_floating_point() else one, data)

    def backward(self, tensor: Tensor, model: Module | None, *args: Any, **kwargs: Any) -> None:
        """Go backward from the scaled loss."""
        super().backward(self.loop.scale(tensor), model, *args, **kwargs)

    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any:
        """Step unless a gradient is not finite.

        Raises:
            UsageError: an optimizer that evaluates the loss itself is to step with a loss scale.
        """
        if self.loop.scaler.is_enabled():
            _refuse_closures(optimizer)
        return self.loop.step(optimizer, **kwargs)

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Make the gradients true, before they are clipped."""
        self.loop.unscale(optimizer)


def _refuse_closures(optimizer: Any) -> None:
    if isinstance(getattr(optimizer, "optimizer", optimizer), LBFGS):
        raise UsageError(
            "LBFGS evaluates the loss several times a step, which Lightning cannot do with a loss scale: train it in "
            "bf16 or fp32, or in a loop of your own with ampwise.TrainStep"
        )
