"""What PRIMS promises, checked where an operator's meaning is run."""

from __future__ import annotations


class PrimsError(RuntimeError):
    """A graph breaks a rule of PRIMS."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise PrimsError(message)
