"""Recording of tensor operations: a graph node, and a run on fake tensors for its metadata."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from dovetail_guards.shape_env import DataDependentError as UnknownSizeError
from dovetail_guards.shape_env import ShapeEnv
from dovetail_prims.fake_tensor import DataDependentError, FakeTensor
from dovetail_prims.node_facts import CHECKPOINT, CHECKPOINT_POLICY, OPERATION
from dovetail_prims.sizes.data_sizes import data_symbols
from dovetail_prims.wrappers import MakeWrapper, is_wrapper, take_apart
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from dovetail_capture.interpreter.graph import fake_runs, graph_values, known_data
from dovetail_capture.interpreter.graph.aliasing import InputLayouts, updates_statistics, written_by
from dovetail_capture.interpreter.graph.random_tensors import SAMPLERS, note_sampler
from dovetail_capture.interpreter.signals import GraphBreakSignal, MustEndBefore
from dovetail_capture.interpreter.values.base import NONE, Constant, Value
from dovetail_capture.interpreter.values.containers import TupleValue
from dovetail_capture.interpreter.values.symbolic import SYMBOLIC_TYPES
from dovetail_capture.interpreter.values.tensors import TensorValue
from dovetail_capture.reporting.program_warnings import OperatorWarnings

# Functions that hand back their very argument when there is nothing to do; such a call leaves no
# node. In-place operations also return their argument, and must stay.
_MAY_DO_NOTHING = frozenset(
    {"dropout", "feature_dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d",
     "contiguous", "to", "float", "double", "half", "bfloat16", "int", "long", "bool", "type",
     "expand", "cpu", "cuda", "type_as"}
)  # fmt: skip


def _in_place(name: str, pairs: Sequence[Any], keyword_pairs: Mapping[str, Any]) -> bool:
    """May a dropout have written to its argument? (They take `input, p, training, inplace`.)"""
    at = pairs[3][1] if len(pairs) > 3 else keyword_pairs.get("inplace", (False, False))[1]
    return "dropout" in name and bool(at)


def _name_of(kind: str, target: Any) -> str:
    """The name of what a node calls: of a method, or of a function."""
    name: str = target if kind == "call_method" else getattr(target, "__name__", str(target))
    return name


UNKNOWN_SIZE_HINT = "say with torch._check(...) what holds of the size, or avoid the question"

Policy = Callable[..., Any]
"""`(context, operator, *args, **kwargs)` -> the `CheckpointPolicy` of an ATen operator."""


class Recorder(graph_values.RecordedValues):
    """Builds the graph. `stack_trace` is called for each node's `meta["stack_trace"]`."""

    def __init__(
        self, stack_trace: Callable[[], str], refused: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(stack_trace)
        self.refused = refused or {}  # operations by number that the backend cannot compile, why
        # Is the program in a block in which no class is asked about functions?
        self.functions_off: Callable[[], bool] = lambda: False
        self.warned = OperatorWarnings()
        self.operations = 0
        # Why an operation from here on ends the graph earlier, before the step of the top frame
        self.closed: tuple[str, int] | None = None
        self.checkpoint: int | None = None  # of the region that is captured: it is computed again
        self.policy: Policy | None = None  # what of the region is kept all the same
        # What is checked on GPUs, and is told at the graph's end; what holds harmless values if not
        self.checked: dict[torch.device, TensorValue] = {}
        self._safe: dict[int, Any] = {}  # by id, kept alive
        self.data = known_data.KnownData()
        self.mapped: set[Node] = set()  # inputs of which `vmap` shows a part at a time
        self.subgraphs: dict[str, GraphModule] = {}  # what operators are given, by name
        self._last_placeholder: Node | None = None
        self._layouts = InputLayouts()

    # --- inputs ------------------------------------------------------------------------------

    def placeholder(self, name: str, fake: Any) -> Node:
        """Add an input after the inputs so far."""
        graph = self.graph
        if self._last_placeholder is None:
            nodes = iter(graph.nodes)
            first = next(nodes, None)
            if first is None:
                node = graph.placeholder(name)
            else:
                with graph.inserting_before(first):
                    node = graph.placeholder(name)
        else:
            with graph.inserting_after(self._last_placeholder):
                node = graph.placeholder(name)
        node.meta["val"] = fake
        if isinstance(fake, FakeTensor):
            self._layouts.note(node, fake)
            self.sizes.bind_sizes(node, fake)
        elif not isinstance(fake, torch.Tensor):
            self.sizes.bind(fake, node)
        self._last_placeholder = node
        return node

    def owns(self, node: Node) -> bool:
        """Is this a node of the graph (or of one around it)?"""
        return node.graph is self.graph

    # --- operations --------------------------------------------------------------------------

    def record(
        self,
        kind: str,
        target: Any,
        args: list[Value],
        kwargs: dict[str, Value],
        run: Callable[..., Any] | None = None,
    ) -> Value:
        """Run an operation on fakes; record it unless what it gives is no tensor (shapes, dtypes
        and the like, which are folded)."""
        if self.checked:
            args, kwargs = self._made_safe(kind, target, args, kwargs)
        pairs = [self.argument(arg) for arg in args]
        keyword_pairs = {name: self.argument(arg) for name, arg in kwargs.items()}
        name = _name_of(kind, target)
        function = getattr(torch.Tensor, target, None) if kind == "call_method" else target
        if run is None:
            run = (
                function
                if callable(function)
                else lambda first, *rest, **named: getattr(first, target)(*rest, **named)
            )

        wraps, asked = fake_runs.wrappers_in(pair[1] for pair in (*pairs, *keyword_pairs.values()))
        if wraps and not asked and not self.functions_off():
            run = fake_runs.asking(
                run
            )  # what its `__torch_dispatch__` does, other classes are asked about

        def result_on_fakes(env: ShapeEnv | None) -> Any:
            with self.warned, self.fake_mode, data_symbols(env):
                return fake_runs.run_on_fakes(function, run, pairs, keyword_pairs)

        if self.inference_values and not self.inference:
            self._check_inference_tensors(function, run, pairs, keyword_pairs)
        try:
            result = None
            if self.data and known_data.has_known_number(self.data, name, pairs, keyword_pairs):
                try:
                    result = result_on_fakes(None)
                except (DataDependentError, UnknownSizeError):  # it asks for the data: for sizes
                    pairs, keyword_pairs = known_data.known_numbers_for(
                        self.data, name, pairs, keyword_pairs
                    )
            elif self.data_env is not None and known_data.may_ask(name, args, kwargs):
                try:
                    result = result_on_fakes(None)
                except (DataDependentError, UnknownSizeError):
                    # It would ask for the data by itself: the graph does so before.
                    first = 0 if name in known_data.SIZED_MAKERS else 1
                    args = [
                        *args[:first],
                        *(known_data.numbers_in(self, arg) for arg in args[first:]),
                    ]
                    kwargs = {
                        key: known_data.numbers_in(self, value) for key, value in kwargs.items()
                    }
                    return self.record(kind, target, args, kwargs, run)
            if result is None:
                result = result_on_fakes(self.data_env)
        except UnknownSizeError as error:
            if name in known_data.SIZES_AGREE and known_data.assume_equal(self, error):
                return self.record(kind, target, args, kwargs, run)
            raise GraphBreakSignal(f"`{name}`: {error}", UNKNOWN_SIZE_HINT) from error
        except Exception as error:
            raise fake_runs.refusal(name, error) from error
        return self._recorded(kind, target, run, pairs, keyword_pairs, result)

    def _check_inference_tensors(
        self, function: Any, run: Callable[..., Any], pairs: Any, keyword_pairs: Any
    ) -> None:
        """Break the graph at what eager refuses to do with an inference tensor."""
        args = [pair[1] for pair in pairs]
        kwargs = {key: pair[1] for key, pair in keyword_pairs.items()}
        if not self._is_inference(*tree_leaves((args, kwargs))):
            return

        def again(args: list[Any], kwargs: dict[str, Any]) -> Any:
            with self.fake_mode, fake_runs.ViewsOfInferenceTensors(), data_symbols(None):
                return fake_runs.run_on_given(function, run, args, kwargs)

        fake_runs.check_as_autograd_does(again, args, kwargs, self._is_inference)

    def _recorded(
        self,
        kind: str,
        target: Any,
        run: Callable[..., Any],
        pairs: list[Any],
        keyword_pairs: dict[str, Any],
        result: Any,
    ) -> Value:
        """The value of what an operation has given on fakes, and its node if it needs one."""
        name = _name_of(kind, target)
        if isinstance(result, torch.Tensor):
            known = self.values.get(id(result))
            if (
                known is not None
                and name in _MAY_DO_NOTHING
                and not _in_place(name, pairs, keyword_pairs)
            ):
                return known
        elif not graph_values.holds_tensor(result):
            if result is None:  # called for its effect on a tensor
                self._add(kind, target, pairs, keyword_pairs, None)
                return NONE
            if isinstance(result, SYMBOLIC_TYPES) and not self.sizes.can_compute(result):
                # A number that only the data tells: this call is where it comes from.
                self.sizes.bind(result, self._add(kind, target, pairs, keyword_pairs, result))
            return self.told(name, result)
        if all(type(part) is FakeTensor for part in graph_values.parts(result)):
            named = {key: pair[1] for key, pair in keyword_pairs.items()}
            self.data.note(name, run, [pair[1] for pair in pairs], named, result)
        node = self._add(kind, target, pairs, keyword_pairs, result)
        value = self.output(node, result)
        if name in SAMPLERS and isinstance(value, TensorValue):
            note_sampler(name, node, value, [pair[0] for pair in pairs])
        return value

    def aside(self, function: Any, args: list[Value]) -> TensorValue:
        """Record a call that is not numbered among the program's: captures without it count
        alike."""
        before, refused = self.operations, self.refused
        self.refused = {}
        try:
            found = cast(TensorValue, self.record("call_function", function, args, {}))
        finally:
            self.operations, self.refused = before, refused
        OPERATION.drop(found.node)
        return found

    def _made_safe(
        self, kind: str, target: Any, args: list[Value], kwargs: dict[str, Value]
    ) -> tuple[list[Value], dict[str, Value]]:
        """Arguments with harmless ones in place of what a GPU may not be given, where what was
        checked before does not hold."""
        name = _name_of(kind, target)
        args, kwargs = list(args), dict(kwargs)
        for place, keyword in fake_runs.places_of(name):
            if place < len(args):
                args[place] = self._harmless(name, args[place])
            elif keyword in kwargs:
                kwargs[keyword] = self._harmless(name, kwargs[keyword])
        return args, kwargs

    def _harmless(self, name: str, value: Value) -> Value:
        if isinstance(value, TupleValue) and value.cls is tuple:
            return TupleValue(
                [self._harmless(name, graph_values.looked_at(v)) for v in value.items]
            )
        if not isinstance(value, TensorValue) or id(value.fake) in self._safe:
            return value
        holds, number = (
            self.checked.get(value.fake.device),
            fake_runs.harmless_number(name, value.fake),
        )
        if holds is None or number is None:
            return value
        found = self.aside(torch.where, [holds, value, Constant(number)])
        self._safe[id(found.fake)] = found.fake
        return found

    def _add(self, kind: str, target: Any, pairs: Any, keyword_pairs: Any, result: Any) -> Node:
        if self.closed is not None:
            raise MustEndBefore(*self.closed)
        why = self.refused.get(self.operations)
        if why is not None:
            name = _name_of(kind, target)
            raise GraphBreakSignal(
                f"the backend cannot compile `{name}`: {why}",
                "call it outside of the compiled function, or compile with another backend",
            )
        if self.checked:
            name = _name_of(kind, target)
            given = [pair[1] for pair in (*pairs, *keyword_pairs.values())]
            if fake_runs.may_fault(name, given, self._safe):
                raise GraphBreakSignal(
                    f"`{name}` of what was checked before: a GPU that is given what is no place "
                    "can be used no longer",
                    "compile what checks its arguments apart from what uses them",
                )
        fakes = [pair[1] for pair in (*pairs, *keyword_pairs.values()) if len(pair) > 1]
        wraps, asked = fake_runs.wrappers_in(fakes)
        if wraps:
            self._check_inside(fakes)
        if asked:
            kind, target = fake_runs.unasked(kind, target)
        powers = target is operator.pow and isinstance(result, torch.Tensor)
        if powers and isinstance(pairs[0][0], (int, float)):
            target = torch.pow  # fx would print `-1 ** x`, which is `-(1 ** x)`
        node = self.graph.create_node(
            kind,
            target,
            tuple(pair[0] for pair in pairs),
            {name: pair[0] for name, pair in keyword_pairs.items()},
        )
        node.meta["val"] = result
        node.meta["stack_trace"] = self.stack_trace()
        OPERATION.tell(node, self.operations)
        self.data.forget_if_written(node)
        if self._inference_inputs and not torch.is_inference_mode_enabled():
            for part in written_by(node):
                if id(graph_values.storage(part.meta.get("val"))) in self._inference_inputs:
                    # (A compiled graph writes to its inputs at its end, outside of a block.)
                    raise GraphBreakSignal("a write to an inference tensor made elsewhere")
        if self.checkpoint is not None:
            CHECKPOINT.tell(node, self.checkpoint)
            if self.policy is not None:
                CHECKPOINT_POLICY.tell(node, self.policy)
            if updates_statistics(node) and node.meta["val"].requires_grad:
                raise GraphBreakSignal(
                    "running statistics that a checkpoint updates twice",
                    "checkpoint what comes before and after the normalisation",
                )
        self.operations += 1
        return node

    def _check_inside(self, fakes: Sequence[Any]) -> None:
        """An operation on an input that wraps tensors gives these no gradients: a backend takes
        such an input apart below autograd."""
        for fake in fakes:
            if isinstance(fake, (tuple, list)):
                self._check_inside(fake)
            elif isinstance(fake, torch.Tensor) and is_wrapper(fake):
                value = self.values.get(id(fake))
                if value is None or value.source is None:
                    continue
                if any(inner.requires_grad for inner in take_apart(fake)[1]):
                    raise GraphBreakSignal(
                        f"an operation on a {type(fake).__name__} around tensors that need "
                        "gradients themselves"
                    )

    # --- operators that are given graphs --------------------------------------------------------

    def subgraph(self, name: str, graph: GraphModule) -> Node:
        """A node for a graph that an operator is given."""
        name = f"{name}_{sum(known.startswith(name) for known in self.subgraphs)}"
        self.subgraphs[name] = graph
        node = self.graph.create_node("get_attr", name)
        node.meta["val"] = graph
        return node

    def call(self, target: Any, arguments: tuple[Any, ...], result: Any) -> Value:
        """Record a call of an operator on nodes, which gives fakes like `result`."""
        return self.output(
            self._add("call_function", target, [(a,) for a in arguments], {}, result), result
        )

    def make_wrapper(self, make: MakeWrapper, args: tuple[Any, ...], fake: Any) -> Node:
        """A node that makes a tensor around others, which `fake` stands for."""
        return self._add("call_function", make, [(arg, None) for arg in args], {}, fake)

    def module(self) -> GraphModule:
        """The graph, which is finished, as a module."""
        self._layouts.restore()
        root = torch.nn.Module()
        for name, graph in self.subgraphs.items():
            root.add_module(name, graph)
        return GraphModule(root, self.graph)

    def has_other_layouts(self) -> bool:
        """Has an operation changed in place how an input lies in memory?"""
        return self._layouts.have_changed()

    def state_change(self, target: Any, *args: Any) -> Node:
        """Record a change of torch's state (grad mode, autocast) between operations."""
        node = self.graph.create_node("call_function", target, args, {})
        node.meta["stack_trace"] = self.stack_trace()
        return node
