"""The pass `lower`: FX graph -> `LoopGraph`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from dovetail_guards.expr import symbol
from dovetail_prims.conditionals import graph_nodes
from dovetail_prims.dialects.exact_comparisons import exact_comparisons
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_runtime.plan import Assert
from dovetail_runtime.sizes import symbols_of
from torch import fx

from dovetail_inductor.loop_ir.expr import Apply, Expr, Load, walk
from dovetail_inductor.loop_ir.free_symbols import free_symbols
from dovetail_inductor.loop_ir.loops import Buffer, LoopGraph, LoopNest, Node, Strided
from dovetail_inductor.loop_ir.ops import SCALAR_OPS, STORED_DTYPES
from dovetail_inductor.loop_ir.sizes import (
    Dim,
    FloatSize,
    condition,
    dim,
    float_from_torch,
    plan_size,
)
from dovetail_inductor.lowering import aligned, linear, pointwise
from dovetail_inductor.lowering.conditionals import CompileBranch, control_flow
from dovetail_inductor.lowering.convolutions import convolution
from dovetail_inductor.lowering.externs import as_promised, element, extern_call
from dovetail_inductor.lowering.in_memory import (
    bytes_until_read,
    is_view,
    nodes_in_memory,
    observed_values,
    realize_if_worth_it,
)
from dovetail_inductor.lowering.reductions import SEEN_AS_ANOTHER_DTYPE
from dovetail_inductor.lowering.rules import RULES, rule_name
from dovetail_inductor.lowering.scored_attention import attention_call, is_attention
from dovetail_inductor.lowering.values import (
    Context,
    UnsupportedGraph,
    Value,
    static_shape,
    tensor_of,
    value_like,
)
from dovetail_inductor.targets import CPU, CUDA, Target

EXACT_COST = 2  # the scalar ops that cost no more are the same on every device


def lower(
    gm: fx.GraphModule,
    target: Target | None = None,
    everywhere: bool = False,
    compile_branch: CompileBranch | None = None,
    converts: Callable[[torch.device], frozenset[torch.dtype]] = lambda device: frozenset(),
) -> LoopGraph:
    """Turn every node into loop nests over buffers, or an extern call.

    `target` says what for; None asks the graph's tensors: a GPU if one of them is there.
    `everywhere`: loops also where the library was measured to be faster. `compile_branch`
    compiles the graphs that a `torch.cond` or `torch.while_loop` holds. `converts`: what kernels
    for a device read and write beside `STORED_DTYPES`, to convert.
    Needs `meta["val"]` on every node. Gives nodes in FX order; each buffer is written once.
    """
    if target is None:
        target = CUDA if any(_device_type(node) == "cuda" for node in gm.graph.nodes) else CPU
    ctx = Context(target, everywhere, converts=converts)
    env: dict[fx.Node, Any] = {}
    inputs: list[str | None] = []
    outputs: tuple[Strided | int | float | FloatSize | None, ...] = ()
    in_memory = nodes_in_memory(gm)
    # What a comparison finds again must not be computed twice, nor with other roundings.
    exact = {value for _, value in exact_comparisons(gm.graph.nodes)}
    in_memory |= exact
    observed = observed_values(gm) | exact
    until_read = bytes_until_read(gm, in_memory) if target.costs.unrounded_halves else {}
    padded = aligned.padded_operands(gm, target)

    def resolve(arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            return env[arg]
        if isinstance(arg, list | tuple):
            return [resolve(a) for a in arg]
        if isinstance(arg, slice):
            raise UnsupportedGraph("a slice as an argument")
        return arg

    for node in gm.graph.nodes:
        if node.op == "placeholder":
            env[node], name = _placeholder(ctx, node, len(inputs))
            inputs.append(name)
        elif node.op == "get_attr":
            if not isinstance(node.meta.get("val"), fx.GraphModule):
                env[node] = _constant(ctx, gm, node)
        elif node.op == "output":
            flat, _ = torch.utils._pytree.tree_flatten(node.args[0])
            outputs = tuple(
                _output(ctx, env.get(o) if isinstance(o, fx.Node) else o, o) for o in flat
            )
        elif graph_nodes(node) and compile_branch is not None:
            env[node] = control_flow(ctx, node, resolve, compile_branch)
        elif node.op == "call_function":
            args = [resolve(a) for a in node.args]
            kwargs = {k: resolve(v) for k, v in node.kwargs.items()}
            value = env[node] = _call(ctx, node, args, kwargs, node in in_memory)
            if isinstance(value, Value):
                if node in observed:
                    value.forms = replace(value.forms, observed=True)
                if node in padded and value.stored is None and not is_view(node):
                    aligned.write_padded(ctx, value, padded[node])
                realize_if_worth_it(ctx, node, value, in_memory, until_read)
        else:
            raise UnsupportedGraph(f"node {node.name} of kind {node.op}")
    return LoopGraph(
        tuple(inputs),
        dict(ctx.constants),
        dict(ctx.buffers),
        tuple(_after_sizes(ctx) if ctx.symbols.binders else ctx.nodes),
        outputs,
        ctx.builder,
        ctx.symbols.inputs,
        ctx.symbols.definitions,
        _checks(ctx),
    )


def _after_sizes(ctx: Context) -> list[Node]:
    """The nodes, each told from which buffers the sizes in it are read."""
    found: list[Node] = []
    for node in ctx.nodes:
        names = free_symbols(node)
        names = names.union(
            *(
                symbols_of(ctx.symbols.definitions[n])
                for n in names & ctx.symbols.definitions.keys()
            )
        )
        own = {node.buffer} if isinstance(node, LoopNest) else set(node.outputs)
        after = frozenset(
            {ctx.symbols.binders[n] for n in names & ctx.symbols.binders.keys()} - own
        )
        found.append(replace(node, after=after))
    return found


def _checks(ctx: Context) -> tuple[Assert, ...]:
    """What the program states of the sizes that are bound here."""
    checks = () if ctx.symbols.env is None else ctx.symbols.env.checks
    return tuple(
        Assert(
            condition(check.relation),
            check.message,
            "IndexError" if issubclass(check.error, IndexError) else "RuntimeError",
            tuple(plan_size(number) for number in check.numbers),
        )
        for check in checks
        if not ctx.symbols.binders.keys().isdisjoint(check.relation.free_symbols())
    )


def _call(
    ctx: Context, node: fx.Node, args: list[Any], kwargs: dict[str, Any], in_memory: bool
) -> Any:
    if node.target is operator.getitem:
        return args[0][args[1]]
    val = node.meta.get("val")
    if rule_name(node) == "_local_scalar_dense.default" and not isinstance(val, int | float):
        return element(ctx, node, args[0])
    if isinstance(val, int | torch.SymInt):
        return static_shape([val], node.name)[0]  # a size: arithmetic on the inputs' sizes
    if isinstance(val, torch.SymFloat):
        return float_from_torch(val)
    if isinstance(val, torch.SymBool):
        raise UnsupportedGraph(f"{node.name}: the symbolic number {val}")
    if is_attention(node):
        return attention_call(ctx, node, args, kwargs)
    rule = RULES.get(rule_name(node))
    if rule is not None and _is_loop_like(ctx, node, args):
        for number in _numbers_from_cpu(ctx, node, args):
            ctx.realize_alone(number)
        result = rule(ctx, node, args, kwargs)
        if result is not NotImplemented:
            return result
    elif rule is not None and is_view(node) and isinstance(args[0], Value):
        # Loops cannot hold its elements; but of what is in memory it may be a matter of strides.
        ctx.realize(args[0])
        view = rule(ctx, node, args, kwargs)
        if view is not NotImplemented and view.stored is not None:
            return view
    if linear.is_outer(rule_name(node), args) and _is_loop_like(ctx, node, args):
        return linear.outer_product(ctx, node, args)
    if rule_name(node) == "mm.default":
        result = aligned.product(ctx, node, args)
        if result is not NotImplemented:
            return result
    if rule_name(node) == "convolution.default":
        result = convolution(ctx, node, args)
        if result is not NotImplemented:
            return result
    if rule_name(node) == "addmm.default" and not in_memory and linear.adds_a_row(args, kwargs):
        return linear.product_plus_row(ctx, node, args)
    args = linear.row_major_operands(ctx, rule_name(node), args)
    if ctx.target.library.convolves_in_steps and rule_name(node) in linear.ROWS:
        backward = rule_name(node) == "convolution_backward.default"
        if backward and args[10][2] and args[0].dtype.is_floating_point:
            return linear.gradients_and_channels(ctx, node, args)
        if not backward and isinstance(args[2], Value) and args[2].dtype.is_floating_point:
            return linear.convolution_plus_channels(ctx, node, args)
    return extern_call(ctx, node, args, kwargs)


def _is_loop_like(ctx: Context, node: fx.Node, args: list[Any]) -> bool:
    """True if loops can compute it: dtypes that they hold, one device.

    Elementwise operators on a GPU take 0-d CPU tensors, too, whose elements launches pass by value;
    others, known numbers. What is known of a CPU tensor without reading memory, as a range, is
    computed where it is copied to.
    """
    val = node.meta.get("val")
    results = [v for v in (val if isinstance(val, tuple | list) else (val,)) if v is not None]
    device = results[0].device
    held = rule_name(node) in SEEN_AS_ANOTHER_DTYPE
    moved = rule_name(node) in ("_to_copy.default", "clone.default")
    dtypes = STORED_DTYPES | (ctx.converts(device) if moved else frozenset())
    if not held and any(v.dtype not in dtypes for v in results):
        return False
    if not ctx.target.has_operator(rule_name(node), results[0].dtype):
        return False

    passed = _numbers_from_cpu(ctx, node, args)

    def fits(arg: Any) -> bool:
        if isinstance(arg, Value):
            here = arg.device == device or arg in passed
            known = not here and (moved or not arg.shape) and _is_known(ctx, arg)
            return (here or known) and arg.dtype in dtypes
        return all(map(fits, arg)) if isinstance(arg, list | tuple) else True

    if rule_name(node) == "nextafter.default" and results[0].dtype.itemsize < 4:
        return False  # the neighbour in the narrow type, not in float32
    return all(map(fits, args))


def _numbers_from_cpu(ctx: Context, node: fx.Node, args: list[Any]) -> list[Value]:
    """The operands of an elementwise operator on a GPU that are 0-d CPU tensors, but for known
    numbers."""
    if rule_name(node) not in pointwise.RULES or _device_type(node) != "cuda":
        return []
    values = [arg for arg in args if isinstance(arg, Value)]
    numbers = [v for v in values if not v.shape and v.device.type == "cpu"]
    return [v for v in numbers if not _is_known(ctx, v)]


def _is_known(ctx: Context, value: Value) -> bool:
    """Whether a CPU tensor's elements follow from their indices alone; those of more than one
    element by arithmetic that a GPU rounds as the CPU does."""
    if value.stored is not None or value.device.type != "cpu":
        return False

    def is_known(part: Expr) -> bool:
        if isinstance(part, Apply):
            exact = not value.shape or SCALAR_OPS[part.op].cost <= EXACT_COST
            return exact and ctx.target.has_scalar(part.op, part.dtype)
        return not isinstance(part, Load)

    return all(map(is_known, walk([ctx.body(value)])))


def _device_type(node: fx.Node) -> str:
    val = node.meta.get("val")
    return val.device.type if isinstance(val, torch.Tensor) else ""


# --- the graph's ends -----------------------------------------------------------------------------


def _placeholder(ctx: Context, node: fx.Node, position: int) -> tuple[Any, str | None]:
    val: Any = node.meta.get("val")
    if not hasattr(val, "dtype"):
        if isinstance(val, torch.SymInt):
            size = ctx.symbols.inputs[position] = static_shape([val], node.name)[0]
            ctx.symbols.given |= val.node.expr.free_symbols()
            return size, None
        if isinstance(val, torch.SymFloat):
            number = float_from_torch(val)
            ctx.symbols.given |= val.node.expr.free_symbols()
            if isinstance(number, FloatSize) and number.symbol is not None:
                ctx.symbols.inputs[position] = dim(number.env, symbol(number.symbol))
            return number, None
        if isinstance(val, int | float | bool) or val is None:
            return val, None
        raise UnsupportedGraph(f"input {node.name} is a {type(val).__name__}")
    value = value_like(tensor_of(node), node.name)
    name = f"arg{position}"
    own = val._offset if isinstance(val, FakeTensor) else val.storage_offset()
    offset = static_shape([own], node.name)[0]
    for own in val._sizes if isinstance(val, FakeTensor) else ():
        if isinstance(own, torch.SymInt) and own.node.expr.symbol_name is not None:
            ctx.symbols.given.add(own.node.expr.symbol_name)
    ctx.buffers[name] = Buffer(name, value.dtype, value.device, value.shape, value.stride, offset)
    value.stored = Strided(name, value.shape, value.stride, 0)
    return value, name


def _constant(ctx: Context, gm: fx.GraphModule, node: fx.Node) -> Value:
    held: Any = gm
    for part in str(node.target).split("."):
        held = getattr(held, part)
    if not isinstance(held, torch.Tensor):
        raise UnsupportedGraph(f"attribute {node.target} is a {type(held).__name__}")
    name = next((n for n, t in ctx.constants.items() if t is held), "")
    if not name:
        name = f"const{len(ctx.constants)}"
        ctx.constants[name] = held
        offset = static_shape([held.storage_offset()], name)[0]
        ctx.buffers[name] = Buffer(
            name, held.dtype, held.device, tuple(held.shape), held.stride(), offset
        )
    value = value_like(held, node.name)
    value.stored = Strided(name, value.shape, value.stride, 0)
    return value


def _output(ctx: Context, value: Any, node: Any) -> Strided | int | float | FloatSize | None:
    if value is None or isinstance(value, bool | int | float | Dim | FloatSize):
        return value
    if not isinstance(value, Value):
        raise UnsupportedGraph(f"output {node} is a {type(value).__name__}")
    return as_promised(ctx, value, value_like(tensor_of(node), value.origin))
