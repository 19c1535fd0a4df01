"""The imaginary GPU: every operator on its tensors computes shapes, and the ledger takes note of their storages."""

import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

import torch
from torch import Tensor

from ampwise.compat.autograd import is_inside_backward
from ampwise.compat.dispatch import find_overload
from ampwise.compat.imaginary import (
    META,
    Place,
    computed_as_meta,
    imagine,
    is_called_by_engine,
    is_imaginary,
    is_meant_as_meta,
    is_plain_meta,
    num_storage_owners,
    place_of,
)
from ampwise.compat.operators import AroundOperators, is_collective, running_sequence_number
from ampwise.estimate.convolutions import ASSUMPTION, CONVOLUTIONS, workspace_bytes
from ampwise.estimate.dataless import is_too_large, run_without_data
from ampwise.estimate.host import HOST_OPERATORS, Unknown
from ampwise.estimate.kernels import KERNELS
from ampwise.estimate.ledger import Ledger
from ampwise.estimate.notes import Notes
from ampwise.estimate.spot import Spot
from ampwise.estimate.temporaries import MATRIX_PRODUCTS, TEMPORARIES
from ampwise.estimate.values import computed
from ampwise.interpose.imaginary_tensor import is_gpu
from ampwise.observe.dtypes import tensors_in

aten = torch.ops.aten
_MAY_MIX: Final = frozenset(
    find_overload(name)
    for name in (
        "copy_",
        "_to_copy",
        "index.Tensor",
        "index_put_",
        "index_put",
        "_index_put_impl_",
        "set_.source_Tensor",
        "_foreach_copy_",
        "_amp_update_scale_",
        "_ctc_loss.Tensor",
        "_ctc_loss_backward.Tensor",
    )
)
"""Operators that take tensors of the host beside the GPU's."""
_OWN_REFERENCES: Final = 2
"""Owners of a storage that only the engine holds: its tensor, and the question itself."""


class ImaginaryDevice:
    """Stands in every operator's place and runs those of the GPU's tensors on no data.

    What lies on the host stays real: data loaders, labels, numpy.

    Args:
        ledger: Takes note of every storage.
        notes: Takes note of what had to be assumed.
        spot: Says where the loop is.
        workspace_bytes: What each cuBLAS handle takes; 0 for none.
    """

    def __init__(self, ledger: Ledger, notes: Notes, *, spot: Callable[[Any], Spot], workspace_bytes: int = 0) -> None:
        self.num_operators = 0
        self.ledger = ledger
        self._notes = notes
        self._spot = spot
        self._workspace_bytes = workspace_bytes
        self._has_workspace: set[bool] = set()
        self._is_casting = False

    @contextmanager
    def entered(self) -> Generator[None]:
        """Let this thread's operators run on the imaginary GPU where they ask for it."""
        with ExitStack() as stack:
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))  # torch's own
            stack.enter_context(AroundOperators(self._around))
            yield

    def in_thread(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a new thread, which torch starts without any mode."""
        with self.entered():
            return proceed(*args, **kwargs)

    @contextmanager
    def casting(self) -> Generator[None]:
        """What is made within is a copy in another format that autocast makes."""
        self._is_casting = True
        try:
            yield
        finally:
            self._is_casting = False

    def _around(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = list(tensors_in(*args, *kwargs.values()))
        places = [place_of(one) for one in tensors]
        if Place.GPU in places or (kwargs and self._is_for_gpu(kwargs.get("device"))):
            return self._on_gpu(func, args, kwargs, tensors)
        if Place.HOST not in places:
            return run_without_data(func, args, kwargs) if is_too_large(func, args, kwargs) else func(*args, **kwargs)
        if func in HOST_OPERATORS:
            with suppress(Unknown):
                return self._answer(func, args, kwargs)
        return run_without_data(func, args, kwargs)

    def _is_for_gpu(self, device: Any) -> bool:
        if device == META:
            return bool(self.ledger.storages) and not is_meant_as_meta()
        return is_gpu(device)

    def _answer(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the host is told; the answer may run operators of its own on the GPU."""
        with AroundOperators(self._around):
            return HOST_OPERATORS[func](args, kwargs, self._notes)

    def _on_gpu(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> Any:
        self.num_operators += 1
        if func in HOST_OPERATORS:
            with suppress(Unknown):
                return self._answer(func, args, kwargs)
        is_from_host = bool(tensors) and not any(is_imaginary(one) for one in tensors)
        if not is_from_host:
            _refuse_mixture(func, tensors)
        if func in MATRIX_PRODUCTS:
            self._take_workspace(func)
        result = _placed(self._run(func, args, kwargs))
        outputs = [one for one in tensors_in(result) if is_imaginary(one)]
        for one in outputs:
            if one.layout is not torch.strided:
                raise NotImplementedError(
                    f"{func}: memory of {one.layout} tensors is not known, so the estimate ends here"
                )
            self.ledger.see(
                one.untyped_storage(),
                lambda: self._spot(func),
                node=running_sequence_number,
                is_cast=self._is_casting,
                is_from_host=is_from_host,
            )
        if func in CONVOLUTIONS:
            self.ledger.convolve(workspace_bytes(func, args, result))
            self._notes.assume(ASSUMPTION)
        if func in TEMPORARIES:
            self.ledger.pass_through(TEMPORARIES[func](args), self._spot(func))
        if not is_collective(func):  # which leaves a process's own numbers as they are, where nobody else sends any
            computed(func, args, kwargs, outputs)
        return result

    def _run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is aten.copy_.default and not is_imaginary(args[1]):
            return args[0]  # from the host: no data moves
        if func is aten.add.Tensor and self._is_accumulating(args):
            func = aten.add_.Tensor
        keywords = {name: None if name == "generator" else value for name, value in kwargs.items()}
        if keywords.get("device") is not None:
            keywords["device"] = META
            keywords.pop("pin_memory", None)
        try:
            with computed_as_meta():
                return KERNELS.get(func, func)(*args, **keywords)
        except NotImplementedError as error:
            raise NotImplementedError(
                f"{func}: torch cannot tell the size of its result without data, so the estimate ends here"
            ) from error

    def _take_workspace(self, func: Any) -> None:
        """The forward pass and autograd's thread have a handle each."""
        thread = is_inside_backward()
        if self._workspace_bytes and thread not in self._has_workspace:
            self._has_workspace.add(thread)
            self.ledger.keep(self._workspace_bytes, self._spot(func))

    def _is_accumulating(self, args: tuple[Any, ...]) -> bool:
        """Whether the engine sums two gradients, which it does in place where no mode is on and nobody else looks."""
        if len(args) < 2 or not isinstance(args[1], Tensor) or not is_called_by_engine(sys._getframe(1)):  # noqa: SLF001
            return False
        first, second = args[0], args[1]
        storage = self.ledger.of(first)
        return (
            storage is not None
            and storage.node not in {None, running_sequence_number()}
            and first.shape == second.shape
            and first.dtype == second.dtype
            and num_storage_owners(first) <= _OWN_REFERENCES
        )


def _placed(made: Any) -> Any:
    """What the meta device's kernel gave, on the GPU."""
    if isinstance(made, Tensor):
        if made.layout is not torch.strided:
            raise NotImplementedError(
                f"the memory of tensors of layout {made.layout} is not known: the estimate ends here"
            )
        return imagine(made) if is_plain_meta(made) else made
    return type(made)(_placed(one) for one in made) if type(made) in {tuple, list} else made


def _refuse_mixture(func: Any, tensors: list[Tensor]) -> None:
    """What CUDA raises where tensors of the host meet the GPU's; single numbers may.

    Raises:
        RuntimeError: they meet.
    """
    on_host = [one for one in tensors if not is_imaginary(one) and one.dim() > 0]
    if on_host and func not in _MAY_MIX and any(is_imaginary(one) for one in tensors):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"(in {func})"
        )
