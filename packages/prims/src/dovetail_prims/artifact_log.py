"""Texts that a compiler can show of its work, each through a logger of `logging` by its name.

The logger of the artifact "guards" is `dovetail.guards`. It tells something only where its own
level, or that of the logger `dovetail`, is set: a root logger at DEBUG asks for nothing here, as
most of the texts are long. Where it is off, nothing is made for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

ROOT = "dovetail"


@dataclass(frozen=True)
class ArtifactText:
    """What a record tells: the artifact's name, where in the user's program it is from (`file:line
    in function`), and its text. `suffix` is that of a file which holds the text, `value` what the
    text is of, if that is a boundary value."""

    artifact: str
    place: str
    text: str
    suffix: str = "txt"
    value: object = None


def logger_of(artifact: str) -> logging.Logger:
    """The logger of an artifact or a component."""
    return logging.getLogger(f"{ROOT}.{artifact}")


def is_wanted(artifact: str, level: int = logging.INFO) -> bool:
    """Does somebody ask for an artifact, or for what a component says at a level?"""
    asked = _level_of(f"{ROOT}.{artifact}") or _level_of(ROOT)
    return 0 < asked <= level and logging.root.manager.disable < level


def _level_of(name: str) -> int:
    """The level of a logger that somebody has made; 0 for any other. (`getLogger` would make it,
    and calls builtins that a program may have replaced.)"""
    level: int = getattr(logging.root.manager.loggerDict.get(name), "level", 0)
    return level


def tell(
    artifact: str,
    place: str,
    text: Callable[[], str],
    *,
    payload: object = None,
    suffix: str = "txt",
    value: object = None,
    level: int = logging.INFO,
) -> None:
    """Log a text, if it is asked for. The record has the artifact's name as `artifact`, as `told`
    an `ArtifactText` and as `payload` what is given here, or the same."""
    if not is_wanted(artifact, level):
        return
    try:
        shown = text()
    except Exception as error:  # what cannot be shown is no error of the program
        shown = f"(not printable: {error!r})"
    told = ArtifactText(artifact, place, shown, suffix, value)
    more = {"artifact": artifact, "payload": told if payload is None else payload, "told": told}
    logger_of(artifact).log(level, "%s", shown, extra=more, stacklevel=2)
