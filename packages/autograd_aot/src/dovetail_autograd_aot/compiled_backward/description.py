"""What one call of the autograd engine would do, read off autograd's graph.

Two calls with equal descriptions record equal programs: the graph's shape, each node's saved
numbers, the metadata and the sharing of saved tensors, hooks, and which gradients exist already.
Numbers (sizes above all) are kept apart from the rest, the `structure`.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from dovetail_autograd_aot.calls.autograd_function import GraphFunction
from dovetail_autograd_aot.compiled_backward import node_state
from dovetail_autograd_aot.native import nodes_module

_TENSOR_TYPES = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
_CONSTANTS = (
    bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


class NotCapturable(Exception):
    """This pass runs on the engine; the message says why."""


@dataclass(frozen=True)
class EngineCall:
    """The arguments of one call of the engine."""

    outputs: tuple[Any, ...]
    gradients: tuple[Tensor | None, ...]
    keep_graph: bool
    create_graph: bool
    inputs: tuple[Any, ...]
    allow_unreachable: bool
    accumulate: bool

    def run(self, engine: Callable[..., Any]) -> Any:
        """Let the engine do it."""
        return engine(
            self.outputs,
            self.gradients,
            self.keep_graph,
            self.create_graph,
            self.inputs,
            allow_unreachable=self.allow_unreachable,
            accumulate_grad=self.accumulate,
        )


@dataclass(frozen=True)
class Slot:
    """A Python function that the engine calls: where it hangs, to be replaced while recording.

    `kind` is "function" (the backward of an `autograd.Function`), "tensor", "pre" or "post" (hooks
    of a node), "leaf post" (of an AccumulateGrad) or "accumulated" (post-accumulate hooks). `leaf`
    is the leaf that the last two belong to.
    """

    kind: str
    owner: Any  # the node, or the dictionary of hooks
    key: Any = None
    leaf: int = -1

    @property
    def in_epilogue(self) -> bool:
        """Whether it is called with a leaf whose gradient is complete."""
        return self.kind in ("leaf post", "accumulated")


class Replaced:
    """Stands for a Python function of the engine, on one thread; elsewhere it is the function."""

    def __init__(self, original: Callable[..., Any], here: Callable[..., Any], thread: int) -> None:
        self.original = original
        self.here = here
        self.thread = thread
        # (The engine's messages name a hook.)
        self.__name__ = getattr(original, "__name__", type(original).__name__)

    def __call__(self, *args: Any) -> Any:
        called = self.here if threading.get_ident() == self.thread else self.original
        return called(*args)


@dataclass(frozen=True)
class Leaf:
    """A tensor that gets a gradient; `grad` is the one that it has already, `number` its position
    among the tensors of the description."""

    variable: Tensor
    grad: Tensor | None
    number: int


@dataclass
class Description:
    """One call: what it depends on, and the tensors and functions that it works with."""

    structure: tuple[Any, ...] = ()
    numbers: tuple[Any, ...] = ()  # what `structure` leaves open: sizes, strides, saved numbers
    # Numbers that operators of the forward were called with (`x * 2.5`), which are saved as
    # tensors: what autograd computes with them goes through operators, no branch depends on them.
    scalars: tuple[Any, ...] = ()
    tensors: list[Tensor] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    calls: list[Callable[..., Any]] = field(default_factory=list)
    inlined: list[Any] = field(default_factory=list)  # contexts of compiled functions
    # The gradients that these got None for, and the inputs that they were asked for.
    passed: list[tuple[int, int]] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)  # those that are executed


Edges = Sequence[tuple[Any, int]]


def describe(call: EngineCall) -> Description:
    """Raises `NotCapturable`, or what autograd raises for a graph that was freed."""
    return _Describer(call).describe()


def _autocast() -> tuple[Any, ...]:
    return tuple(
        torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        for kind in ("cpu", "cuda")
    )


class _Describer:
    def __init__(self, call: EngineCall) -> None:
        self.call = call
        self.native = nodes_module()
        self.found = Description()
        self.structure: list[Any] = []
        self.numbers: list[Any] = []
        self.scalars: list[Any] = []
        self.edges: dict[Any, Edges] = {}  # of the nodes that can be reached, in order
        self.order: dict[Any, int] = {}
        self.executed: dict[Any, bool] = {}
        self.classes: dict[Any, int] = {}  # number of each tensor
        self.storages: dict[int, int] = {}
        self.storage_of: list[int] = []

    def describe(self) -> Description:
        call = self.call
        roots = [node_state.edge_of(r) for r in call.outputs]
        targets = [node_state.edge_of(i) for i in call.inputs]
        self._walk([node for node, _ in roots])
        self._choose([node for node, _ in targets])
        self.structure += [
            call.accumulate,
            call.allow_unreachable,
            torch.are_deterministic_algorithms_enabled(),
            *_autocast(),
            torch.get_default_dtype(),
            tuple((self.order[n], number) for n, number in roots),
            tuple((self.order.get(n, -1), number) for n, number in targets),
        ]
        for gradient in call.gradients:
            self._value(gradient)
        captured = set() if call.accumulate else {node for node, _ in targets}
        for node in self.edges:
            if self.executed[node]:
                self._node(node)
            elif node in captured:
                self._hooks(node, only_tensor=True)
        executed = self.found.nodes
        by_time = sorted(range(len(executed)), key=lambda i: -executed[i]._sequence_nr())
        self.structure.append(tuple(by_time))
        self.structure.append(self._places_of_gradients())
        self.found.structure = tuple(self.structure)
        self.found.numbers = tuple(map(node_state.as_key, self.numbers))
        self.found.scalars = tuple(self.scalars)
        return self.found

    def _places_of_gradients(self) -> tuple[Any, ...]:
        """Where tensors lie in a storage that a gradient, which is written to, shares."""
        tensors, storages = self.found.tensors, self.storage_of
        count = Counter(storages)
        written = {storages[leaf.number] for leaf in self.found.leaves if leaf.number >= 0}
        crowded = {s for s in written if count[s] > 1}
        if not crowded:
            return ()
        return tuple(
            (i, tensors[i].storage_offset()) for i, s in enumerate(storages) if s in crowded
        )

    # --- which nodes ------------------------------------------------------------------------------

    def _walk(self, roots: list[Any]) -> None:
        stack = list(reversed(roots))
        while stack:
            node = stack.pop()
            if node in self.edges:
                continue
            self.order[node] = len(self.order)
            edges = self.edges[node] = node.next_functions
            stack += [n for n, _ in reversed(edges) if n is not None and n not in self.edges]

    def _choose(self, targets: list[Any]) -> None:
        """Which nodes the engine runs: all, or those on the way to the inputs that were named."""
        if not targets:
            self.executed = dict.fromkeys(self.edges, True)
            return
        wanted = set(targets)
        leads: dict[Any, bool] = {}
        for root in self.edges:
            stack = [root]
            while stack:
                node = stack[-1]
                below = [n for n, _ in self.edges[node] if n is not None]
                missing = [n for n in below if n not in leads]
                if node not in leads and missing:
                    stack += missing
                    continue
                stack.pop()
                leads[node] = any(leads[n] or n in wanted for n in below)
        run_targets = self.call.accumulate
        self.executed = {n: leads[n] or (run_targets and n in wanted) for n in self.edges}

    # --- one node ---------------------------------------------------------------------------------

    def _node(self, node: Any) -> None:
        self.found.nodes.append(node)
        kind = type(node)
        self.structure.append(kind.__name__)
        self.structure.append(
            tuple((-1 if n is None else self.order[n], number) for n, number in self.edges[node])
        )
        for meta in node._input_metadata:
            if meta is None:
                self.structure.append(None)
                continue
            if meta.is_nested_tensor:
                raise NotCapturable("nested tensors")
            shape, device = meta.shape, meta.device
            self.structure += [meta.dtype, device, len(shape)]
            self.numbers += shape
            if device.type == "cuda":
                self._check_stream(node, device)
        name = kind.__name__
        if name == "AccumulateGrad":
            self._leaf(node)
        elif issubclass(kind, BackwardCFunction):
            self._function(node)
        elif name == "CopySlices":
            self._written_view(node)
        elif self.native.is_output_node(node):
            self.structure.append("output")  # (what it does follows from hooks and targets)
        else:
            if name == "CatBackward0" and sum(n is None for n, _ in self.edges[node]) > 1:
                raise NotCapturable("the sizes of what was concatenated cannot be seen")
            self._saved(node)
            if name in node_state.ASK_IF_KEPT:
                self.structure.append(self.call.keep_graph)
        self._hooks(node)

    def _saved(self, node: Any) -> None:
        kind: Any = type(node)
        if not node_state.tells_its_state(kind):
            raise NotCapturable(f"the state of {node.name()} cannot be seen")
        for name, raw in node_state.saved_names(kind):
            if raw is not None:
                self._check_unhooked(getattr(node, raw))
            self._value(getattr(node, name))
        if kind.__name__ == "NativeDropoutBackward0":
            self._value(node_state.dropout_scale(node))

    def _written_view(self, node: Any) -> None:
        """The backward of a write to a view holds that of the operator that wrote."""
        found = self.native.written_view(node)
        if found is None or found[0] is None:
            raise NotCapturable("the state of a write to a view cannot be seen")
        inner, *place = found
        self.structure.append(type(inner).__name__)
        self._value(tuple(place))
        self._saved(inner)

    def _check_unhooked(self, raw: Any) -> None:
        for saved in raw if isinstance(raw, (tuple, list)) else (raw,):
            if saved is not None and saved.unpack_hook is not None:
                raise NotCapturable("saved-tensor hooks (checkpointing, offloading)")

    def _check_stream(self, node: Any, device: torch.device) -> None:
        stream = self.native.stream(node)
        if stream is not None:
            current = torch.cuda.current_stream(device)
            if stream != (current.device_index, current.stream_id):
                raise NotCapturable("the forward ran on another stream")

    def _leaf(self, node: Any) -> None:
        variable = node.variable
        self.structure.append("leaf")
        self._layout(variable)
        grad = variable.grad
        number = self._value(grad)
        self.found.leaves.append(Leaf(variable, grad, number))

    def _function(self, node: Any) -> None:
        function = node._forward_cls
        if not issubclass(function, GraphFunction):
            self.structure.append("opaque")
            self._slot(Slot("function", node), functools.partial(type(node).apply, node))
            return
        read = function.read_by_backward(node)
        if getattr(node, "remaining", None) is None:
            self._check_unhooked(node._raw_saved_tensors)
        self.structure.append(function)
        self.found.inlined.append(node)
        self.found.passed.append((0, -1))
        self._value(read)

    # --- hooks ------------------------------------------------------------------------------------

    def _hooks(self, node: Any, *, only_tensor: bool = False) -> None:
        for kind, position, hooks in self.native.hooks(node):
            if only_tensor and kind != "tensor":
                continue
            if hooks is None:
                what = "retain_grad()" if kind == "retain" else f"a {kind} hook of C++"
                raise NotCapturable(f"{what} on {node.name()}")
            leaf = -1
            if type(node).__name__ == "AccumulateGrad" and kind in ("post", "accumulated"):
                leaf = len(self.found.leaves) - 1
                kind = "leaf post" if kind == "post" else kind
            self.structure.append((kind, position, len(hooks)))
            for key, hook in hooks.items():
                # (Another thread may have replaced it for a while, to record.)
                function = hook.original if isinstance(hook, Replaced) else hook
                self._slot(Slot(kind, hooks, key, leaf), function)

    def _slot(self, slot: Slot, function: Callable[..., Any]) -> None:
        self.found.slots.append(slot)
        self.found.calls.append(function)

    # --- values -----------------------------------------------------------------------------------

    def _value(self, value: Any) -> int:
        """Describe a value; gives a tensor's number."""
        kind = type(value)
        if kind in _TENSOR_TYPES:
            return self._tensor(value)
        if kind is int or kind is float or kind is complex:
            self.structure.append(kind)
            self.numbers.append(value)
        elif kind in _CONSTANTS:
            self.structure.append(value)
        elif isinstance(value, (tuple, list)):
            self.structure.append(len(value))
            for item in value:
                self._value(item)
        else:
            raise NotCapturable(f"a value of type {kind.__name__} is saved")
        return -1

    def _tensor(self, t: Tensor) -> int:
        if t.layout is not torch.strided or t.is_quantized:
            raise NotCapturable(f"a tensor of layout {t.layout}")
        if self.native.is_wrapped_number(t):
            # Operators take it as a Python number.
            self.structure.append(("number", t.dtype))
            self.scalars.append(t.item())
            return -1
        key = node_state.alias_key(t)
        number = self.classes.get(key)
        if number is not None:
            self.structure.append(number)
            return number
        number = self.classes[key] = len(self.found.tensors)
        self.found.tensors.append(t)
        self.storage_of.append(self.storages.setdefault(key[0], len(self.storages)))
        self.structure.append(self.storage_of[-1])
        self._layout(t)
        return number

    def _layout(self, t: Tensor) -> None:
        if type(t) not in _TENSOR_TYPES or t.layout is not torch.strided:
            raise NotCapturable(f"a tensor of type {type(t).__name__}")
        self.structure.append((t.dtype, t.device, t.ndim, t.is_conj(), t.is_neg()))
        self.numbers += t.shape
        self.numbers += t.stride()
