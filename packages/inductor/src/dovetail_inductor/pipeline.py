"""The pipeline, from an FX graph to a `Plan`. Read it as the table of contents of this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, TypeVar

from dovetail_prims.node_facts import OVERWRITTEN, OWNED
from dovetail_runtime import CompiledArtifact, CppKernel, Plan, load
from dovetail_runtime.plan import Kernel
from torch.fx import GraphModule

from dovetail_inductor.emit_plan import emit_plan
from dovetail_inductor.fx_nodes import line_of
from dovetail_inductor.graph_passes.complex_parts import complex_parts
from dovetail_inductor.graph_passes.pixel_products import pixel_products
from dovetail_inductor.graph_passes.read_parts import read_parts
from dovetail_inductor.graph_passes.scatter_sums import scatter_sums
from dovetail_inductor.knobs import VERIFY_LOOPS
from dovetail_inductor.loop_ir.loops import GraphFacts, LoopGraph, LoopNest
from dovetail_inductor.lowering.lower import lower
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.products.choose_attention import choose_attention
from dovetail_inductor.products.choose_products import Tuner, choose_products
from dovetail_inductor.products.computed_operands import compute_operands
from dovetail_inductor.products.few_rows import multiply_few_rows, read_early
from dovetail_inductor.products.unpadded import write_unpadded
from dovetail_inductor.scheduler.cleanup import remove_dead, sort_reductions, split_divisions
from dovetail_inductor.scheduler.combine import combine
from dovetail_inductor.scheduler.fuse import fuse
from dovetail_inductor.scheduler.in_place import write_in_place
from dovetail_inductor.scheduler.kernels import KernelGraph
from dovetail_inductor.scheduler.lifetimes import live_bytes
from dovetail_inductor.scheduler.memory import plan_memory
from dovetail_inductor.scheduler.order import order
from dovetail_inductor.scheduler.round_at_peak import round_at_peak
from dovetail_inductor.scheduler.split_reductions import split_reductions
from dovetail_inductor.scheduler.unroll_parts import unroll_parts
from dovetail_inductor.targets import ScopeError, check_scopes
from dovetail_inductor.verify import LoopError, verify

T = TypeVar("T")


@dataclass
class PassLog:
    """What the passes of one compilation took, in seconds; with `dump`, what they produced, as text
    (`observe` gets the values). With
    `verified`, nests that were verified, what a pass gives is verified before the next one."""

    seconds: dict[str, float] = field(default_factory=dict)
    dump: Callable[[str, str], None] | None = None
    observe: Callable[[str, object], None] | None = None
    verified: dict[int, LoopNest] | None = field(
        default_factory=lambda: {} if VERIFY_LOOPS else None
    )

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Run one pass by name."""
        start = perf_counter()
        result = work()
        self.seconds[name] = perf_counter() - start
        if self.observe is not None:
            self.observe(name, result)
        if self.dump is not None and hasattr(result, "as_text"):
            self.dump(name, result.as_text())
        if self.verified is not None:
            self._verify(name, result, self.verified)
        return result

    def _verify(self, name: str, result: object, known: dict[int, LoopNest]) -> None:
        try:
            if isinstance(result, LoopGraph | KernelGraph):
                verify(result, known)
            elif isinstance(result, Plan):
                for kernel in result.kernels:
                    if isinstance(kernel, CppKernel):
                        check_scopes(kernel.source)
        except AssertionError as error:
            raise type(error)(f"after the pass {name}: {error}") from None

    def show(self, name: str, text: Callable[[], str]) -> None:
        """Dump what is worth knowing between two passes."""
        if self.dump is not None:
            self.dump(name, text())


def compile_graph(
    gm: GraphModule,
    example_inputs: Sequence[Any] | None = None,
    *,
    options: InductorOptions | None = None,
    name: str = "graph",
    log: PassLog | None = None,
    tuner: Tuner | None = None,
    written: Callable[[Kernel], None] | None = None,
) -> Plan:
    """Compile a functional ATEN or CORE_ATEN graph: C++ for the CPU, Triton for a GPU.

    Every node needs `meta["val"]`, whose strides are promises: those of inputs must hold at run
    time, those of outputs will. A placeholder with `meta["owned"]` is freed by the call if it is
    run with `run_consuming`: that counts when steps are ordered. One with `meta["overwritten"]` is
    about to get the value of the output at that position, which may then be written there at once
    (and is returned as a view of the input): no other input may share memory with it. Ops without a
    lowering become ATen calls in the plan. With a `tuner`, library calls that kernels of ours beat
    are replaced. `written` is told of each kernel while the rest of the plan is being written.
    """
    chosen, passes = options or InductorOptions(), log or PassLog()
    loops = to_loops(gm, chosen, name, passes, tuner)
    kernels = to_kernels(loops, chosen, passes, tuner)
    return to_plan(kernels, chosen, name, passes, written)


def to_loops(
    gm: GraphModule,
    options: InductorOptions,
    name: str = "graph",
    log: PassLog | None = None,
    tuner: Tuner | None = None,
) -> LoopGraph:
    """The first part of `compile_graph`: operators become loop nests over buffers."""
    passes, target = log or PassLog(), options.chosen_target

    def branch(graph: GraphModule) -> Plan:
        return compile_graph(graph, options=options, name=f"{name}_branch", tuner=tuner)

    # Before anything is in memory: fewer whole tensors that differ in a part.
    read = passes.run("read_parts", lambda: read_parts(gm))
    # Before scatters have memory of their own.
    summed = passes.run("scatter_sums", lambda: scatter_sums(read))
    # Before ops become loops, which know no complex numbers.
    split = passes.run("complex_parts", lambda: complex_parts(summed, options))
    # After weights are prepared, which knows convolutions by their channels.
    products = passes.run("pixel_products", lambda: pixel_products(split, options))
    lines = {node.name: line_of(node) for node in products.graph.nodes}

    # Ops become loop nests over buffers; views become index arithmetic.
    def lowered() -> LoopGraph:
        loops = lower(products, target, options.everywhere, branch, options.converts)
        facts = GraphFacts(_owned(gm, loops), _overwritten(gm, loops), lines)
        return replace(loops, facts=facts)

    return passes.run("lower", lowered)


def to_kernels(
    loops: LoopGraph,
    options: InductorOptions,
    log: PassLog | None = None,
    tuner: Tuner | None = None,
) -> KernelGraph:
    """The second part of `compile_graph`: loop nests become kernels, in the order of their
    launches."""
    passes, owned = log or PassLog(), loops.facts.owned
    # Before anything looks at loops: drop what no one needs.
    loops = passes.run("remove_dead", lambda: remove_dead(loops))
    # After this, most indices are affine, so that loops can be compared.
    loops = passes.run("split_divisions", lambda: split_divisions(loops))
    # Needs affine indices; before the order of loops counts.
    loops = passes.run("sort_reductions", lambda: sort_reductions(loops))
    # Before fusion, so that pieces can join the kernels that compute what they reduce.
    loops = passes.run("split_reductions", lambda: split_reductions(loops, options))
    kernels = passes.run("fuse", lambda: fuse(loops, options))
    # Before steps are moved for other reasons, which is then done within bounds.
    kernels = passes.run("order", lambda: order(kernels, owned))
    # Needs the order of steps; before the forms of kernels are chosen, for which types count.
    kernels = passes.run("round_at_peak", lambda: round_at_peak(kernels, owned, options))
    # While kernels that may follow a product in one kernel have launches of their own: first what
    # needs no measuring.
    kernels = passes.run("write_unpadded", lambda: write_unpadded(kernels, options))
    kernels = passes.run("compute_operands", lambda: compute_operands(kernels, options))
    if tuner is not None:
        kernels = passes.run("choose_products", lambda: choose_products(kernels, options, tuner))
        kernels = passes.run("choose_attention", lambda: choose_attention(kernels, options, tuner))
    else:
        kernels = passes.run("multiply_few_rows", lambda: multiply_few_rows(kernels, options))
    # After fusion, which compares whole loops, and after what follows a product has joined it.
    kernels = passes.run("unroll_parts", lambda: unroll_parts(kernels, options))
    # After fusion, which takes what depends on one another; before memory, as kernels move.
    return passes.run("combine", lambda: combine(kernels, options))


def to_plan(
    kernels: KernelGraph,
    options: InductorOptions,
    name: str = "graph",
    log: PassLog | None = None,
    written: Callable[[Kernel], None] | None = None,
) -> Plan:
    """The last part of `compile_graph`: memory is planned, the code of kernels is written."""
    passes, owned = log or PassLog(), kernels.facts.owned
    overwritten = kernels.facts.overwritten
    # After all that moves steps: what reads an input must come before what writes there.
    kernels, places = passes.run(
        "write_in_place", lambda: write_in_place(kernels, overwritten, options)
    )
    passes.show("live_bytes", lambda: live_bytes(kernels, owned).as_text())
    memory = passes.run("plan_memory", lambda: plan_memory(kernels, owned, places))
    # After memory is planned, which says what is written where.
    early = read_early(kernels, memory)
    return passes.run("emit_plan", lambda: emit_plan(early, memory, options, name, written))


def _owned(gm: GraphModule, loops: LoopGraph) -> frozenset[str]:
    """The inputs marked as the call's own, which it frees after their last use."""
    nodes = [n for n in gm.graph.nodes if n.op == "placeholder"]
    return frozenset(
        name
        for node, name in zip(nodes, loops.inputs, strict=True)
        if name is not None and OWNED.holds(node)
    )


def _overwritten(gm: GraphModule, loops: LoopGraph) -> dict[str, int]:
    """The inputs that are about to get an output's value, with its position."""
    nodes = [n for n in gm.graph.nodes if n.op == "placeholder"]
    return {
        name: output
        for node, name in zip(nodes, loops.inputs, strict=True)
        if name is not None and (output := OVERWRITTEN.of(node)) is not None
    }


def find_error(
    gm: GraphModule, example_inputs: Sequence[Any] | None, *, options: InductorOptions | None = None
) -> str | None:
    """What is wrong with the loops or kernels of a graph whose kernels did not build, and after
    which pass; None if nothing is found. Compiles it once more, without building anything."""
    try:
        compile_graph(gm, example_inputs, options=options, log=PassLog(verified={}))
    except (LoopError, ScopeError) as error:
        return str(error)
    return None


def compile_to_callable(
    gm: GraphModule,
    example_inputs: Sequence[Any] | None = None,
    *,
    options: InductorOptions | None = None,
) -> CompiledArtifact:
    """Compile a graph and load it: a callable from tensors to a tuple of the graph's outputs."""
    return load(compile_graph(gm, example_inputs, options=options))
