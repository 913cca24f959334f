"""What stages tell one another of nodes, beside values: entries of `meta`, each with its type, and
which node an error comes from.

A fact that crosses packages is declared here; one of a single package, there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

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


T = TypeVar("T")


class Fact(Generic[T]):
    """One kind of fact about nodes or graphs: a key of `meta`, and the type of what is there."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key

    def of(self, holder: Node | GraphModule) -> T | None:
        """The fact, or None if nobody told it."""
        return holder.meta.get(self.key)

    def holds(self, holder: Node | GraphModule) -> bool:
        """Was it told, and is it true (not 0, not empty)?"""
        return bool(holder.meta.get(self.key))

    def is_told(self, holder: Node | GraphModule) -> bool:
        """Was it told at all?"""
        return self.key in holder.meta

    def tell(self, holder: Node | GraphModule, fact: T) -> None:
        """Tell it of a node or graph."""
        holder.meta[self.key] = fact

    def drop(self, holder: Node | GraphModule) -> None:
        """Let nobody have told it."""
        holder.meta.pop(self.key, None)


# A placeholder: a parameter or buffer of a module (in a joint graph, or a tensor that the captured
# graph held).
STATIC: Fact[bool] = Fact("static")
# A node of a captured graph: its number in the order of recording.
OPERATION: Fact[int] = Fact("operation")
# A node in a region under `torch.utils.checkpoint`: its number, and the policy that decides
# what is saved of it (selective checkpointing).
CHECKPOINT: Fact[int] = Fact("checkpoint")
CHECKPOINT_POLICY: Fact[Callable[..., Any]] = Fact("checkpoint_policy")
# A call that stays though nobody reads its result: it raises what eager raises.
CHECKED: Fact[bool] = Fact("checked")
# A placeholder that the call frees after its last use.
OWNED: Fact[bool] = Fact("owned")
# A placeholder that is about to get the value of the output at this position.
OVERWRITTEN: Fact[int] = Fact("overwritten")
# A node that was recorded while the backward ran.
IN_BACKWARD: Fact[bool] = Fact("in_backward")
# A captured graph: the qualified name of the user's function that it is of.
FUNCTION: Fact[str] = Fact("function")
# What selective checkpointing decided of a node.
SAVED_BY_POLICY: Fact[CheckpointPolicy] = Fact("saved_by_policy")

_OF_PLACE = (CHECKPOINT, SAVED_BY_POLICY, IN_BACKWARD)


def take_place(node: Node, of: Node) -> None:
    """Tell of a node what belongs to the place of another: the user's line, the checkpointed
    region, the half of the joint graph."""
    for key in ("stack_trace", *(fact.key for fact in _OF_PLACE)):
        if key in of.meta:
            node.meta[key] = of.meta[key]
