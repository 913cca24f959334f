"""The opcode table: every instruction of the running Python, and who handles it."""

from __future__ import annotations

from dovetail_capture.interpreter.machine.decoding import VERSION, Handler, Row
from dovetail_capture.interpreter.opcodes import (
    container_opcodes,
    exceptions,
    jumps,
    names,
    operator_opcodes,
)

ROWS: tuple[Row, ...] = (
    *names.ROWS,
    *jumps.ROWS,
    *operator_opcodes.ROWS,
    *container_opcodes.ROWS,
    *exceptions.ROWS,
)


def handlers(version: tuple[int, int]) -> dict[str, Handler]:
    """Instruction name -> handler for one Python version."""
    return {row.name: row.handler for row in ROWS if row.versions[0] <= version <= row.versions[1]}


HANDLERS = handlers(VERSION)
