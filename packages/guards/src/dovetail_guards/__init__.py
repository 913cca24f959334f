"""Symbolic sizes, value sources and native guards."""

from dovetail_guards.check_clauses import check
from dovetail_guards.evaluate import MISSING, FrameView, evaluate
from dovetail_guards.explain import GuardFailure, clause_text
from dovetail_guards.guard_set import GuardSet

__version__ = "0.1.0"

__all__ = ["MISSING", "FrameView", "GuardFailure", "GuardSet", "check", "clause_text", "evaluate"]
