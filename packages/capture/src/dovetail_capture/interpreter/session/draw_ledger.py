"""Random numbers: calls that the replacement code makes before the graph runs."""

from __future__ import annotations

from typing import Any

from dovetail_guards.float_expr import key_of
from dovetail_guards.ranges import Range
from dovetail_guards.source import Source

from dovetail_capture.interpreter.session.input_ledger import InputLedger
from dovetail_capture.interpreter.session.input_shapes import InputShapes
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.computed_sources import DrawSource
from dovetail_capture.recipe import CallFunction


class DrawLedger:
    """Calls for random numbers, in their order, and the symbols of what they give."""

    def __init__(self, shapes: InputShapes, inputs: InputLedger) -> None:
        self.calls: list[CallFunction] = []
        self.computes_scalars = False  # are calls for NumPy's arithmetic among them?
        self.symbols: dict[str, Source] = {}  # of the ints among what they give
        self.examples: dict[str, int] = {}
        self._shapes = shapes
        self._inputs = inputs

    def draw(self, call: CallFunction) -> DrawSource:
        """Let the replacement code make a call for a random number."""
        self.calls.append(call)
        return DrawSource(len(self.calls) - 1)

    def number(
        self, example: int | float, source: DrawSource, limits: tuple[float, float] | None
    ) -> Value:
        """A random number: an input of the graph of which only the limits are known."""
        env = self._shapes.env
        size: Any
        if isinstance(example, int):
            bounds = Range() if limits is None else Range(int(limits[0]), int(limits[1]))
            expr = env.create_unbacked(bounds)
            assert expr.symbol_name is not None
            env.unchecked.add(expr.symbol_name)  # the graph may not even take it
            self.symbols[expr.symbol_name] = source
            self.examples[expr.symbol_name] = example
            size = env.symint(expr)
        else:
            keys = None if limits is None else Range(*map(key_of, limits))
            size = env.symfloat(env.create_unbacked_float(keys))
        return self._inputs.symbol(size, source, example)
