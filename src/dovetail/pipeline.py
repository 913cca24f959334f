"""The table of contents of the compiler: from a captured FX graph to something that runs.

    capture           bytecode -> TORCH-dialect graph            dovetail_capture (calls us)
    autograd_aot      attention written out, as attention        recognise_attention
                      ... with a function of its scores          recognise_scored_attention
                      -> functional forward and backward graphs  aot_compile
      prims           ... decomposed to CORE_ATEN while tracing  core_aten_table
      inductor        ... laid out before it is cut in two       prefer_channels_last
    inductor          -> loops -> fused kernels -> Plan          compile_graph
    runtime           -> kernels built, plan loaded natively     load

Each stage can be run alone from the boundary value before it; nothing else joins them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from dovetail_autograd_aot import (
    AotSettings,
    JointGraph,
    PartitionedGraph,
    Signature,
    aot_compile,
    min_cut_partition,
    narrow_saved_indices,
    recognise_attention,
    recognise_scored_attention,
)
from dovetail_autograd_aot.trace.node_values import example_values
from dovetail_capture import BackendTraits, has_static_address
from dovetail_capture.environment.python_state import collector_paused
from dovetail_capture.reporting import failures
from dovetail_inductor import (
    DeviceTuner,
    compile_graph,
    find_error,
    prefer_channels_last,
    prepare_weights,
)
from dovetail_prims.artifact_log import tell
from dovetail_prims.conditionals import run_plainly
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.backend_traits import AsWritten
from dovetail_prims.node_facts import FUNCTION, STATIC, blamed
from dovetail_prims.sizes.at_sizes import is_symbolic
from dovetail_prims.wrappers import has_wrappers, is_wrapper
from dovetail_runtime import CompiledArtifact, KernelBuild, LoadOptions, load
from dovetail_runtime.artifact import default_triton_builder
from dovetail_runtime.cuda_graphs import GraphedArtifact, GraphPool, RecordingPolicy
from torch.fx import GraphModule

from dovetail import compile_records as records
from dovetail.backends.eager_kernels import run_eagers_kernels
from dovetail.compile_records import Begun, BegunAhead, CompiledGraph, CompileRecords
from dovetail.options import MODES, Options
from dovetail.per_size import PerSize
from dovetail.stages_shown import is_anything_shown, passes_shown, tell_of_cuda_graph, tell_of_plan
from dovetail.weights import ConstantWeights

# What graphs that nobody asked for may hold.
LAUNCH_BOUND_BYTES = 256 << 20
# Results from this size on are handed out in the graph's memory. Smaller ones are copied in about
# the time of a launch, and callers may keep as many as they like.
LARGE_OUTPUT_BYTES = 2 << 20
# Captured operators for each kernel, at most: compilers are started for so many.
NODES_A_KERNEL = 8


def with_attention(gm: GraphModule) -> GraphModule:
    """A captured graph with the attention that it writes out in calls of operators."""
    return recognise_scored_attention(recognise_attention(gm))


@dataclass(frozen=True)
class _Role:
    """What is known of a functional graph besides its operators: the user's line that it comes
    from, whether gradients are computed, and which inputs stay where they are (`static`) and which
    results become the caller's (`kept`), by position. `late`: it is compiled while the program
    runs, when no graph can break any more. `recovers`: where that fails, it runs uncompiled.
    `function` is the qualified name of the user's, "" if none is known."""

    training: bool
    place: str
    static: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    late: bool = False
    recovers: bool = True
    function: str = ""


@dataclass
class CompilerBackend:
    """Our compiler as a backend: `(gm, example_inputs) -> callable`. `tuner` tells what it chose
    under `max_autotune`; `writes_inputs`: one of the graphs does."""

    options: Options
    records: CompileRecords = field(default_factory=CompileRecords)
    tuner: DeviceTuner = field(default_factory=DeviceTuner)
    writes_inputs: bool = False
    ahead: BegunAhead = field(default_factory=BegunAhead, compare=False)
    _pool: GraphPool | None = None
    backend_traits: ClassVar[BackendTraits] = BackendTraits(symbolic=True, compiler=True)

    def __str__(self) -> str:
        mode = next((name for name, found in MODES.items() if found == self.options), None)
        return "dovetail with options" if mode is None else f"dovetail, mode {mode}"

    def reset(self) -> None:
        """Tell of nothing that was compiled so far: it is compiled anew."""
        fresh = CompilerBackend(self.options)
        for each in fields(self):
            setattr(self, each.name, getattr(fresh, each.name))

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a captured graph, with its backward if its inputs require grad."""
        with collector_paused():
            if self.options.fallback_by_default:
                return run_eagers_kernels(gm, example_inputs)
            return self._compile_captured(gm, example_inputs)

    def _compile_captured(
        self, gm: GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        with torch._C.DisableTorchFunctionSubclass():  # a tensor's class may have a method for this
            training = torch.is_grad_enabled() and any(
                isinstance(v, torch.Tensor) and v.requires_grad for v in example_inputs
            )
            on_gpu = any(isinstance(v, torch.Tensor) and v.is_cuda for v in example_inputs)
        if on_gpu and torch.cuda.is_available():
            # Idle ones end; in a graph that is cached they have nothing to do.
            default_triton_builder().warm(len(gm.graph.nodes) // NODES_A_KERNEL)
        # (Tensor subclasses are taken apart: the graph's inputs are others then.)
        wrapped = any(map(is_wrapper, example_inputs)) or has_wrappers(gm.graph)
        places = () if wrapped else enumerate(example_inputs)
        static = frozenset(
            i for i, v in places if isinstance(v, torch.Tensor) and has_static_address(v)
        )
        role = _Role(training, failures.place_in(gm), static, function=FUNCTION.of(gm) or "")
        tell("pre_grad_graphs", role.place, lambda: str(gm.code.strip()), suffix="py")
        keeps_weights = self.options.constant_weights and not training and not wrapped
        stages = _Stages(self, gm, role, keeps_weights)
        start, known = time.perf_counter(), len(self.records.graphs)
        run = aot_compile(
            gm,
            example_inputs,
            forward_compiler=stages.compile_forward,
            backward_compiler=stages.compile_backward,
            decompositions=core_aten_table(),
            partition=stages.partition,
            settings=AotSettings(
                rewrite=with_attention, late_error=partial(self._note, replace(role, late=True), gm)
            ),
            log=self.records.autograd,
        )
        generated = sum(g.codegen_s + g.load_s for g in self.records.graphs[known:])
        self.records.tracing_s += time.perf_counter() - start - generated
        if stages.writes_unseen and self.options.constant_weights:
            return self._telling(run)
        plain = not (wrapped or self.options.cudagraphs or self.options.constant_weights)
        made = [] if on_gpu else self.records.graphs[known:]  # (there, libraries' calls stay ours)
        as_written = plain and stages.parts and records.is_as_written(gm, stages.parts, made)
        return AsWritten(run) if as_written or (plain and stages.is_cheap) else run

    def _telling(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run`, after which nothing is known of weights."""

        def run_and_tell(*inputs: Any) -> Any:
            try:
                return run(*inputs)
            finally:
                for weights in self.records.weights:
                    weights.forget()

        return run_and_tell

    def _compile(
        self, gm: GraphModule, example_inputs: Sequence[Any], role: _Role
    ) -> Callable[..., Any]:
        """One functional graph made callable."""
        if _computes_shapes(gm):
            return gm.forward
        try:
            artifact = self.compile_functional(gm, example_inputs, role.place, label_of(gm, role))
        except Exception as error:
            return self._without_kernels(gm, role, error)
        asked_for = self.options.cudagraphs
        by_itself = self.options.launch_bound_cudagraphs and not role.training
        if artifact.plan.target != "cuda" or not (asked_for or by_itself):
            return artifact.run
        if self._pool is None:
            self._pool = GraphPool()
        policy = RecordingPolicy(
            role.static,
            held_outputs=frozenset(range(len(artifact.plan.outputs))) - role.kept,
            large_output=LARGE_OUTPUT_BYTES if asked_for else None,
            kept_bytes=LARGE_OUTPUT_BYTES if asked_for else 0,
            memory_budget=None if asked_for else LAUNCH_BOUND_BYTES,
            only_launch_bound=not asked_for,
        )
        told = partial(tell_of_cuda_graph, role.place)
        graphed = GraphedArtifact(artifact, self._pool, policy, told)
        if graphed.never_records and not asked_for:
            return artifact.run
        self.records.add_recorded(graphed)
        return graphed

    def _without_kernels(
        self, gm: GraphModule, role: _Role, error: Exception
    ) -> Callable[..., Any]:
        """What runs a graph that compiling failed for: a compilation for each size if sizes are
        symbolic, else ATen's operators. Raises the error if that is asked for, or if another
        capture may do better."""
        if failures.error_of_program(error) is None and is_symbolic(gm):
            if failures.is_mistake(error):
                self._note(role, gm, error)
            strict = replace(role, recovers=False)
            return PerSize(
                gm,
                f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}",
                lambda graph, inputs: self._compile(graph, inputs, strict),
                self.records.per_size.append,
                partial(self._uncompiled, role),
            )
        told = blamed(error) is not None and not role.late  # the graph may break at that node
        if told or not role.recovers:
            raise error
        return self._uncompiled(role, gm, error)

    def skips(self) -> list[str]:
        """What is not recorded as a CUDA graph or not replayed, and why."""
        return [skip for graph in self.records.recorded for skip in graph.skips()]

    def uncompiled(self, gm: GraphModule, error: Exception) -> Callable[..., Any]:
        """What runs a captured graph that compiling failed for; raises what is not to be passed
        over."""
        return self._uncompiled(_Role(False, failures.place_in(gm)), gm, error)

    def _uncompiled(self, role: _Role, gm: GraphModule, error: Exception) -> Callable[..., Any]:
        self._note(role, gm, error)
        return run_plainly(gm)

    def _note(self, role: _Role, gm: GraphModule, error: Exception) -> None:
        """Keep an internal error, and warn of it; raise it if it is the program's, or if that is
        asked for."""
        own = failures.error_of_program(error)
        if own is not None:
            raise own from own.__cause__
        if self.options.on_error == "raise":
            raise error
        stage = "compiling a graph at run time" if role.late else "compiling a graph"
        failures.note_failure(
            self.records.failures, failures.failure_of(stage, error, role.place, gm)
        )

    def compile_functional(
        self, gm: GraphModule, example_inputs: Sequence[Any], place: str = "", label: str = ""
    ) -> CompiledArtifact:
        """Compile a functional ATen graph: loops, kernels, plan, native program. `label` is what
        profiles call its calls. While its kernels are built, the backward that follows is begun."""
        start = time.perf_counter()
        with collector_paused():  # (a backward's is compiled at the first call of it)
            plan, build = self.ahead.begun.pop(gm, None) or self._begin(gm, example_inputs, place)
            planned = time.perf_counter()
            backward = self.ahead.backwards.get(gm)
            if backward is not None and build.is_underway():
                self._begin_ahead(backward, place)
            try:
                artifact = load(plan, options=LoadOptions(label=label), build=build)
            except Exception as error:
                if (found := find_error(gm, example_inputs)) is not None:
                    error.add_note(f"The code generator is at fault, {found}")
                raise
        loaded = time.perf_counter()
        self.records.graphs.append(CompiledGraph.of(plan, planned - start, loaded - planned))
        return artifact

    def _begin(self, gm: GraphModule, example_inputs: Sequence[Any], place: str) -> Begun:
        """Plan a graph, and have its kernels built in the background."""
        tuner = self.tuner if self.options.max_autotune else None
        build, log = KernelBuild(), passes_shown(gm, place)
        plan = compile_graph(gm, example_inputs, log=log, tuner=tuner, written=build.written)
        tell_of_plan(plan, place)
        build.begin(plan.kernels)
        return plan, build

    def _begin_ahead(self, gm: GraphModule, place: str) -> None:
        """Begin a graph that is not asked for yet. What fails is tried again, and told, when it is;
        so is what measures, or what is logged."""
        if self.options.max_autotune or is_anything_shown():
            return
        with suppress(Exception), torch.no_grad():
            self.ahead.begun[gm] = self._begin(gm, example_values(gm), place)


@dataclass
class _Stages:
    """What AOT autograd calls while it compiles one captured graph: to cut a joint graph, then to
    compile its forward and its backward. `parts` are the latest of these graphs."""

    backend: CompilerBackend
    gm: GraphModule
    role: _Role
    keeps_weights: bool
    parts: PartitionedGraph | None = None
    is_cheap: bool = False  # for eager
    writes_unseen: bool = False  # are inputs written without their version counters' telling?
    has_storages: bool = False

    def partition(self, joint: JointGraph) -> PartitionedGraph:
        """Cut a joint graph in forward and backward."""
        place = self.role.place
        parts = cut(joint, self.backend.options)
        tell("aot_joint_graph", place, joint.as_text, suffix="py", value=joint)
        tell("aot_graphs", place, parts.as_text, suffix="py", value=parts)
        self.parts, self.is_cheap = parts, records.is_cheap(self.gm, parts, joint)
        # (Beside a loss, other outputs most likely get no gradient: another backward is needed.)
        outputs: Any = parts.forward.graph.output_node().args[0]
        losses = {outputs[i].meta["val"].dim() == 0 for i in parts.signature.differentiable}
        if parts.backward is not None and len(losses) == 1 and not self.is_cheap:
            self.backend.ahead.backwards[parts.forward] = parts.backward
        mutated = parts.signature.changes.mutated
        self.writes_unseen |= any(m.silent for m in mutated)
        self.has_storages = bool(joint.added.storages)
        self.backend.writes_inputs |= bool(mutated)
        return parts

    def compile_forward(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a forward; what depends on weights alone is computed once, if that is asked
        for."""
        role, constant = self.role, frozenset[int]()
        if self.parts is not None:
            role = replace(role, kept=_kept_by_the_caller(self.parts.signature))
            if self.keeps_weights and not self.has_storages:
                constant = never_written(self.gm, self.parts.signature)
        split = prepare_weights(graph, constant) if constant else None
        if split is None:
            return self.backend._compile(graph, inputs, role)
        given = [*inputs, *split.prepared]
        known = role.static.union(range(len(inputs), len(given)))
        run = self.backend._compile(split.rest, given, replace(role, static=known))
        weights = ConstantWeights(split, run)
        self.backend.records.add_weights(weights)
        return weights

    def compile_backward(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a backward, which may be while the program runs."""
        late = replace(self.role, static=frozenset(), kept=frozenset(), late=True)
        return self.backend._compile(graph, inputs, late)


def label_of(gm: GraphModule, role: _Role) -> str:
    """What profiles call a graph's calls: the function that was compiled, a module by its class,
    with its first line that computes something: `dovetail: forward of MyModel (model.py:12)`."""
    traces = (str(node.meta.get("stack_trace") or "") for node in gm.graph.nodes)
    outermost = next((trace.strip().splitlines()[0] for trace in traces if trace.strip()), "")
    found = re.search(r'File "([^"]*)", line (\d+), in (.*)', outermost)
    half = "backward" if role.late else "forward"
    if found is None:
        return f"dovetail: {half} of a graph"
    name = (role.function or found[3].strip()).rpartition("<locals>.")[2].removesuffix(".forward")
    return f"dovetail: {half} of {name} ({Path(found[1]).name}:{found[2]})"


def _computes_shapes(gm: GraphModule) -> bool:
    """Whether tensors of a graph are on the meta device, which has no data: no kernel is generated
    for such a graph, its operators tell the shapes."""
    values = (node.meta.get("val") for node in gm.graph.nodes)
    return any(isinstance(v, torch.Tensor) and v.device.type == "meta" for v in values)


def never_written(gm: GraphModule, signature: Signature) -> frozenset[int]:
    """Positions of the parameters and buffers among the inputs that the graph does not write."""
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    static = {i for i, node in enumerate(inputs) if STATIC.holds(node)}
    return frozenset(static - signature.changes.indices())


def _kept_by_the_caller(signature: Signature) -> frozenset[int]:
    """Positions of the forward's results that become the caller's: not what is written back into
    inputs, nor what is saved for the backward."""
    written_back = range(signature.num_fresh, signature.num_fresh + len(signature.changes.mutated))
    return frozenset(range(signature.num_forward_outputs)) - frozenset(written_back)


def cut(joint: JointGraph, options: Options) -> PartitionedGraph:
    """Cut in two after layouts are chosen, so that what is saved is saved in them, and in as few
    bytes as it can be told apart in."""
    laid_out = replace(joint, gm=prefer_channels_last(joint.gm))
    narrow = narrow_saved_indices(laid_out, ("cuda",))
    budget = options.activation_memory_budget
    return min_cut_partition(narrow, activation_memory_budget=budget)
