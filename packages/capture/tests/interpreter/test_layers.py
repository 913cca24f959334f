"""What the interpreter's folders see of one another: the machine by its Protocol alone."""

from __future__ import annotations

import ast
from pathlib import Path

import dovetail_capture.interpreter
import pytest

INTERPRETER = Path(dovetail_capture.interpreter.__file__).parent
# What only those above may import, by folder.
_ABOVE = {
    "values": ("protocols", "library", "opcodes", "session", "bytecode_interpreter", "capture"),
    "session": ("protocols", "library", "opcodes", "bytecode_interpreter", "capture"),
    "protocols": ("library", "opcodes", "bytecode_interpreter", "capture"),
    "library": ("opcodes", "bytecode_interpreter", "capture"),
    "opcodes": ("library", "bytecode_interpreter", "capture"),
}


def _imports(path: Path) -> set[str]:
    """The modules of the interpreter that a file imports when it is loaded, or for types."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
            found.update(f"{node.module}.{name.name}" for name in node.names)
    prefix = "dovetail_capture.interpreter."
    return {name.removeprefix(prefix) for name in found if name.startswith(prefix)}


@pytest.mark.parametrize("folder", _ABOVE)
def test_nothing_imports_what_is_above_it(folder: str) -> None:
    for path in sorted((INTERPRETER / folder).rglob("*.py")):
        above = {n for n in _imports(path) if n.partition(".")[0] in _ABOVE[folder]}
        above -= {"library.handler_types", "library.handler_types.Handler"}  # a type
        assert not above, f"{folder}/{path.name} imports {sorted(above)}"
