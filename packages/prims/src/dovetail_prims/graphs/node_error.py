"""Which node of a graph an error comes from: what a front end needs to leave that node out."""

from __future__ import annotations

_ATTRIBUTE = "_dovetail_graph_node"


class Refusal(RuntimeError):
    """What a compiler does not compile: the error says what and the way round. It is no mistake of
    the compiler's."""


def blame(error: BaseException, node: str) -> None:
    """Note that compiling failed with `error` at the node of that name, of the graph that the
    compiler was given. An error that knows its node keeps it."""
    if blamed(error) is None:
        setattr(error, _ATTRIBUTE, node)


def blamed(error: BaseException | None) -> str | None:
    """The name of the node that `error`, or an error that it came from, is about; else None."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        name = getattr(error, _ATTRIBUTE, None)
        if name is not None:
            return str(name)
        error = error.__cause__ or error.__context__
    return None
