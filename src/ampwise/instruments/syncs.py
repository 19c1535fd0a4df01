"""Finds the places of a loop where Python waits for the device, or would on a GPU."""

import linecache
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Self

import torch

from ampwise.compat.operators import Operator
from ampwise.compat.syncs import SYNC_WARNING, is_copy_to_host, sync_of, watch_cuda_syncs
from ampwise.interpose.data import NEXT_BATCH
from ampwise.interpose.host_reads import REPR, SHOW_WARNING, SYNCHRONIZE, TO, TO_CPU, TO_LIST
from ampwise.interpose.internal import is_internal
from ampwise.interpose.numpy_view import NUMPY
from ampwise.interpose.seam import Undo, intercept, undo_all
from ampwise.observe.dtypes import tensors_in
from ampwise.observe.events import EventBus, ForwardStarted, StepOutcome
from ampwise.observe.frames import Line
from ampwise.observe.modules import ModuleStack
from ampwise.observe.operators import OperatorSampler, Spot
from ampwise.observe.residence import Residence
from ampwise.records.syncs import SyncKind, SyncPlace, SyncRecord

_TO: Final = '.to("cpu")'
_READS: Final = (
    (TO_CPU, SyncKind.COPY, ".cpu()"),
    (TO, SyncKind.COPY, _TO),
    (NUMPY, SyncKind.COPY, ".numpy()"),
    (TO_LIST, SyncKind.COPY, ".tolist()"),
    (REPR, SyncKind.PRINT, "print"),
)
_WORDS: Final = (
    (".item()", ".item()"),
    ("print(", "print"),
    ("float(", "float()"),
    ("int(", "int()"),
    ("bool(", "bool()"),
    ("while ", "while"),
    ("if ", "if"),
    ("assert ", "assert"),
    ("max(", "max()"),
    ("min(", "min()"),
)
"""What a line of source that reads one number says, and what that read is called."""


class _Key(NamedTuple):
    spot: Spot
    line: Line | None
    kind: SyncKind
    call: str
    is_real: bool


@dataclass(slots=True)
class _Tally:
    count: int = 0
    ns: int = 0
    steps: set[int] = field(default_factory=set[int])


class SyncWatch:
    """Records every wait for the device in some steps, while entered in the thread that trains.

    On an accelerator a wait is an operator that asks for numbers or whose result's size depends on them, a copy to the
    host, ``torch.cuda.synchronize``, and whatever else CUDA's sync debug mode warns of. On a CPU nothing waits; what
    would on a GPU is counted, for the tensors that would be there: the weights, the model's inputs, and all that is
    made of them in the step (``observe.residence``). Reading data in a DataLoader is never counted. ``.to(device)`` is
    counted on a CPU only where the line itself says ``"cpu"``.

    Args:
        bus: Where the loop's events are published.
        steps: Indices of the steps to watch; None: all.
        stack: Says which module is being called; by default one of its own.
    """

    def __init__(
        self, bus: EventBus, *, steps: Collection[int] | None = (1, 2), stack: ModuleStack | None = None
    ) -> None:
        self._bus = bus
        self._sampler = OperatorSampler(bus, self, steps=steps, stack=stack)
        self._residence = Residence()
        self._undo = ExitStack()
        self._rows: list[Undo] = []
        self._tallies: dict[_Key, _Tally] = defaultdict(_Tally)
        self._is_reading = False
        """Within a call that was named already: what it asks for is its own."""
        self._has_warned = False
        self._used_debug_mode = False
        self._fault: str | None = None

    def __enter__(self) -> Self:
        self._undo.callback(self._stop)
        self._undo.enter_context(self._sampler)
        # after the sampler's own, which decides whether the next step is watched
        self._undo.callback(self._bus.subscribe(StepOutcome, self._on_step))
        self._undo.callback(self._bus.subscribe(ForwardStarted, self._on_forward))
        self._start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    @property
    def slowed_steps(self) -> frozenset[int]:
        """Indices of the steps whose time says nothing."""
        return frozenset(self._sampler.seen_steps)

    def record(self) -> SyncRecord:
        """What was seen so far."""
        is_real = any(key.is_real for key in self._tallies)
        places = [_place(key, tally) for key, tally in self._tallies.items() if key.is_real == is_real]
        return SyncRecord(
            steps=self._sampler.seen_steps,
            places=tuple(sorted(places, key=lambda place: (place.stall_ms or 0, place.count), reverse=True)),
            is_real=is_real,
            with_debug_mode=self._used_debug_mode,
            cost_ms=self._sampler.cost_ms,
            note=self._fault or self._sampler.note,
        )

    def around(
        self, operator: Operator, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operator; see whether it waits, and where its result would be."""
        self._has_warned = False
        start = time.perf_counter_ns()
        result = proceed(*args, **kwargs)
        ns = time.perf_counter_ns() - start
        if self._fault is None:
            try:
                self._look(operator, args, kwargs, result, ns)
            except Exception as error:  # noqa: BLE001 # watching must not end somebody's training
                self._fault = f"waits were not counted to the end: {type(error).__name__}: {error}"
        return result

    def _look(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, ns: int) -> None:
        inputs = list(tensors_in(args, *kwargs.values()))
        there = [tensor for tensor in inputs if self._residence.has(tensor)]
        if there and not self._is_reading:
            sync = sync_of(operator.name, args, kwargs)
            if sync is None and is_copy_to_host(operator.name, args, result):
                sync = SyncKind.COPY, "copy to the host"
            is_real = any(tensor.device.type != "cpu" for tensor in there)
            if sync is not None and (is_real or not self._residence.is_copied(there[0])):
                self._add(operator.name, *sync, ns=ns, is_real=is_real)
            elif self._has_warned:
                self._add(operator.name, SyncKind.OTHER, operator.name, ns=ns, is_real=True)
        self._residence.follow(operator, inputs, list(tensors_in(result)))

    def _add(self, op: str, kind: SyncKind, call: str, *, ns: int, is_real: bool) -> None:
        tally = self._tallies[_Key(self._sampler.spot(op), self._sampler.line(), kind, call, is_real)]
        tally.count += 1
        tally.ns += ns
        tally.steps.add(self._sampler.step)

    def _on_forward(self, event: ForwardStarted) -> None:
        if self._sampler.is_here:
            for tensor in tensors_in(event.args, *event.kwargs.values()):
                self._residence.add(tensor)

    def _on_step(self, _: StepOutcome) -> None:
        self._residence.forget_copies()
        if self._sampler.is_watching:
            self._start()
        else:
            self._stop()

    def _start(self) -> None:
        if self._rows or not self._sampler.is_watching:
            return
        self._rows = [
            *(intercept(row, partial(self._around_read, kind, call)) for row, kind, call in _READS),
            intercept(SYNCHRONIZE, self._around_synchronize),
            intercept(NEXT_BATCH, self._around_data),
        ]
        undo = watch_cuda_syncs()
        if undo is not None:
            self._used_debug_mode = True
            self._rows += [undo, intercept(SHOW_WARNING, self._around_warning), _warn_every_time()]

    def _stop(self) -> None:
        undo_all(self._rows)
        self._rows = []

    def _around_read(
        self, kind: SyncKind, call: str, proceed: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if self._is_reading or not self._sampler.is_here or is_internal():
            return proceed(tensor, *args, **kwargs)
        is_counted = self._reads(tensor, call, args, kwargs)
        if call == _TO and not is_counted:
            return proceed(tensor, *args, **kwargs)
        self._is_reading = True
        start = time.perf_counter_ns()
        try:
            return proceed(tensor, *args, **kwargs)
        finally:
            self._is_reading = False
            if is_counted:
                is_real = tensor.device.type != "cpu"
                self._add("", kind, call, ns=time.perf_counter_ns() - start, is_real=is_real)

    def _reads(self, tensor: torch.Tensor, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the call brings numbers over from where ``tensor`` is or would be."""
        if call == _TO and not self._goes_to_host(tensor, args, kwargs):
            return False
        if not self._residence.has(tensor):
            return False
        return tensor.device.type != "cpu" or self._residence.copy_to_host(tensor)

    def _goes_to_host(self, tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        target = kwargs.get("device", args[0] if args else None)
        if not isinstance(target, (str, torch.device)) or torch.device(target).type != "cpu":
            return False
        if tensor.device.type != "cpu":
            return True
        text = _text(self._sampler.line())
        return '"cpu"' in text or "'cpu'" in text

    def _around_synchronize(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter_ns()
        result = proceed(*args, **kwargs)
        if self._sampler.is_here and not is_internal():
            ns = time.perf_counter_ns() - start
            self._add("", SyncKind.EXPLICIT, "torch.cuda.synchronize()", ns=ns, is_real=True)
        return result

    def _around_data(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._sampler.is_here:
            return proceed(*args, **kwargs)
        before, self._is_reading = self._is_reading, True
        try:
            return proceed(*args, **kwargs)
        finally:
            self._is_reading = before

    def _around_warning(self, proceed: Callable[..., Any], message: Any, *args: Any, **kwargs: Any) -> Any:
        if not str(message).startswith(SYNC_WARNING):
            return proceed(message, *args, **kwargs)
        self._has_warned = True
        return None


def _warn_every_time() -> Undo:
    """Let no filter of the script's swallow the sync debug mode's warnings until the undo is called."""
    warnings.filterwarnings("always", message=SYNC_WARNING)
    ours = warnings.filters[0]

    def undo() -> None:
        if ours in warnings.filters:
            warnings.filters.remove(ours)  # pyright: ignore[reportAttributeAccessIssue] # a list, whatever its stub says

    return undo


def _place(key: _Key, tally: _Tally) -> SyncPlace:
    call = key.call
    if key.kind is SyncKind.SCALAR:
        text = _text(key.line)
        call = next((name for word, name in _WORDS if word in text), call)
    return SyncPlace(
        site=key.spot.site(key.line),
        kind=key.kind,
        call=call,
        count=tally.count,
        num_steps=len(tally.steps),
        stall_ms=tally.ns / 1e6 if key.is_real else None,
    )


def _text(line: Line | None) -> str:
    return "" if line is None else linecache.getline(line.file, line.line)
