"""The opcode table covers every instruction of every supported Python."""

from __future__ import annotations

import dis
import sys

import pytest
from dovetail_capture.interpreter.opcodes.exceptions import BREAKS_BY_DESIGN, break_by_design
from dovetail_capture.interpreter.opcodes.table import HANDLERS, ROWS, handlers

# Instructions that the compiler's assembler uses between its passes; no code object holds them.
_PSEUDO = {
    "SETUP_FINALLY", "SETUP_CLEANUP", "SETUP_WITH", "POP_BLOCK", "JUMP", "JUMP_NO_INTERRUPT",
    "LOAD_SUPER_METHOD", "LOAD_ZERO_SUPER_METHOD", "LOAD_ZERO_SUPER_ATTR", "STORE_FAST_MAYBE_NULL",
    "JUMP_IF_FALSE", "JUMP_IF_TRUE",
}  # fmt: skip


def _is_real(name: str) -> bool:
    if name in _PSEUDO or name.startswith("INSTRUMENTED"):
        return False
    # LOAD_METHOD and LOAD_CLOSURE became pseudo instructions in 3.12 and 3.13.
    return dis.opmap[name] < 256


def test_every_opcode_of_this_python_is_handled_or_breaks_by_design() -> None:
    missing = [name for name in dis.opmap if _is_real(name) and name not in HANDLERS]
    assert not missing


def test_breaks_by_design_are_exactly_the_listed_ones() -> None:
    breaking = {name for name, handler in HANDLERS.items() if handler is break_by_design}
    assert breaking == set(BREAKS_BY_DESIGN)


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)])
def test_no_opcode_has_two_handlers_on_one_python(version: tuple[int, int]) -> None:
    names = [row.name for row in ROWS if row.versions[0] <= version <= row.versions[1]]
    assert len(names) == len(set(names))
    assert len(handlers(version)) == len(names)


def test_this_python_is_one_of_the_supported() -> None:
    assert (3, 11) <= sys.version_info[:2] <= (3, 13)
