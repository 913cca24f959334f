"""How a frame is to be captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail_capture.knobs import ON_ERROR, OnError


def _no_function(function: Any) -> bool:
    return False


@dataclass(frozen=True)
class Learned:
    """What earlier captures of the same code found out.

    `sizes` holds `(str(source), dim)` of sizes that changed between calls, which become symbols;
    dimension -1 means the int or float itself. With `plain_floats`, floats stay numbers all the
    same. `replaced` holds `str(source)` of modules, parameters and functions that were another
    object in another call: they are known by their structure, not by their identity. `refused`
    tells of recorded operations, by their number in the order of recording, that the backend cannot
    compile and why: each is a graph break.
    """

    sizes: frozenset[tuple[str, int]] = frozenset()
    replaced: frozenset[str] = frozenset()
    plain_floats: bool = False
    refused: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CaptureOptions:
    """What the interpreter may do with a frame.

    fullgraph: a graph break is an error.
    dynamic: None makes a size symbolic only where the user marked it (`mark_dynamic`) or it changed
        before, True makes all sizes symbolic, False none but the marked ones.
    learned: what earlier captures of the code found out.
    static_graphs: no input of the graph is symbolic, marked or not.
    exports: the graph is for calls that no guard checks, those with gradients too.
    unwinds: other code leaves the blocks that the frame begins in, if its graph raises.
    on_error: an error inside the compiler lets a graph, or a frame, run uncompiled, with a warning,
        or is raised (always under `fullgraph`, if it is capture's: there is no whole graph then).
    captures_data: what only tensors' data tells (`.item()`, the size of a `nonzero`) stays in the
        graph, as under `fullgraph`, where it would break it.
    is_disabled: tells functions that must run in Python (a graph break).
    is_allowed_in_graph: tells functions that become one call node without being looked into.
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    learned: Learned = field(default_factory=Learned)
    static_graphs: bool = False
    exports: bool = False
    unwinds: bool = False
    on_error: OnError = ON_ERROR
    captures_data: bool = False
    is_disabled: Callable[[Any], bool] = field(default=_no_function)
    is_allowed_in_graph: Callable[[Any], bool] = field(default=_no_function)
