"""The imaginary GPU: every operator on its tensors computes shapes, and the ledger takes note of their storages."""

import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter, tree_map_only

from ampwise.compat.autograd import is_inside_backward
from ampwise.compat.imaginary import (
    META,
    computed_as_meta,
    imagine,
    is_called_by_engine,
    is_imaginary,
    is_plain_meta,
    num_storage_owners,
)
from ampwise.compat.operators import AroundOperators, running_sequence_number
from ampwise.estimate.host import HOST_OPERATORS, Unknown
from ampwise.estimate.ledger import Ledger
from ampwise.estimate.notes import Notes
from ampwise.estimate.temporaries import MATRIX_PRODUCTS, TEMPORARIES
from ampwise.estimate.values import computed
from ampwise.interpose.imaginary_tensor import is_gpu
from ampwise.records.site import Site

aten = torch.ops.aten
_MAY_MIX: Final = frozenset(
    {
        aten.copy_.default,
        aten._to_copy.default,  # noqa: SLF001 # an operator's name
        aten.index.Tensor,
        aten.index_put_.default,
        aten.index_put.default,
        aten._index_put_impl_.default,
        aten.set_.source_Tensor,
    }
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
        site: Says where the loop is.
        workspace_bytes: What each cuBLAS handle takes; 0 for none.
    """

    def __init__(self, ledger: Ledger, notes: Notes, *, site: Callable[[str], Site], workspace_bytes: int = 0) -> None:
        self.num_operators = 0
        self.ledger = ledger
        self._notes = notes
        self._site = site
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

    @contextmanager
    def casting(self) -> Generator[None]:
        """What is made within is a copy in another format that autocast makes."""
        self._is_casting = True
        try:
            yield
        finally:
            self._is_casting = False

    def _around(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = [one for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)]
        goes_to_gpu = is_gpu(kwargs.get("device"))
        if not goes_to_gpu and not any(is_imaginary(one) for one in tensors):
            return func(*args, **kwargs)
        self.num_operators += 1
        answer = HOST_OPERATORS.get(func)
        if answer is not None:
            try:
                return answer(args, kwargs, self._notes)
            except Unknown:
                pass
        _refuse_mixture(func, tensors)
        site = self._site(str(func))
        if func in MATRIX_PRODUCTS:
            self._take_workspace(site)
        made = self._run(func, args, kwargs)
        is_from_host = goes_to_gpu and bool(tensors) and not any(is_imaginary(one) for one in tensors)
        result = tree_map_only(Tensor, _imagined, made)
        outputs = [one for one in tree_iter(result) if isinstance(one, Tensor) and is_imaginary(one)]
        self._note(outputs, site, is_from_host=is_from_host)
        if func in TEMPORARIES:
            self.ledger.pass_through(TEMPORARIES[func](args), site)
        computed(func, args, kwargs, outputs)
        return result

    def _run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is aten.copy_.default and not is_imaginary(args[1]):
            return args[0]  # from the host: no data moves
        if func is aten.add.Tensor and self._is_accumulating(args):
            func = aten.add_.Tensor
        keywords = {name: value for name, value in kwargs.items() if name != "generator"}
        if keywords.get("device") is not None:
            keywords["device"] = META
            keywords.pop("pin_memory", None)
        with computed_as_meta():
            return func(*args, **keywords)

    def _note(self, outputs: list[Tensor], site: Site, *, is_from_host: bool) -> None:
        node = running_sequence_number()
        for one in outputs:
            self.ledger.see(one.untyped_storage(), site, node=node, is_cast=self._is_casting, is_from_host=is_from_host)

    def _take_workspace(self, site: Site) -> None:
        """The forward pass and autograd's thread have a handle each."""
        thread = is_inside_backward()
        if self._workspace_bytes and thread not in self._has_workspace:
            self._has_workspace.add(thread)
            self.ledger.keep(self._workspace_bytes, site)

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


def _imagined(tensor: Tensor) -> Tensor:
    return imagine(tensor) if is_plain_meta(tensor) else tensor


def _refuse_mixture(func: Any, tensors: list[Tensor]) -> None:
    """What CUDA raises where tensors of the host meet the GPU's; single numbers may.

    Raises:
        RuntimeError: they meet.
    """
    on_host = [one for one in tensors if not is_imaginary(one) and one.dim() > 0]
    if on_host and func not in _MAY_MIX and any(is_imaginary(one) for one in tensors):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
            f"{on_host[0].device}! (in {func})"
        )
