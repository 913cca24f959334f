"""Tells when a module has been imported: names are put into it then, and it is never imported for
their sake."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

Imported = Callable[[ModuleType], None]


class _TellingLoader(Loader):
    """Another loader, that tells when it has run the module."""

    def __init__(self, loader: Loader, imported: Imported) -> None:
        self._loader = loader
        self._imported = imported

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module is to look as if its own loader had made it.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._imported(module)


class ImportWatch(MetaPathFinder):
    """Calls `imported(module)` for each of `names`: at once, or when the program imports it."""

    def __init__(self, names: Iterable[str], imported: Imported) -> None:
        self._waiting = set(names)
        self._imported = imported

    def start(self) -> None:
        """Tell of the modules that are imported already, and watch for the others."""
        for name in sorted(self._waiting):
            module = sys.modules.get(name)
            if module is not None:
                self._waiting.discard(name)
                self._imported(module)
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Watch no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that is waited for, with a loader that tells."""
        if fullname not in self._waiting:
            return None
        self._waiting.discard(fullname)  # so that the others are asked now
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _TellingLoader(spec.loader, self._imported)
        return spec
