"""`trace_joint`: a captured graph and example inputs -> `JointGraph`.

Runs the captured graph's nodes on traced tensors, under C++ autograd and the tracer, then the
autograd engine from the outputs back to the inputs, and reads off how outputs relate to inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from dovetail_prims.conditionals import COND, WHILE
from dovetail_prims.data_sizes import data_symbols
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.gradient_hooks import GradientHook
from dovetail_prims.node_error import blame
from dovetail_prims.node_facts import CHECKED, CHECKPOINT, CHECKPOINT_POLICY
from dovetail_prims.stated import STATES
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._python_dispatch import _disable_current_modes

from dovetail_autograd_aot.boundary import (
    AddedInputs,
    BackwardFacts,
    GradientPoint,
    InputAssumptions,
    InputChanges,
    JointGraph,
    LostGradients,
    MovedInput,
    MutatedInput,
    OtherCounters,
    ReshapedInput,
    Signature,
    ViewStep,
)
from dovetail_autograd_aot.graph.fast_graph import FastGraph, hold
from dovetail_autograd_aot.graph.node_facts import UNUSED
from dovetail_autograd_aot.graph.op_info import draws_random_numbers
from dovetail_autograd_aot.joint import input_mutations, primals
from dovetail_autograd_aot.joint.conditionals import trace_conditional, trace_loop
from dovetail_autograd_aot.joint.data_checks import keep_checks
from dovetail_autograd_aot.joint.joint_backward import trace_backward
from dovetail_autograd_aot.joint.mutated_view_inputs import moved_inputs
from dovetail_autograd_aot.joint.saved_version_counters import other_counters
from dovetail_autograd_aot.joint.user_backwards import UserGradients
from dovetail_autograd_aot.outputs.classify import Inputs
from dovetail_autograd_aot.outputs.gradient_points import gradient_points, through_others
from dovetail_autograd_aot.outputs.output_aliasing import Classified, classify_outputs
from dovetail_autograd_aot.subclasses.wrapping import BOUNDARY_FUNCTIONS, Wrapping
from dovetail_autograd_aot.trace.attention_kernels import AttentionMode
from dovetail_autograd_aot.trace.autograd_queries import grad_fn_of
from dovetail_autograd_aot.trace.derivative_fixes import MendedDerivatives
from dovetail_autograd_aot.trace.engine import trace_settings
from dovetail_autograd_aot.trace.input_storages import (
    NonLeaf,
    base_of,
    storage_key,
    symbols_of,
)
from dovetail_autograd_aot.trace.node_values import attribute_of
from dovetail_autograd_aot.trace.rewrites import DIRECT_CALLS
from dovetail_autograd_aot.trace.storage import (
    ConstantWrittenError,
    StorageNeededError,
    TracedStorage,
    TraceError,
    track_of,
)
from dovetail_autograd_aot.trace.tracer import Tracer

Decompositions = Mapping[OpOverload, Callable[..., Any]]


def trace_joint(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    decompositions: Decompositions | None = None,
    function_mode: Callable[[], Any] | None = None,
    wrapping: Wrapping | None = None,
) -> JointGraph:
    """Trace `gm` ahead of time, forward and (where something requires grad) backward.

    `function_mode` makes a `TorchFunctionMode` under which the captured calls run: the place to
    keep an operator whole that C++ would decompose. `AttentionMode` if none is given. `wrapping`
    are the tensor subclasses at the boundary, whose plain graph `gm` is.
    """
    if function_mode is None:
        function_mode = AttentionMode
    lifted = _attributes_to_lift(gm)
    by_storage: list[int] = []
    asked_by: str | None = None  # the node on whose account storages are inputs
    locate = False
    while True:
        joint = None
        try:
            joint = JointTrace(
                gm, list(example_inputs), lifted, by_storage, decompositions or {}, locate, wrapping
            )
            joint.tracer.running = asked_by  # until the first node runs
            return joint.trace(function_mode)
        except ConstantWrittenError as error:
            # Restart with one more attribute as an input: it is written to.
            if not error.name or error.name in lifted:
                raise TraceError("a constant made inside the graph is written to") from error
            lifted = [*lifted, error.name]
        except StorageNeededError as error:
            # Restart with the storage of an input as an input.
            by_storage, asked_by = [*by_storage, error.primal], error.node
        except Exception as error:
            running = asked_by if joint is None else joint.tracer.running
            if running is not None:
                blame(error, running)
            elif joint is not None and not locate and joint.tracer.in_backward:
                locate = True  # once more, to learn which node's backward it is
                continue
            raise


def _attributes_to_lift(gm: GraphModule) -> list[str]:
    """Tensor attributes that need gradients or are outputs must be inputs of the graph."""
    names: list[str] = []
    output = next(n for n in gm.graph.nodes if n.op == "output")
    returned = set(output.all_input_nodes)
    for node in gm.graph.nodes:
        if node.op == "get_attr" and node.target not in names:
            value = attribute_of(gm, node.target)
            if isinstance(value, Tensor) and (
                node in returned or (value.requires_grad and torch.is_grad_enabled())
            ):
                names.append(node.target)
    return names


class JointTrace:
    """One trace of a captured graph: what stands for its inputs, and what became of them."""

    def __init__(
        self,
        gm: GraphModule,
        inputs: list[Any],
        lifted: list[str],
        by_storage: list[int],
        decompositions: Decompositions,
        locate: bool,
        wrapping: Wrapping | None,
    ) -> None:
        self.gm = gm
        self.wrapping = wrapping
        self.carriers = 0
        self.locate = locate  # let the tracer's `running` tell whose backward runs, too
        self.lifted = {name: attribute_of(gm, name) for name in lifted}
        self.examples = inputs + list(self.lifted.values())
        self.num_examples = len(self.examples)
        self.in_storage: dict[int, list[int]] = {}  # inputs by what they lie in
        for position, example in enumerate(self.examples):
            if isinstance(example, Tensor):
                self.in_storage.setdefault(storage_key(example), []).append(position)
        self.storages = input_mutations.shared_storages(self, by_storage)
        self.apart: list[tuple[int, int]] = []
        self.chains: dict[int, tuple[ViewStep, ...]] = {}  # of inputs that are views of storages
        self.homes: dict[int, TracedStorage] = {}  # the storages that inputs came in
        self.base_of = {  # the input that is its storage, by input
            member: self.num_examples + i
            for i, shared in enumerate(self.storages)
            for member in shared.members
        }
        self.examples += [base_of(shared, self.examples) for shared in self.storages]
        self.graph = FastGraph()
        self.tracer = Tracer(self.graph, decompositions, symbols_of(gm))
        self.user_gradients = UserGradients(self.tracer, (NonLeaf, *BOUNDARY_FUNCTIONS))
        self.derivatives = MendedDerivatives(self.user_gradients.watch)
        self.primals: list[Any] = []  # what the captured graph is run on
        self.leaves: list[FakeTensor | None] = []  # what gradients are asked for
        self.placeholders: list[Node] = []
        self.grad_fns: list[Any] = []  # of the primals, before the graph runs
        self.backward_error: str | None = None
        self.lost: tuple[LostGradients, ...] = ()
        self.additive = True
        self.reached: tuple[int, ...] = ()
        self.freed: tuple[tuple[int, int], ...] = ()
        self.paths: tuple[bool, ...] = ()
        self.versions: dict[int, int] = {}  # of the primals, before the graph runs
        self.counter_of: dict[int, int] = {}  # of the primals: the first that has the same counter
        self.moved: tuple[MovedInput, ...] = ()

    def trace(self, function_mode: Callable[[], Any] | None) -> JointGraph:
        """Run the forward and the engine, once; `function_mode` is as for `trace_joint`."""
        grad_mode = torch.is_grad_enabled()
        primals.make_primals(self)
        with trace_settings(), data_symbols(self.tracer.data_env):
            try:
                with ExitStack() as stack:
                    stack.enter_context(self.tracer)
                    if function_mode is not None:
                        stack.enter_context(function_mode())
                    outputs = self._run()
            except RuntimeError:
                input_mutations.refuse_graded_writes(self)
                raise
            finally:
                torch._C._set_grad_enabled(grad_mode)
            self.tracer.stack_trace = None
            self.tracer.checkpoint = self.tracer.policy = None
            input_mutations.refuse_graded_writes(self)
            primals.look_at_grown_storages(self)
            were_set = input_mutations.set_inputs(self)
            outputs += [self.primals[i] for i in were_set]
            with torch.no_grad():
                mutated = input_mutations.mutated_inputs(self)
                inputs = Inputs(
                    self.primals,
                    self.chains,
                    {
                        self.num_examples + i: shared.members
                        for i, shared in enumerate(self.storages)
                    },
                    self.homes,
                    were_set,
                )
                result = classify_outputs(self.tracer, outputs, inputs, mutated)
                input_mutations.refuse_untracked_views(self, result)
            self.tracer.seen_outside = {
                track_of(tensor).storage
                for tensor in (*self.primals, *outputs)
                if type(tensor) is FakeTensor
            }
            gradients = trace_backward(self, result)
            reshaped = input_mutations.reshaped_inputs(self)
            self.moved = moved_inputs(self, mutated, reshaped, result.infos)
            points: tuple[GradientPoint, ...] = ()
            if self.wrapping is None:
                input_mutations.take_views_of_reshaped(self, result, reshaped)
                points = gradient_points(outputs, self.primals, result, mutated, reshaped)
                result.infos = through_others(result.infos, points)
            counters = other_counters(self, outputs, result)
        return self._finish(result, mutated, reshaped, gradients, points, were_set, counters)

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
            if isinstance(found, (torch.SymInt, torch.SymFloat)):
                settled = found.node.constant  # an operator before needed it as a number
                return found if settled is None else settled
            return found

        for node in self.gm.graph.nodes:
            tracer.stack_trace = node.meta.get("stack_trace")
            tracer.checkpoint = CHECKPOINT.of(node)
            tracer.policy = CHECKPOINT_POLICY.of(node)
            tracer.running = node.name
            op = node.op
            if op == "placeholder":
                env[node] = next(inputs)
                continue
            if op == "get_attr":
                if node.target in lifted:
                    env[node] = lifted[node.target]
                else:
                    attribute = attribute_of(self.gm, node.target)
                    if isinstance(attribute, Tensor):
                        attribute = tracer.constant(attribute, name=node.target)
                    env[node] = attribute
                continue
            args = torch.fx.node.map_arg(node.args, value)
            if op == "output":
                tracer.running = None
                outputs = args[0]
                if isinstance(outputs, (list, tuple)):
                    return list(outputs)
                raise TraceError("the captured graph must return a tuple")
            kwargs = torch.fx.node.map_arg(node.kwargs, value) if node.kwargs else {}
            env[node] = results = self._call(node, args, kwargs)
            if self.wrapping is not None:
                self.wrapping.look_at_inputs()
            for result in results if isinstance(results, (tuple, list)) else (results,):
                if isinstance(result, Tensor):
                    grad_fn = grad_fn_of(result)
                    self.derivatives.visit(grad_fn)
                    if self.locate and grad_fn is not None:
                        self._note_backward(node.name, grad_fn)
        raise TraceError("the captured graph has no output")

    def _call(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a node of the captured graph gives."""
        target: Any = node.target
        if target in STATES:
            _state(*args)
            return None
        if target is COND:
            predicate, *branches, operands = args
            return trace_conditional(self.tracer, predicate, branches, operands, self._trace_branch)
        if target is WHILE:
            carried, additional = args[2:]
            return trace_loop(self.tracer, args[:2], carried, additional, self._trace_branch)
        if isinstance(target, GradientHook):
            return self.user_gradients.hooked(target, *args)
        if node.op == "call_function":
            return DIRECT_CALLS.get(target, target)(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return self.gm.get_submodule(target)(*args, **kwargs)

    def _trace_branch(self, branch: GraphModule, operands: Sequence[Any]) -> JointGraph:
        """A branch of a conditional, traced as a graph by itself."""
        with _disable_current_modes():
            return trace_joint(branch, operands, decompositions=self.tracer.decompositions)

    def _note_backward(self, name: str, grad_fn: Any) -> None:
        """Let `running` be `name` while the backward of `grad_fn` runs."""

        def begin(_: Any) -> None:
            self.tracer.running = name

        grad_fn.register_prehook(begin)

    # --- the graph --------------------------------------------------------------------------------

    def _finish(
        self,
        result: Classified,
        mutated: list[MutatedInput],
        reshaped: tuple[ReshapedInput, ...],
        gradients: list[Node | None],
        points: tuple[GradientPoint, ...],
        were_set: tuple[int, ...],
        counters: OtherCounters,
    ) -> JointGraph:
        has_backward = any(g is not None for g in gradients)
        outputs = [*result.forward, *(gradients if has_backward else [])]
        keep_checks(self.tracer, result.forward)
        self._placeholders_first()
        output = self.graph.output(tuple(outputs))
        output.meta["val"] = tuple(n.meta["val"] if isinstance(n, Node) else n for n in outputs)
        self.tracer.sizes.mark_checked(self.tracer.data_env)
        _eliminate_dead_code(self.graph)
        signature = Signature(
            primals_require_grad=tuple(g is not None for g in gradients),
            outputs=tuple(result.infos),
            changes=InputChanges(
                mutated=tuple(mutated),
                reshaped=reshaped,
                set_inputs=were_set,
                bumped=input_mutations.bumped_inputs(self, mutated),
                extra_writes=input_mutations.counted_writes(self, mutated, reshaped),
                counted=input_mutations.counted_inputs(self, mutated),
            ),
            differentiable=tuple(result.differentiable),
            hidden=result.hidden,
            sizes=result.sizes,
            backward_error=self.backward_error,
            lost=self.lost,
        )
        root = torch.nn.Module()
        for name, value in (*self.tracer.constants.items(), *self.tracer.subgraphs.items()):
            hold(root, name, value)
        return JointGraph(
            _LazyGraphModule(root, self.graph, "Joint"),
            signature,
            added=AddedInputs(tuple(self.lifted.values()), tuple(self.storages), self.carriers),
            assumed=InputAssumptions(tuple(self.apart), self.moved),
            backward=BackwardFacts(
                self.reached, self.paths, self.freed, self.user_gradients.seen, self.additive
            ),
            points=points,
            counters=counters,
        )

    def _placeholders_first(self) -> None:
        """Tangents were made after the forward; the graph takes its inputs first."""
        last: Node | None = None
        others = [
            n for n in self.graph.nodes if n.op == "placeholder" and n not in self.placeholders
        ]
        for node in (*self.placeholders, *others):
            if last is not None and last.next is not node:
                last.append(node)
            last = node


def _state(condition: Any, message: str = "") -> None:
    """`torch._check` in the captured graph: what holds from here on."""
    if isinstance(condition, torch.SymBool):
        stated: Any = condition.node
        condition = stated.state(message)
    if not condition:
        raise TraceError(f"a check of the program fails: {message or condition}")


def _eliminate_dead_code(graph: Graph) -> None:
    """Drop what nothing uses; random operators stay, as they advance the generator."""
    for node in reversed(graph.nodes):
        if node.users or node.op in ("placeholder", "output"):
            continue
        kept = draws_random_numbers(node) or CHECKED.holds(node)
        if not kept or UNUSED.holds(node):
            graph.erase_node(node)
