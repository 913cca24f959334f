"""The state of one capture attempt."""

from __future__ import annotations

from types import CodeType
from typing import Any

from dovetail_capture.interpreter.graph.recorder import Recorder
from dovetail_capture.interpreter.session import ledgers
from dovetail_capture.interpreter.session.covered_lines import Offsets, is_measured
from dovetail_capture.interpreter.session.guard_ledger import GuardLedger, SourceTable
from dovetail_capture.interpreter.session.input_ledger import InputLedger
from dovetail_capture.interpreter.session.input_shapes import InputShapes
from dovetail_capture.interpreter.values.tensors import PendingChecks
from dovetail_capture.options import CaptureOptions


class Session:
    """Everything that one attempt gathers, each kind in a ledger of its own. A new attempt starts
    from a new session."""

    def __init__(
        self, code: CodeType, globals_: dict[str, Any], recorder: Recorder, options: CaptureOptions
    ) -> None:
        self.code = code
        self.globals_ = globals_
        self.recorder = recorder
        self.exports = options.exports
        self.fullgraph = options.fullgraph
        self.shapes = InputShapes(options)
        self.sources = SourceTable()
        self.guards = GuardLedger()
        self.objects = ledgers.ObjectLedger()
        self.modes = ledgers.ModeLedger()
        self.inputs = InputLedger(
            options, recorder, self.shapes, self.sources, self.guards, self.objects, self.modes
        )
        self.draws = ledgers.DrawLedger(self.shapes, self.inputs)
        self.iterators = ledgers.IteratorLedger()
        self.effects = ledgers.EffectLedger()
        self.late_reads = ledgers.LateReadLedger()
        self.checks = PendingChecks()  # of the data of tensors
        # What a program learns that asks whether it is compiled, and whether one did.
        self.compiling, self.asked_compiling = True, False
        # Are functions of autograd that nothing differentiates part of the graph around them, and
        # was one of them a node instead?
        self.inlines_functions, self.applied_functions = False, False
        # The instructions that were gone through, if a tool that measures coverage looks on
        # (an exported graph visits nothing).
        self.covered: Offsets | None = {} if is_measured() and not options.exports else None
        self.selects = False  # is a checkpoint's `context_fn` asked what it selects?
        if options.fullgraph or options.captures_data:
            recorder.data_env = self.shapes.env
        functions_off = self.modes.functions_off
        recorder.functions_off = lambda: bool(functions_off)
        recorder.close_asked = self.shapes.env.close_asked

    def let_go(self) -> None:
        """Part the values from the objects they stand for."""
        self.objects.let_go()
        self.guards.forget_constants()
