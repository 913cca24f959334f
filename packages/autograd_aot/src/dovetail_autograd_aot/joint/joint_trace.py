"""`trace_joint`: a captured graph and example inputs -> `JointGraph`.

Runs the captured graph's nodes on traced tensors, under C++ autograd and the tracer, then the
autograd engine from the outputs back to the inputs, and reads off how outputs relate to inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from dovetail_prims.conditionals import COND, WHILE
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.graphs.gradient_hooks import GradientHook
from dovetail_prims.node_facts import CHECKED, CHECKPOINT, CHECKPOINT_POLICY, blame
from dovetail_prims.sizes.data_sizes import data_symbols
from dovetail_prims.sizes.size_nodes import STATES
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._python_dispatch import _disable_current_modes

from dovetail_autograd_aot import boundary as b
from dovetail_autograd_aot.graph.fast_graph import UNUSED, FastGraph, hold
from dovetail_autograd_aot.graph.op_info import draws_random_numbers
from dovetail_autograd_aot.joint import input_mutations
from dovetail_autograd_aot.joint.conditionals import trace_conditional, trace_loop
from dovetail_autograd_aot.joint.data_checks import keep_checks
from dovetail_autograd_aot.joint.input_mutations import moved_inputs
from dovetail_autograd_aot.joint.joint_backward import JointBackward, TracedBackward
from dovetail_autograd_aot.joint.primals import Examples, Primals
from dovetail_autograd_aot.joint.saved_version_counters import other_counters
from dovetail_autograd_aot.joint.user_backwards import UserGradients
from dovetail_autograd_aot.outputs.classify import Inputs
from dovetail_autograd_aot.outputs.gradient_points import gradient_points, through_others
from dovetail_autograd_aot.outputs.output_aliasing import Classified, classify_outputs
from dovetail_autograd_aot.subclasses.wrapping import BOUNDARY_FUNCTIONS, Wrapping
from dovetail_autograd_aot.trace import storage
from dovetail_autograd_aot.trace.autograd_queries import grad_fn_of, trace_settings
from dovetail_autograd_aot.trace.derivative_fixes import MendedDerivatives
from dovetail_autograd_aot.trace.input_storages import NonLeaf, symbols_of
from dovetail_autograd_aot.trace.node_values import attribute_of
from dovetail_autograd_aot.trace.rewrites import DIRECT_CALLS, RewritingMode
from dovetail_autograd_aot.trace.tracer import Tracer

Decompositions = Mapping[OpOverload, Callable[..., Any]]


def trace_joint(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    decompositions: Decompositions | None = None,
    wrapping: Wrapping | None = None,
) -> b.JointGraph:
    """Trace `gm` ahead of time, forward and (where something requires grad) backward.

    `wrapping` are the tensor subclasses at the boundary, whose plain graph `gm` is.
    """
    lifted = _attributes_to_lift(gm)
    by_storage: list[int] = []
    asked_by: str | None = None  # the node on whose account storages are inputs
    locate = False
    while True:
        joint = None
        try:
            examples = Examples(gm, example_inputs, lifted, by_storage)
            joint = JointTrace(gm, examples, decompositions or {}, locate, wrapping)
            joint.tracer.running = asked_by  # until the first node runs
            return joint.trace()
        except storage.ConstantWrittenError as error:
            # Restart with one more attribute as an input: it is written to.
            if not error.name or error.name in lifted:
                raise storage.TraceError(
                    "a constant made inside the graph is written to"
                ) from error
            lifted = [*lifted, error.name]
        except storage.StorageNeededError as error:
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
    """One trace of a captured graph: it is run on what stands for its inputs, then autograd's
    engine. With `locate`, the tracer's `running` tells whose backward runs, too."""

    def __init__(
        self,
        gm: GraphModule,
        examples: Examples,
        decompositions: Decompositions,
        locate: bool,
        wrapping: Wrapping | None,
    ) -> None:
        self.gm = gm
        self.examples = examples
        self.locate = locate
        self.wrapping = wrapping
        self.tracer = Tracer(FastGraph(), decompositions, symbols_of(gm))
        self.user_gradients = UserGradients(self.tracer, (NonLeaf, *BOUNDARY_FUNCTIONS))
        self.derivatives = MendedDerivatives(self.user_gradients.watch)

    def trace(self) -> b.JointGraph:
        """Run the forward and the engine, once."""
        tracer = self.tracer
        primals = Primals(self.examples, tracer)
        with trace_settings(), data_symbols(tracer.data_env):
            outputs = self._run_forward(primals)
            primals.follow_grown_storages()
            were_set = input_mutations.inputs_set(
                primals, beside_subclasses=self.wrapping is not None
            )
            outputs += [primals[i].value for i in were_set]
            with torch.no_grad():
                mutated = input_mutations.mutated_inputs(primals)
                inputs = _inputs_of(primals, were_set)
                result = classify_outputs(tracer, outputs, inputs, mutated)
                input_mutations.refuse_untracked_views(primals, result)
            tracer.seen_outside = {
                storage.track_of(tensor).storage
                for tensor in (*primals.values, *outputs)
                if type(tensor) is FakeTensor
            }
            backward = JointBackward(
                primals, self.user_gradients, self.derivatives, self.wrapping, result.roots
            ).trace()
            reshaped = input_mutations.reshaped_inputs(primals)
            moved = moved_inputs(primals, backward.facts.paths, mutated, reshaped, result.infos)
            points: tuple[b.GradientPoint, ...] = ()
            counters = b.OtherCounters()
            if self.wrapping is None:
                input_mutations.take_views_of_reshaped(primals, result, reshaped)
                points = gradient_points(outputs, primals.values, result, mutated, reshaped)
                result.infos = through_others(result.infos, points)
                counters = other_counters(primals, outputs, result)
        finished = self._finished_graph(primals, result, backward)
        changes = input_mutations.input_changes(primals, mutated, reshaped, were_set)
        return b.JointGraph(
            finished,
            _signature(result, changes, backward),
            added=b.AddedInputs(
                tuple(self.examples.lifted.values()),
                tuple(self.examples.storages),
                primals.carriers,
            ),
            assumed=b.InputAssumptions(input_mutations.inputs_apart(primals, mutated), moved),
            backward=backward.facts,
            points=points,
            counters=counters,
            eager_cost=tracer.eager_cost,
        )

    # --- forward ----------------------------------------------------------------------------------

    def _run_forward(self, primals: Primals) -> list[Any]:
        """The captured graph's outputs; grad mode is as before in the end."""
        grad_mode = torch.is_grad_enabled()
        tracer = self.tracer
        try:
            with tracer, RewritingMode():
                outputs = self._run(primals.values)
        except RuntimeError:
            input_mutations.refuse_graded_writes(tracer)
            raise
        finally:
            torch._C._set_grad_enabled(grad_mode)
        tracer.stack_trace = None
        tracer.checkpoint = tracer.policy = None
        input_mutations.refuse_graded_writes(tracer)
        return outputs

    def _run(self, primals: list[Any]) -> list[Any]:
        """The captured graph's nodes, one by one."""
        env: dict[Node, Any] = {}
        inputs = iter(primals)
        names = self.examples.lifted
        attributes = primals[self.examples.count - len(names) : self.examples.count]
        lifted = dict(zip(names, attributes, strict=True))
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
                raise storage.TraceError("the captured graph must return a tuple")
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
        raise storage.TraceError("the captured graph has no output")

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

    def _trace_branch(self, branch: GraphModule, operands: Sequence[Any]) -> b.JointGraph:
        """A branch of a conditional, traced as a graph by itself."""
        with _disable_current_modes():
            return trace_joint(branch, operands, decompositions=self.tracer.decompositions)

    def _note_backward(self, name: str, grad_fn: Any) -> None:
        """Let `running` be `name` while the backward of `grad_fn` runs."""

        def begin(_: Any) -> None:
            self.tracer.running = name

        grad_fn.register_prehook(begin)

    # --- the graph --------------------------------------------------------------------------------

    def _finished_graph(
        self, primals: Primals, result: Classified, backward: TracedBackward
    ) -> GraphModule:
        """The graph with its outputs, and without what nothing uses."""
        has_backward = any(g is not None for g in backward.gradients)
        outputs = [*result.forward, *(backward.gradients if has_backward else [])]
        tracer, graph = self.tracer, self.tracer.graph
        keep_checks(tracer, result.forward)
        _put_first(primals.placeholders, graph)
        output = graph.output(tuple(outputs))
        output.meta["val"] = tuple(n.meta["val"] if isinstance(n, Node) else n for n in outputs)
        tracer.sizes.mark_checked(tracer.data_env)
        _eliminate_dead_code(graph)
        root = torch.nn.Module()
        for name, value in (*tracer.constants.items(), *tracer.subgraphs.items()):
            hold(root, name, value)
        return _LazyGraphModule(root, graph, "Joint")


def _inputs_of(primals: Primals, were_set: tuple[int, ...]) -> Inputs:
    """What is known of the inputs where outputs are classified."""
    examples = primals.examples
    return Inputs(
        primals.values,
        {i: primal.chain for i, primal in enumerate(primals) if primal.chain},
        {examples.count + i: shared.members for i, shared in enumerate(examples.storages)},
        {i: p.storage for i, p in enumerate(primals) if p.storage is not None},
        were_set,
    )


def _signature(
    result: Classified, changes: b.InputChanges, backward: TracedBackward
) -> b.Signature:
    return b.Signature(
        primals_require_grad=tuple(g is not None for g in backward.gradients),
        outputs=tuple(result.infos),
        changes=changes,
        differentiable=tuple(result.differentiable),
        hidden=result.hidden,
        sizes=result.sizes,
        backward_error=backward.error,
        lost=backward.lost,
    )


def _put_first(placeholders: Sequence[Node], graph: Graph) -> None:
    """Let a graph begin with these of its placeholders, then the others: tangents were made after
    the forward."""
    own = set(placeholders)
    last: Node | None = None
    others = [n for n in graph.nodes if n.op == "placeholder" and n not in own]
    for node in (*placeholders, *others):
        if last is not None and last.next is not node:
            last.append(node)
        last = node


def _state(condition: Any, message: str = "") -> None:
    """`torch._check` in the captured graph: what holds from here on."""
    if isinstance(condition, torch.SymBool):
        stated: Any = condition.node
        condition = stated.state(message)
    if not condition:
        raise storage.TraceError(f"a check of the program fails: {message or condition}")


def _eliminate_dead_code(graph: Graph) -> None:
    """Drop what nothing uses; random operators stay, as they advance the generator."""
    for node in reversed(graph.nodes):
        if node.users or node.op in ("placeholder", "output"):
            continue
        kept = draws_random_numbers(node) or CHECKED.holds(node)
        if not kept or UNUSED.holds(node):
            graph.erase_node(node)
