"""The machine that the bytecode runs on: decoded code, frames, and the interpreter's interface."""

from dovetail_capture.interpreter.machine.machine import Interpreter

__all__ = ["Interpreter"]
