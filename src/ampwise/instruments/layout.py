"""Writes down the modules of the models that a loop calls."""

from typing import Any, Self

from ampwise.observe.modules import Call, ModuleName, ModuleStack
from ampwise.records.layout import LayoutRecord, ModuleEntry


class LayoutWatch:
    """Records every module of each model that is called while it is entered: those that are not called, too."""

    def __init__(self, *, stack: ModuleStack | None = None) -> None:
        names = stack.names if stack is not None else None
        self._stack = ModuleStack(names, listeners=(self,))
        self._names: dict[int, ModuleName] = {}

    def __enter__(self) -> Self:
        self._stack.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.__exit__(*exc)

    @property
    def slowed_steps(self) -> frozenset[int]:
        """None: a model is looked at once, at its first call."""
        return frozenset()

    def entered(self, call: Call, args: tuple[Any, ...]) -> None:  # noqa: ARG002 - a listener's signature
        """Note the modules of a model at its first call."""
        if call.name is None or id(call.name) in self._names:
            return
        for module in call.module.modules():
            name = self._stack.names.name_of(module, parent=call.module)
            if name is not None:
                self._names[id(name)] = name

    def left(self, call: Call, args: tuple[Any, ...], output: Any) -> None:
        """Nothing: what there was to see was seen when the call began."""

    def record(self) -> LayoutRecord:
        """What was seen, with the names that modules have by now."""
        return LayoutRecord(
            modules=tuple(
                ModuleEntry(root=name.root.name, path=name.inner, name=name.path, kind=name.kind)
                for name in self._names.values()
            )
        )
