"""The one place that knows TF32's two switches.

torch >= 2.9 has a new switch (``fp32_precision``, an operator's own or inherited) and an old one (``allow_tf32``,
``set_float32_matmul_precision``). Setting the new one leaves the old one behind, and reading the old one then
raises (pytorch#179445) in whatever asks: a script, Lightning's hint, ``cudnn.flags``.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar, cast

import torch

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tf32State:
    """What TF32's switches say; an old switch that cannot be read is None."""

    matmul: str
    """``ieee``, ``tf32``, or ``none`` (torch's default, which is IEEE for products)."""
    conv: str
    rnn: str
    old_matmul: str | None
    """``torch.get_float32_matmul_precision()``."""
    old_allow_matmul: bool | None
    """``torch.backends.cuda.matmul.allow_tf32``."""
    old_allow_cudnn: bool | None
    """``torch.backends.cudnn.allow_tf32``."""

    @property
    def clash(self) -> str | None:
        """Which old switches disagree with the new ones, so that reading them raises; None if none does."""
        readings = {
            "torch.get_float32_matmul_precision()": self.old_matmul,
            "torch.backends.cuda.matmul.allow_tf32": self.old_allow_matmul,
            "torch.backends.cudnn.allow_tf32": self.old_allow_cudnn,
        }
        raising = [name for name, reading in readings.items() if reading is None]
        if not raising:
            return None
        return (
            f"TF32 was set through both of torch's interfaces, and reading {' and '.join(raising)} now raises "
            f"(products: {self.matmul}, convolutions: {self.conv}, recurrent layers: {self.rnn}); "
            "set it through one of them only, fp32_precision or allow_tf32"
        )


def tf32_state() -> Tf32State:
    """What both switches say now, and whether they clash; never raises."""
    return Tf32State(
        matmul=_MATMUL.read(),
        conv=_CONV.read(),
        rnn=_RNN.read(),
        old_matmul=_ask(torch.get_float32_matmul_precision),
        old_allow_matmul=_ask(lambda: cast("bool", torch.backends.cuda.matmul.allow_tf32)),
        old_allow_cudnn=_ask(lambda: torch.backends.cudnn.allow_tf32),
    )


@contextmanager
def tf32_enabled(on: bool) -> Generator[None]:  # noqa: FBT001 -- the switch's own value
    """Within it, CUDA's fp32 products, convolutions and recurrent layers all use TF32, or none does.

    Set through the new switch; an old one that could be read before still can be, and agrees. The switches are
    the process's: every thread sees them. On leaving they say what they said before.
    """
    before = tf32_state()
    readings = {switch: switch.read() for switch in _OPERATORS}
    own = {switch: _own(switch, parent) for switch, parent in _PARENTS.items()}
    try:
        _set_new(on=on)
        _align_old(before, on=on)
        yield
    finally:
        _restore_old(before)
        _CUDA.write(own[_CUDA])
        for switch in _OPERATORS:
            if switch.read() != readings[switch] or switch in _WRITTEN_BY_OLD:
                switch.write(own[switch])


@contextmanager
def matmul_tf32(on: bool) -> Generator[None]:  # noqa: FBT001 -- the switch's own value
    """Within it, CUDA's fp32 products use TF32 or not; for a measurement that reads no old switch."""
    before = _own(_MATMUL, _CUDA)
    _MATMUL.write("tf32" if on else "ieee")
    try:
        yield
    finally:
        _MATMUL.write(before)


def _set_new(*, on: bool) -> None:
    """Set what the operators inherit, and an operator only where it does not: that can be undone exactly."""
    wanted = "tf32" if on else "ieee"
    _CUDA.write(wanted)
    for switch in (_MATMUL, _CONV, _RNN):
        if switch.read() != wanted:
            switch.write(wanted)


def _align_old(before: Tf32State, *, on: bool) -> None:
    """Make an old switch that could be read before agree with the new one; a clash found here is the user's.

    Off takes ``highest``, which clears oneDNN's share of ``high`` and ``medium`` too; else it would clash.
    """
    now = tf32_state()
    readable = before.old_matmul is not None and before.old_allow_matmul is not None
    if readable and (now.old_matmul is None or now.old_allow_matmul is None):
        if on:
            torch.backends.cuda.matmul.allow_tf32 = True
        else:
            torch.set_float32_matmul_precision("highest")
    if before.old_allow_cudnn is not None and now.old_allow_cudnn is None:
        torch.backends.cudnn.allow_tf32 = on
    _set_new(on=on)


def _restore_old(before: Tf32State) -> None:
    """Put the old switches back, which writes operators' own new ones: those are put back after it."""
    now = tf32_state()
    if before.old_matmul is not None and now.old_matmul != before.old_matmul:
        torch.set_float32_matmul_precision(before.old_matmul)
    if before.old_allow_cudnn is not None and now.old_allow_cudnn != before.old_allow_cudnn:
        torch.backends.cudnn.allow_tf32 = before.old_allow_cudnn


def _ask(read: Callable[[], T]) -> T | None:
    """What an old switch says; None where torch raises because the new one says something else."""
    try:
        return read()
    except RuntimeError:
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _Switch:
    """One ``fp32_precision`` attribute."""

    path: str
    """Its owner, below ``torch``."""

    def read(self) -> str:
        """What holds for it: its own value, else what it inherits."""
        return attrgetter(self.path)(torch).fp32_precision

    def write(self, value: str) -> None:
        attrgetter(self.path)(torch).fp32_precision = value


def _own(switch: _Switch, parent: _Switch) -> str:
    """What ``switch`` itself was set to, as far as torch tells: equal to its parent counts as inherited."""
    reading = switch.read()
    return "none" if reading == parent.read() else reading


_GENERIC = _Switch("backends")
_CUDA = _Switch("backends.cudnn")
_MATMUL = _Switch("backends.cuda.matmul")
_CONV = _Switch("backends.cudnn.conv")
_RNN = _Switch("backends.cudnn.rnn")
_MKLDNN = _Switch("backends.mkldnn")
_MKLDNN_MATMUL = _Switch("backends.mkldnn.matmul")
_OPERATORS = (_MATMUL, _CONV, _RNN, _MKLDNN_MATMUL)
_WRITTEN_BY_OLD = (_MATMUL, _MKLDNN_MATMUL)
"""What ``set_float32_matmul_precision`` writes. Convolutions' default (TF32, unless a parent says otherwise) cannot be
written back, so theirs and recurrent layers' are written only where they differ."""
_PARENTS = {_CUDA: _GENERIC, _MATMUL: _CUDA, _CONV: _CUDA, _RNN: _CUDA, _MKLDNN_MATMUL: _MKLDNN}
