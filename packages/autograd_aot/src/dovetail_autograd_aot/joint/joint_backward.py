"""The backward of a joint trace: the engine runs from the roots to the leaves, under the tracer.

Read off are the gradients' nodes, which roots reach which leaf, and what a backward would raise.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from dovetail_prims.fake_tensor import FakeTensor, UnsupportedTensorError, make
from dovetail_prims.wrappers import is_wrapper
from torch import Tensor
from torch.fx import Node

from dovetail_autograd_aot.boundary import BackwardFacts, LostGradients
from dovetail_autograd_aot.graph.fast_graph import UNUSED, WHOLE_GRADIENT
from dovetail_autograd_aot.joint.primals import Primals
from dovetail_autograd_aot.joint.user_backwards import UserGradients
from dovetail_autograd_aot.outputs.output_aliasing import storage_order_strides
from dovetail_autograd_aot.subclasses.wrapping import Wrapping
from dovetail_autograd_aot.trace import autograd_queries
from dovetail_autograd_aot.trace.derivative_fixes import MendedDerivatives
from dovetail_autograd_aot.trace.storage import TracedStorage, TraceError, read, wrap

_SPARSE = (
    "a sparse gradient: of an embedding with sparse=True, or of a gather with sparse_grad=True. "
    "Leave these out, or call it outside of the compiled function"
)


@dataclass(frozen=True)
class TracedBackward:
    """The nodes of the gradients, one for each primal (carriers included); what is known of the
    backward; what eager's would raise, for some of the gradients or (`error`) for all."""

    gradients: tuple[Node | None, ...]
    facts: BackwardFacts
    lost: tuple[LostGradients, ...] = ()
    error: str | None = None


class JointBackward:
    """One run of the engine from `roots` to the primals that require gradients. The backward from
    some roots to some leaves is known to raise an error: these are `lost`."""

    def __init__(
        self,
        primals: Primals,
        user_gradients: UserGradients,
        derivatives: MendedDerivatives,
        wrapping: Wrapping | None,
        roots: Sequence[FakeTensor],
        lost: tuple[LostGradients, ...] = (),
    ) -> None:
        self.primals = primals
        self.tracer = primals.tracer
        self.user_gradients = user_gradients
        self.derivatives = derivatives
        self.wrapping = wrapping
        self.roots = roots
        self.lost = lost
        # (One that came to require grad by a write gets no gradient.)
        self.leaves: list[Tensor | None] = [
            primal.leaf if primal.leaf is not None and example.requires_grad else None
            for primal, example in zip(primals, primals.examples.values, strict=True)
        ]
        if wrapping is not None:
            self.leaves += [leaf for _, leaf in wrapping.wanted()]

    def trace(self) -> TracedBackward:
        """Record the backward into the graph."""
        none = (None,) * len(self.primals)
        if not self.roots or not any(leaf is not None for leaf in self.leaves):
            return TracedBackward(none, BackwardFacts(user_code=self.user_gradients.seen))
        tangents = [self._tangent(number) for number in range(len(self.roots))]
        paths = autograd_queries.paths_between(self.roots, self.leaves)
        connected = tuple(map(bool, paths.reached))
        for root in self.roots:  # (an input that was written to may be nobody's result)
            self.derivatives.visit(root.grad_fn)
        seen = self.user_gradients.seen
        self.tracer.in_backward = True
        self.user_gradients.begin_backward(len(tangents))
        hooks = [
            root.register_hook(functools.partial(self._tell_whole, number))  # type: ignore[no-untyped-call]
            for number, root in enumerate(self.roots)
        ]
        try:
            with self.tracer, torch._C._DisableAutocast():
                gradients = self._run_without_lost(tangents)
        except UnsupportedTensorError as error:
            if "torch.sparse" not in str(error):
                raise
            raise TraceError(_SPARSE) from error
        except RuntimeError as error:
            # Eager tells it in the backward, if there is one.
            if not any(text in str(error) for text in autograd_queries.ERRORS_OF_BACKWARDS):
                raise
            self._forget_backward()
            again = self._without_lost(paths.reached)
            if again is not None:
                return again.trace()
            facts = BackwardFacts(paths.reached, connected, paths.freed, seen)
            return TracedBackward(none, facts, error=str(error))
        finally:
            for hook in hooks:
                hook.remove()
        additive = self.user_gradients.are_additive()
        found = iter(gradients)
        with self.tracer, torch.no_grad():
            pieces = [
                [] if leaf is None else self._pieces(position, next(found))
                for position, leaf in enumerate(self.leaves)
            ]
        reached = paths.reached
        if len(tangents) > 1:
            reached = self._ask_which_reach(reached, pieces, tangents)
        nodes, reached, freed = self._gradient_nodes(pieces, reached, paths.freed)
        facts = BackwardFacts(reached, connected, freed, seen, additive)
        return TracedBackward(nodes, facts, self.lost)

    def _tell_whole(self, number: int, gradient: Tensor) -> None:
        """Called with the whole gradient of root number `number`."""
        WHOLE_GRADIENT.tell(read(self.tracer, self.tracer.traced(gradient)), number)

    def _without_lost(self, reached: Sequence[int]) -> JointBackward | None:
        """The backward without the paths from roots to leaves that raise an error; None if nothing
        is left, or if these were left out already."""
        if self.wrapping is not None or self.lost:
            return None
        found = self._lost_gradients(reached)
        lost = {(each.tangent, i) for each in found for i in _members(each.primals)}
        pairs = {(tangent, i) for i, mask in enumerate(reached) for tangent in _members(mask)}
        if not found or pairs == lost:
            return None
        return JointBackward(
            self.primals, self.user_gradients, self.derivatives, None, self.roots, found
        )

    def _tangent(self, number: int) -> FakeTensor:
        """What stands for the gradient of root number `number`."""
        root = self.roots[number]
        node = self.tracer.graph.placeholder(f"tangent_{number}")
        strides = storage_order_strides(root._sizes, root._strides)
        node.meta["val"] = make(root._sizes, strides, root._dtype, root._device)
        return wrap(node, TracedStorage(node))

    def _forget_backward(self) -> None:
        """Take out of the graph what was made of tangents."""
        for node in reversed(self.tracer.graph.nodes):
            if node.op == "placeholder" and node not in self.primals.placeholders:
                self.tracer.forget(node)
        self.tracer.forget_known()
        self.user_gradients.forget()

    def _run_without_lost(self, tangents: Sequence[FakeTensor]) -> list[Tensor | None]:
        """The gradients of the leaves that are wanted, each from the roots whose backward to it
        raises no error."""
        groups: dict[int, list[int]] = {}
        for i, leaf in enumerate(self.leaves):
            if leaf is not None:
                groups.setdefault(self._lost_of(i), []).append(i)
        found: dict[int, Tensor | None] = {}
        for lost, group in groups.items():
            kept = [number for number in range(len(self.roots)) if not lost >> number & 1]
            gradients: Sequence[Tensor | None] = [None] * len(group)
            if kept:
                gradients = self._run(kept, [tangents[n] for n in kept], group)
            found.update(zip(group, gradients, strict=True))
        return [found[i] for i in sorted(found)]

    def _run(
        self, roots: Sequence[int], tangents: Sequence[FakeTensor], leaves: Sequence[int]
    ) -> Sequence[Tensor | None]:
        """The engine, from roots to leaves by their numbers."""
        wanted = [leaf for leaf in (self.leaves[i] for i in leaves) if leaf is not None]
        return autograd_queries.run_engine([self.roots[n] for n in roots], tangents, wanted)

    def _lost_of(self, leaf: int) -> int:
        """The roots whose backward to leaf number `leaf` raises an error, as a bit set."""
        return sum(1 << each.tangent for each in self.lost if each.primals >> leaf & 1)

    def _lost_gradients(self, reached: Sequence[int]) -> tuple[LostGradients, ...]:
        """The paths from roots to leaves on which the backward raises an error, by roots and
        errors."""
        found: dict[tuple[int, str], int] = {}
        for i, mask in enumerate(reached):
            for number in _members(mask):
                try:
                    with self.tracer, torch._C._DisableAutocast():
                        self._run([number], [self._tangent(number)], [i])
                except RuntimeError as error:
                    key = (number, str(error))
                    found[key] = found.get(key, 0) | 1 << i
                self._forget_backward()
        return tuple(LostGradients(number, mask, error) for (number, error), mask in found.items())

    def _pieces(self, position: int, gradient: Tensor | None) -> list[Node]:
        """The nodes of the gradient of leaf number `position`; several for a tensor subclass."""
        if gradient is None:
            return []
        plain: list[Tensor] = [gradient]
        if position >= len(self.primals) or is_wrapper(gradient):
            if self.wrapping is None:
                raise TraceError(f"a gradient that is a {type(gradient).__name__}")
            plain = self.wrapping.carry(position, gradient, len(self.primals))
        return [read(self.tracer, self.tracer.traced(t)) for t in plain]

    def _gradient_nodes(
        self,
        pieces: Sequence[Sequence[Node]],
        reached: Sequence[int],
        freed: tuple[tuple[int, int], ...],
    ) -> tuple[tuple[Node | None, ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
        """A gradient for each primal, with `reached` and `freed` for these. Those of tensor
        subclasses are gradients of carriers, which become the last primals."""
        carried = {} if self.wrapping is None else self.wrapping.carried
        count = len(self.primals)
        nodes: list[Node | None] = [
            p[0] if p and i not in carried else None for i, p in enumerate(pieces[:count])
        ]
        reaching = list(reached[:count])
        for position, each in carried.items():
            for value, piece in zip(each.values, pieces[position], strict=True):
                self.primals.add_carrier(value)
                nodes.append(piece)
                reaching.append(reached[position])
                own = 1 << len(nodes) - 1
                freed = tuple(
                    (above, below | own if below >> position & 1 else below)
                    for above, below in freed
                )
        return tuple(nodes), tuple(reaching), freed

    def _ask_which_reach(
        self,
        reached: Sequence[int],
        gradients: Sequence[Sequence[Node]],
        tangents: Sequence[FakeTensor],
    ) -> tuple[int, ...]:
        """Where autograd has a path from a root, but the gradient does not depend on its tangent,
        the engine is asked: zeros may come along it (of what was overwritten), or nothing. (An
        error comes from what is lost.)"""
        lost = [self._lost_of(i) for i in range(len(self.leaves))]
        bits: dict[Node, int] = {read(self.tracer, t): 1 << i for i, t in enumerate(tangents)}
        last = next(iter(reversed(self.tracer.graph.nodes)))
        with self.tracer, torch._C._DisableAutocast():
            wanted = [leaf for leaf in self.leaves if leaf is not None]
            self.user_gradients.settle(
                self.roots, tangents, wanted, bits, {each.tangent for each in self.lost}
            )
        depends = [functools.reduce(int.__or__, [bits.get(g, 0) for g in p], 0) for p in gradients]
        unclear = [
            mask & ~own & ~bad if p else 0
            for p, mask, own, bad in zip(gradients, reached, depends, lost, strict=True)
        ]
        depends = [own | bad for own, bad in zip(depends, lost, strict=True)]
        for number, tangent in enumerate(tangents):
            asked = [i for i, mask in enumerate(unclear) if mask >> number & 1]
            if asked:
                with self.tracer, torch._C._DisableAutocast():
                    given = self._run([number], [tangent], asked)
                for i, gradient in zip(asked, given, strict=True):
                    depends[i] |= (gradient is not None) << number
        while last.next.op != "root":  # what was recorded meanwhile is of no use
            last = last.next
            UNUSED.tell(last, True)
        return tuple(depends)


def _members(mask: int) -> list[int]:
    """The numbers in a bit set."""
    return [i for i in range(mask.bit_length()) if mask >> i & 1]
