"""`trace_joint`: a captured graph and example inputs -> `JointGraph`.

Runs the captured graph's nodes on traced tensors, under C++ autograd and the tracer, then the
autograd engine from the outputs back to the inputs, and reads off how outputs relate to inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from dovetail_guards.shape_env import ShapeEnv
from dovetail_prims.data_sizes import data_symbols
from dovetail_prims.fake_tensor import FakeTensor, make
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd import grad_mode
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule

from dovetail_autograd_aot.attention import AttentionMode
from dovetail_autograd_aot.fast_graph import FastGraph
from dovetail_autograd_aot.graphs import JointGraph, MutatedInput, Signature
from dovetail_autograd_aot.op_info import draws_random_numbers
from dovetail_autograd_aot.outputs import Classified, classify_outputs, storage_order_strides
from dovetail_autograd_aot.storage import (
    ConstantWrittenError,
    TracedStorage,
    TraceError,
    read,
    track_of,
    wrap,
)
from dovetail_autograd_aot.tracer import Tracer

aten = torch.ops.aten

Decompositions = Mapping[OpOverload, Callable[..., Any]]


def trace_joint(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    decompositions: Decompositions | None = None,
    function_mode: Callable[[], Any] | None = None,
) -> JointGraph:
    """Trace `gm` ahead of time, forward and (where something requires grad) backward.

    `function_mode` makes a `TorchFunctionMode` under which the captured calls run: the place to
    keep an operator whole that C++ would decompose. `AttentionMode` if none is given.
    """
    if function_mode is None:
        function_mode = AttentionMode
    lifted = _attributes_to_lift(gm)
    while True:
        try:
            return _Joint(gm, list(example_inputs), lifted, decompositions or {}).trace(
                function_mode
            )
        except ConstantWrittenError as error:
            # Restart with one more attribute as an input: it is written to.
            if not error.name or error.name in lifted:
                raise TraceError("a constant made inside the graph is written to") from error
            lifted = [*lifted, error.name]


def _attributes_to_lift(gm: GraphModule) -> list[str]:
    """Tensor attributes that need gradients or are outputs must be inputs of the graph."""
    names: list[str] = []
    output = next(n for n in gm.graph.nodes if n.op == "output")
    returned = set(output.all_input_nodes)
    for node in gm.graph.nodes:
        if node.op == "get_attr" and node.target not in names:
            value = _attribute(gm, node.target)
            if isinstance(value, Tensor) and (
                node in returned or (value.requires_grad and torch.is_grad_enabled())
            ):
                names.append(node.target)
    return names


def _attribute(gm: GraphModule, target: str) -> Any:
    value: Any = gm
    for part in target.split("."):
        value = getattr(value, part)
    return value


class _Joint:
    """One trace."""

    def __init__(
        self, gm: GraphModule, inputs: list[Any], lifted: list[str], decompositions: Decompositions
    ) -> None:
        self.gm = gm
        self.lifted = {name: _attribute(gm, name) for name in lifted}
        self.examples = inputs + list(self.lifted.values())
        self.graph = FastGraph()
        self.tracer = Tracer(self.graph, decompositions, _symbols_of(gm))
        self.primals: list[Any] = []  # what the captured graph is run on
        self.leaves: list[FakeTensor | None] = []  # what gradients are asked for
        self.placeholders: list[Node] = []
        self.mates: dict[int, list[int]] | None = None  # inputs by storage
        self.grad_fns: list[Any] = []  # of the primals, before the graph runs

    def trace(self, function_mode: Callable[[], Any] | None) -> JointGraph:
        grad_mode = torch.is_grad_enabled()
        self._make_primals()
        with _trace_settings(), data_symbols(self.tracer.data_env):
            try:
                with ExitStack() as stack:
                    stack.enter_context(self.tracer)
                    if function_mode is not None:
                        stack.enter_context(function_mode())
                    outputs = self._run()
            finally:
                torch._C._set_grad_enabled(grad_mode)
            self.tracer.stack_trace = None
            with torch.no_grad():
                mutated = self._mutated()
                result = classify_outputs(self.tracer, outputs, self.primals, mutated)
            gradients = self._backward(result)
        return self._finish(result, mutated, gradients)

    # --- inputs -----------------------------------------------------------------------------------

    def _make_primals(self) -> None:
        names = [n.target for n in self.gm.graph.nodes if n.op == "placeholder"]
        names += [name.replace(".", "_") for name in self.lifted]
        if len(names) != len(self.examples):
            raise TraceError(
                f"the graph has {len(names)} inputs, but {len(self.examples)} examples were given"
            )
        # Placeholders first, then the nodes that read their sizes.
        symbols = _symbolic_values(self.gm)
        for position, name in enumerate(names):
            node = self.graph.placeholder(str(name))
            symbolic = symbols.get(position)
            if isinstance(self.examples[position], Tensor):
                source = self.examples[position] if symbolic is None else symbolic
                node.meta["val"] = _snapshot(source)
            else:
                if symbolic is not None:
                    self.examples[position] = symbolic
                node.meta["val"] = self.examples[position]
            self.placeholders.append(node)
        seen: dict[int, int] = {}
        for index, (node, example) in enumerate(zip(self.placeholders, self.examples, strict=True)):
            if not isinstance(example, Tensor):
                if isinstance(example, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                    self.tracer.sizes.bind(example, node)
                self.primals.append(example)
                self.leaves.append(None)
                self.grad_fns.append(None)
                continue
            self.tracer.sizes.bind_sizes(node, node.meta["val"])
            if id(example) in seen:  # the same tensor twice: the same traced tensor twice
                self.primals.append(self.primals[seen[id(example)]])
                self.leaves.append(None)
                self.grad_fns.append(None)
                continue
            seen[id(example)] = index
            self._make_primal(index, node, example)

    def _make_primal(self, index: int, node: Node, example: Tensor) -> None:
        storage = TracedStorage(node, primal=index)
        leaf = wrap(node, storage)
        primal = leaf
        if example.requires_grad:
            leaf.requires_grad_()
            if not example.is_leaf:
                with torch.enable_grad():
                    primal = _NonLeaf.apply(leaf, node, storage)
                storage.root = primal
        if isinstance(example, torch.nn.Parameter):
            leaf._is_param = True
        self.primals.append(primal)
        self.leaves.append(leaf)
        self.grad_fns.append(primal.grad_fn)

    # --- forward ----------------------------------------------------------------------------------

    def _run(self) -> list[Any]:
        """The captured graph's nodes, one by one."""
        env: dict[Node, Any] = {}
        inputs = iter(self.primals)
        lifted = dict(
            zip(self.lifted, self.primals[len(self.primals) - len(self.lifted) :], strict=True)
        )
        tracer = self.tracer

        def value(node: Node) -> Any:
            found = env[node]
            if type(found) is torch.SymFloat and found.node.constant is not None:
                return found.node.constant  # an operator before needed it as a number
            return found

        for node in self.gm.graph.nodes:
            tracer.stack_trace = node.meta.get("stack_trace")
            op = node.op
            if op == "placeholder":
                env[node] = next(inputs)
                continue
            if op == "get_attr":
                if node.target in lifted:
                    env[node] = lifted[node.target]
                else:
                    attribute = _attribute(self.gm, node.target)
                    if isinstance(attribute, Tensor):
                        attribute = tracer.constant(attribute, name=node.target)
                    env[node] = attribute
                continue
            args = torch.fx.node.map_arg(node.args, value)
            if op == "output":
                outputs = args[0]
                if isinstance(outputs, (list, tuple)):
                    return list(outputs)
                raise TraceError("the captured graph must return a tuple")
            kwargs = torch.fx.node.map_arg(node.kwargs, value) if node.kwargs else {}
            if node.target is torch._check:
                _state(*args)
            elif op == "call_function":
                env[node] = node.target(*args, **kwargs)
            elif op == "call_method":
                env[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
            else:
                env[node] = self.gm.get_submodule(node.target)(*args, **kwargs)
        raise TraceError("the captured graph has no output")

    # --- mutated inputs ---------------------------------------------------------------------------

    def _mutated(self) -> list[MutatedInput]:
        mutated = []
        for index, primal in enumerate(self.primals):
            leaf = self.leaves[index]
            if leaf is None:
                continue
            if track_of(primal).storage.version == 0:
                continue
            self._refuse_overlap(index)
            # Autograd saw the write if it moved the input to another place in its graph.
            changed = primal.grad_fn is not self.grad_fns[index]
            mutated.append(MutatedInput(index, data_only=not changed))
        return mutated

    def _refuse_overlap(self, index: int) -> None:
        example = self.examples[index]
        for other_index in self._storage_mates(index):
            other = self.examples[other_index]
            if other is not example and _memory_overlaps(example, other):
                raise TraceError(
                    f"input {index} is written to and shares memory with input {other_index}: "
                    "pass one of them, and take the view inside the compiled function"
                )

    def _storage_mates(self, index: int) -> list[int]:
        """The inputs with the same storage."""
        if self.mates is None:
            self.mates = {}
            for i, example in enumerate(self.examples):
                if isinstance(example, Tensor):
                    self.mates.setdefault(_storage_key(example), []).append(i)
        return self.mates[_storage_key(self.examples[index])]

    # --- backward ---------------------------------------------------------------------------------

    def _backward(self, result: Classified) -> list[Node | None]:
        leaves = [leaf if leaf is not None and leaf.requires_grad else None for leaf in self.leaves]
        none: list[Node | None] = [None] * len(self.primals)
        if not result.roots or not any(leaf is not None for leaf in leaves):
            return none
        tangents = []
        for number, root in enumerate(result.roots):
            node = self.graph.placeholder(f"tangent_{number}")
            strides = storage_order_strides(root._sizes, root._strides)
            node.meta["val"] = make(root._sizes, strides, root._dtype, root._device)
            tangents.append(wrap(node, TracedStorage(node)))
        wanted = [leaf for leaf in leaves if leaf is not None]
        self.tracer.in_backward = True
        with self.tracer, torch._C._DisableAutocast():
            gradients = torch.autograd.graph._engine_run_backward(
                tuple(result.roots),
                tuple(tangents),
                False,
                False,
                tuple(wanted),
                allow_unreachable=True,
                accumulate_grad=False,
            )
        found = iter(gradients)
        nodes: list[Node | None] = []
        with torch.no_grad():
            for leaf in leaves:
                gradient = None if leaf is None else next(found)
                nodes.append(
                    None if gradient is None else read(self.tracer, self.tracer.traced(gradient))
                )
        return nodes

    # --- the graph --------------------------------------------------------------------------------

    def _finish(
        self, result: Classified, mutated: list[MutatedInput], gradients: list[Node | None]
    ) -> JointGraph:
        has_backward = any(g is not None for g in gradients)
        outputs = [*result.forward, *(gradients if has_backward else [])]
        self._placeholders_first()
        output = self.graph.output(tuple(outputs))
        output.meta["val"] = tuple(n.meta["val"] if isinstance(n, Node) else n for n in outputs)
        self.tracer.sizes.mark_checked(self.tracer.data_env)
        _eliminate_dead_code(self.graph)
        signature = Signature(
            num_primals=len(self.primals),
            outputs=tuple(result.infos),
            mutated=tuple(mutated),
            primals_require_grad=tuple(g is not None for g in gradients),
            differentiable=tuple(result.differentiable),
            hidden=result.hidden,
            sizes=result.sizes,
        )
        root = torch.nn.Module()
        for name, value in self.tracer.constants.items():
            root.register_buffer(name, value)
        joint = _LazyGraphModule(root, self.graph, "Joint")
        return JointGraph(joint, signature, tuple(self.lifted.values()))

    def _placeholders_first(self) -> None:
        """Tangents were made after the forward; the graph takes its inputs first."""
        last: Node | None = None
        for node in list(self.graph.nodes):
            if node.op != "placeholder":
                continue
            if last is not None and last.next is not node:
                last.append(node)
            last = node


def _symbolic_values(gm: GraphModule) -> dict[int, Any]:
    """The inputs that the captured graph takes at several sizes, by position: what stands for
    them in `meta["val"]`. The examples are of one size each."""
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    found: dict[int, Any] = {}
    for position, node in enumerate(placeholders):
        val = node.meta.get("val")
        if isinstance(val, FakeTensor):
            if any(type(s) is not int for s in (*val._sizes, *val._strides)):
                found[position] = val
        elif isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            found[position] = val
    return found


def _symbols_of(gm: GraphModule) -> ShapeEnv | None:
    """Where the graph's symbols come from, if it has some."""
    for node in gm.graph.nodes:
        val = node.meta.get("val")
        parts = (*val._sizes, *val._strides) if isinstance(val, FakeTensor) else (val,)
        for part in parts:
            if isinstance(part, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                symbolic: Any = part.node
                return symbolic.env  # type: ignore[no-any-return]
    return None


def _state(condition: Any, message: str = "") -> None:
    """`torch._check` in the captured graph: what holds from here on."""
    if isinstance(condition, torch.SymBool):
        stated: Any = condition.node
        condition = stated.state(message)
    if not condition:
        raise TraceError(f"a check of the program fails: {message or condition}")


def _snapshot(example: Tensor) -> FakeTensor:
    """The metadata of an example input, real or fake, as a fake of our own."""
    if type(example) is FakeTensor:
        return make(
            example._sizes, example._strides, example._dtype, example._device, example._offset
        )
    if example.layout is not torch.strided or example.is_quantized:
        raise TraceError(f"inputs of layout {example.layout} cannot be compiled")
    if example.is_conj() or example.is_neg():
        raise TraceError("an input with a lazy conjugate or negative bit: resolve_conj() it first")
    return make(
        tuple(example.shape),
        example.stride(),
        example.dtype,
        example.device,
        example.storage_offset(),
    )


class _NonLeaf(torch.autograd.Function):
    """A primal that is no leaf in eager must not be one here: in-place operators ask."""

    @staticmethod
    def forward(ctx: Any, leaf: FakeTensor, node: Node, storage: TracedStorage) -> FakeTensor:
        return wrap(node, storage)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient, None, None


@contextmanager
def _trace_settings() -> Iterator[None]:
    """Views are replayed, not re-strided, by autograd; the engine stays on this thread."""
    with (
        grad_mode._force_original_view_tracking(True),
        torch.autograd.set_multithreading_enabled(False),
    ):
        yield


def _storage_key(t: Tensor) -> int:
    return id(t._storage) if type(t) is FakeTensor else t.untyped_storage()._cdata


def _memory_overlaps(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one storage reach the same bytes (taken as ranges)."""
    start_a, end_a = _extent(a)
    start_b, end_b = _extent(b)
    return start_a < end_b and start_b < end_a


def _extent(t: Tensor) -> tuple[int, int]:
    """The byte range a tensor spans within its storage."""
    start = int(t.storage_offset())
    if any(s == 0 for s in t.shape):
        return start * t.dtype.itemsize, start * t.dtype.itemsize
    span = 1 + sum((int(s) - 1) * int(d) for s, d in zip(t.shape, t.stride(), strict=True))
    return start * t.dtype.itemsize, (start + span) * t.dtype.itemsize


def _eliminate_dead_code(graph: Graph) -> None:
    """Drop what nothing uses; random operators stay, as they advance the generator."""
    for node in reversed(graph.nodes):
        if node.users or node.op in ("placeholder", "output"):
            continue
        if draws_random_numbers(node) or node.meta.get("checked"):
            continue
        graph.erase_node(node)


__all__ = ["TraceError", "trace_joint"]
