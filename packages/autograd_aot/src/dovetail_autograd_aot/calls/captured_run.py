"""The captured graph, run again so that autograd records it: what gives all gradients that a
compiled backward does not.

It is run by eager's operators, or its differentiation becomes a graph (inputs and incoming
gradients to gradients), to be traced and compiled like any other. There, the engine is called by a
node: when that is traced, what the engine does is recorded like what other nodes do, and can be
differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from dovetail_prims.conditionals import PlainControlFlow
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.fx import Graph, GraphModule, Node

from dovetail_autograd_aot.boundary import JointGraph, OutputKind
from dovetail_autograd_aot.trace.node_values import attribute_of

# Told what each node of the captured graph gave.
Note = Callable[[Node, Any], None]


class NotOneGraph(Exception):
    """Why the gradients cannot be made part of a graph."""


class CapturedRun:
    """The captured graph `gm` of a joint graph, and how it is run again: under the autocast that it
    was captured under, on copies of the inputs that it writes to."""

    def __init__(self, gm: GraphModule, joint: JointGraph) -> None:
        self.gm = gm
        self.joint = joint
        self.autocast = [
            (kind, torch.get_autocast_dtype(kind))
            for kind in ("cpu", "cuda")
            if torch.is_autocast_enabled(kind)
        ]
        signature = joint.signature
        needed = enumerate(signature.primals_require_grad)
        self.wanted = [i for i, is_needed in needed if is_needed]
        # (They were overwritten by the forward; their old contents do not matter.)
        self.changed = sorted(signature.changes.indices())

    def gradients(
        self, inputs: Sequence[Any], tangents: Sequence[Tensor | None], note: Note | None = None
    ) -> tuple[Tensor | None, ...]:
        """The inputs' gradients, differentiable, by eager's operators."""
        sources, aliases = self.stand_ins(inputs)
        outputs = self.forward(aliases, note)
        given = [
            (self.root(index, outputs, aliases), tangent)
            for index, tangent in zip(self.joint.signature.differentiable, tangents, strict=True)
            if tangent is not None
        ]
        roots, incoming = [root for root, _ in given], [tangent for _, tangent in given]
        gradients: list[Tensor | None] = [None] * len(aliases)
        found = run_engine(roots, incoming, [sources[i] for i in self.wanted], True, True)
        for i, gradient in zip(self.wanted, found, strict=True):
            gradients[i] = gradient
        return tuple(gradients)

    def stand_ins(
        self, inputs: Sequence[Any], change: Callable[[Tensor], None] | None = None
    ) -> tuple[list[Any], list[Any]]:
        """Aliases of the inputs, with gradient edges of their own, connected to the real inputs,
        which gradients are asked for; and what the graph is to be run on: the same, but copies of
        what it writes to. `change` may give those aliases yet another edge."""
        own = len(inputs) - len(self.joint.added.storages)  # (the graph reads no storage itself)
        made: dict[int, Any] = {}  # (one for a tensor that comes twice)
        for value in inputs[:own]:
            if id(value) not in made and isinstance(value, Tensor) and value.requires_grad:
                made[id(value)] = alias = value.view_as(value)
                if change is not None:
                    change(alias)
        sources = [made.get(id(v), v) if i < own else v for i, v in enumerate(inputs)]
        copies = {id(sources[i]): sources[i].clone() for i in self.changed if i < own}
        return sources, [copies.get(id(v), v) for v in sources]

    def forward(self, aliases: list[Any], note: Note | None = None) -> list[Any]:
        """The captured graph's outputs, by eager's operators."""
        lifted = self.joint.added.constants
        count = len(aliases) - len(lifted) - len(self.joint.added.storages)
        attributes = {id(c): alias for c, alias in zip(lifted, aliases[count:], strict=False)}
        with ExitStack() as stack:
            for kind, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            return list(_Noting(self.gm, note, attributes).run(*aliases[:count]))

    def root(
        self,
        index: int,
        outputs: Sequence[Any],
        written: Mapping[int, Any] | Sequence[Any],
        whole: Callable[..., Any] | None = None,
    ) -> Any:
        """The tensor of a run that is forward output `index`, given the captured graph's outputs
        and, by input, what was written to. (Or the node for it: `whole` makes one that calls.)"""
        signature = self.joint.signature
        mutation = index - signature.num_fresh
        if 0 <= mutation < len(signature.changes.mutated):
            return written[signature.changes.mutated[mutation].index]
        pairs = list(zip(signature.user_outputs, outputs, strict=True))
        for info, value in pairs:
            if info.kind is OutputKind.FRESH and info.base == index:
                return value
        return (whole or _whole)(*[value for info, value in pairs if info.lies_in(index)])

    def gradient_graph(self, given: Sequence[int]) -> GraphModule:
        """The graph (inputs, gradients of the differentiable outputs number `given`) -> gradients
        of all primals (None where there is none). Raises `NotOneGraph`."""
        gm, joint, signature = self.gm, self.joint, self.joint.signature
        if joint.added.storages:
            raise NotOneGraph("inputs share memory")
        graph = Graph()
        env: dict[Node, Node] = {}
        primals = [_copied(graph, n, env) for n in gm.graph.nodes if n.op == "placeholder"]
        # (Numbered by their places: primals may be gradients of another order.)
        tangents = [graph.placeholder(f"gradient_{len(primals) + n}") for n in range(len(given))]
        modes = torch.amp.autocast_mode
        if any(i >= len(primals) for i in self.changed):
            raise NotOneGraph("an attribute of the graph is written to")
        written = {i: graph.call_method("clone", (primals[i],)) for i in self.changed}
        for position, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder"):
            env[node] = written.get(position, env[node])
        entered = [
            graph.call_function(modes._enter_autocast, (kind, dtype, True, True))
            for kind, dtype in self.autocast
        ]
        output: Any = None
        for node in gm.graph.nodes:
            if node.op == "output":
                output = node
            elif node.op != "placeholder":
                env[node] = _copied(graph, node, env)
        for mode in reversed(entered):
            graph.call_function(modes._exit_autocast, (mode,))
        lifted = _lifted(gm, joint, env)
        everything = [*primals, *lifted]
        results: Any = torch.fx.node.map_arg(output.args[0], env.__getitem__)
        if isinstance(results, Node):  # one node that gives them all
            count = len(signature.user_outputs)
            results = [graph.call_function(_item, (results, i)) for i in range(count)]

        def whole(*views: Node) -> Node:
            return graph.call_function(_whole, views)

        roots = [self.root(signature.differentiable[i], results, written, whole) for i in given]
        found = graph.call_function(
            run_engine, (roots, tangents, [everything[i] for i in self.wanted], True, True)
        )
        gradients: list[Node | None] = [None] * len(everything)
        for position, index in enumerate(self.wanted):
            gradients[index] = graph.call_function(_item, (found, position))
        graph.output(tuple(gradients))
        return GraphModule(gm, graph, "Gradients")


def run_engine(
    roots: Sequence[Tensor | GradientEdge],
    tangents: Sequence[Tensor | None],
    inputs: Sequence[Tensor | GradientEdge],
    keep_graph: bool,
    create_graph: bool,
) -> tuple[Tensor | None, ...]:
    """The gradients of `inputs` (None for one that is not reached), given those of `roots`."""
    found: tuple[Tensor | None, ...] = torch.autograd.graph._engine_run_backward(
        tuple(roots),
        tuple(tangents),
        keep_graph,
        create_graph,
        tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return found


class _Noting(PlainControlFlow):
    """Runs a graph and tells what each node gave."""

    def __init__(
        self, gm: GraphModule, note: Note | None, attributes: Mapping[int, Tensor]
    ) -> None:
        super().__init__(gm)
        self.note = note
        self.attributes = attributes  # what stands for those, by id

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        return self.attributes.get(id(value), value)

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if self.note is not None and n.op not in ("placeholder", "output"):
            self.note(n, result)
        return result


def _item(values: Sequence[Any], index: int) -> Any:
    return values[index]


def _whole(*views: Tensor) -> Tensor:
    """The tensor that the first of these is a view of that is one."""
    for view in views:
        if view._base is not None:
            return view._base
    raise RuntimeError("an output's base was not found in the differentiable run")


def _copied(graph: Graph, node: Node, env: dict[Node, Node]) -> Node:
    """`node` in `graph`; of its metadata what does not speak of sizes."""
    env[node] = graph.node_copy(node, env.__getitem__)
    for name in ("val", "example_value"):
        env[node].meta.pop(name, None)
    return env[node]


def _lifted(gm: GraphModule, joint: JointGraph, env: dict[Node, Node]) -> list[Node]:
    """The attributes that are inputs of the joint graph."""
    found: list[Node] = []
    for tensor in joint.added.constants:
        for node in gm.graph.nodes:
            if node.op == "get_attr" and attribute_of(gm, node.target) is tensor:
                found.append(env[node])
                break
        else:
            raise NotOneGraph("an attribute of the graph is not found")
    return found
