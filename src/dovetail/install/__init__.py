"""`install()`: torch.compile and its kin are Dovetail's, in a program that names only torch.

Nothing of PyTorch is touched before; `uninstall()` gives everything back. What libraries only ask
or tell (stance, marks, graph breaks, the class of compiled modules, settings) is honoured where it
is, with or without this; here what starts a compiler is replaced. A module that the program has not
imported is not imported for its sake: its names are put in when the program imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from dovetail import logs
from dovetail.install.imports import ImportWatch
from dovetail.install.torch_names import LATE, Replacements, late_names, torch_names


class _Installation:
    """What is replaced while it is in force."""

    def __init__(self) -> None:
        self._replacements = Replacements()
        self._watch = ImportWatch(LATE, self._imported)
        for owner, name, value in torch_names():
            self._replacements.replace(owner, name, value)
        self._watch.start()
        logs.write_torch_debug()
        if logs.torch_asks():
            logs.apply_torch_logs()

    def _imported(self, module: ModuleType) -> None:
        for name, value in late_names(module):
            self._replacements.replace(module, name, value)

    def end(self) -> None:
        """Give everything back."""
        self._watch.stop()
        self._replacements.undo()


_IN_FORCE: list[_Installation] = []  # one at most


def install() -> None:
    """Let torch.compile, nn.Module.compile, torch.compiler and what libraries call of
    torch._dynamo compile by Dovetail. A second call changes nothing."""
    if not _IN_FORCE:
        _IN_FORCE.append(_Installation())


def uninstall() -> None:
    """Give back what `install` replaced. What was compiled meanwhile stays Dovetail's."""
    while _IN_FORCE:
        _IN_FORCE.pop().end()


@contextmanager
def installed() -> Iterator[None]:
    """`install()` for a `with` block."""
    before = bool(_IN_FORCE)
    install()
    try:
        yield
    finally:
        if not before:
            uninstall()
