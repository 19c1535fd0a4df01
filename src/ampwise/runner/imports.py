"""Does something right after a module was imported, without importing it."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Undo = Callable[[], None]


def after_import(name: str, callback: Callable[[], None]) -> Undo:
    """Call ``callback`` once ``name`` has been imported, at once if it has been already; the undo forgets it."""
    if name in sys.modules:
        callback()
        return lambda: None
    finder = _Finder(name, callback)
    sys.meta_path.insert(0, finder)
    return finder.remove


class _Finder(MetaPathFinder):
    """Finds one module as the finders after it do, and wraps its loader."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Then(spec.loader, self._imported)
                return spec
        return None

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _imported(self) -> None:
        self.remove()
        self._callback()


class _Then(Loader):
    """A module's own loader, then the callback."""

    def __init__(self, loader: Loader, callback: Callable[[], None]) -> None:
        self._loader = loader
        self._callback = callback

    def __getattr__(self, name: str) -> object:
        # find_spec's callers may ask for is_package, get_code and others before the module is executed.
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps its own loader: pkgutil, inspect and pickle ask for it.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._callback()
