"""Attention with a function of its scores: a call with the loops of that function, for kernels.

The function comes as text. Lowered by the rules of every other graph, it is an expression of one
score and its place, unless it reads other scores than its own or holds what has no rule: then the
operator's plain form is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from dovetail_prims.fake_tensor import make
from dovetail_prims.graphs.graph_text import graph_of
from dovetail_prims.graphs.scored_attention import NAMESPACE
from torch import fx

from dovetail_inductor.loop_ir.attention_loops import (
    LEAST_SIDE,
    AttentionLoops,
    AttentionTiles,
    ScoreBody,
    mask_within,
    seen_within,
)
from dovetail_inductor.loop_ir.expr import Expr, loads, rename
from dovetail_inductor.loop_ir.index import Index, Var, linear, variable
from dovetail_inductor.loop_ir.loops import Buffer, ExternCall, Strided
from dovetail_inductor.loop_ir.simpler import simpler
from dovetail_inductor.lowering.externs import extern_call
from dovetail_inductor.lowering.rules import RULES, rule_name
from dovetail_inductor.lowering.values import (
    Context,
    UnsupportedGraph,
    Value,
    contiguous_strides,
    tensor_of,
    value_like,
)

_HALVES = (torch.float16, torch.bfloat16)
SCORES, SLOPES = "scores", "slopes"


def is_attention(node: fx.Node) -> bool:
    """Whether a node is a call of the operator, or of its backward."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == NAMESPACE


def attention_call(
    ctx: Context, node: fx.Node, args: list[Any], kwargs: dict[str, Any]
) -> Value | tuple[Any, ...]:
    """The call, with its loops if kernels can compute them."""
    backward = node.target._opname == "backward"  # type: ignore[union-attr]
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    at = {name: position for position, name in enumerate(names)}
    q, k, v = (tensor_of(node.args[at[name]]) for name in "qkv")  # type: ignore[arg-type]
    for value in [*args[: at["captured"]], *args[at["captured"]]]:
        ctx.realize(value)
    found = None
    if not ctx.target.library.attends_alone and q.dtype in _HALVES and not kwargs:
        try:
            found = _loops(ctx, node, args[at["captured"]], str(args[at["score"]]), q, k, backward)
        except UnsupportedGraph:
            found = None
    results = extern_call(ctx, node, args, kwargs)
    if found is not None:
        call = ctx.nodes[-1]
        assert isinstance(call, ExternCall)
        width, tiles = max(q.shape[-1], v.shape[-1]), None
        if not backward and width <= WIDEST_OF_FEW:
            tiles = tiles_of_few(q.shape, (k.shape[1], k.shape[2]), v.shape[3])
        loops = replace(found, tiles=(tiles,) if tiles else default_tiles(width, backward))
        shared = call.kwargs
        if tiles is None:
            places = _places_for_tiles(ctx, loops, q.device)
        else:
            places, counters = _places_for_parts(ctx, tiles, k, v)
            shared = (("counters", counters),)
        outputs = (*call.outputs, *places)
        call = replace(call, outputs=outputs, kwargs=shared, attention=loops, out_variant=True)
        ctx.nodes[-1] = call
    return results


def _places_for_parts(
    ctx: Context, tiles: AttentionTiles, k: torch.Tensor, v: torch.Tensor
) -> tuple[list[str], Strided]:
    """Memory for what programs find of their parts of the keys: rows, and of each its largest score
    and its sum. And for each head of keys the number of programs that are done, which is 0 before
    and after a call: all calls count there."""
    pairs = k.shape[0] * k.shape[1]
    # Rows are as wide as in tiles.
    floats = pairs * tiles.parts * tiles.queries * (max(16, _covering(v.shape[3])) + 2)
    name = f"buf{len(ctx.buffers)}"
    ctx.buffers[name] = Buffer(name, torch.float32, k.device, (floats,), (1,))
    for node in ctx.nodes:
        if isinstance(node, ExternCall) and node.attention is not None and node.kwargs:
            counters = node.kwargs[0][1]
            assert isinstance(counters, Strided)
            if counters.shape == (pairs,) and ctx.buffers[counters.buffer].device == k.device:
                return [name], counters
    value = value_like(make((pairs,), (1,), torch.int32, k.device), name)
    value.loader = lambda indices, mask: ctx.builder.constant(0, torch.int32)
    attention = ctx.nodes.pop()  # which is to come after them
    counters = ctx.realize(value)
    ctx.nodes.append(attention)
    return [name], counters


def _places_for_tiles(ctx: Context, loops: AttentionLoops, device: torch.device) -> list[str]:
    """Memory in which kernels say what they see in each tile, for each of the kernels that follow,
    however small its tiles."""
    if loops.mask is None:
        return []
    batch, _, queries, keys = loops.vars
    tiles = prod(-(-var.size // LEAST_SIDE) for var in (queries, keys))
    batches = batch.size if loops.mask.free >> batch.id & 1 else 1
    names = []
    for _ in loops.tiles:
        name = f"buf{len(ctx.buffers)}"
        ctx.buffers[name] = Buffer(name, torch.uint8, device, (batches * tiles,), (1,))
        names.append(name)
    return names


# Of an H100, of whose multiprocessors each has so many programs at once (measured: 32 to 256 keys,
# 132 to 528 programs of 4 and 8 warps).
PROGRAMS, KEYS_OF_FEW, WARPS_OF_FEW, STAGES_OF_FEW = 2 * 132, 128, 4, 2
MOST_QUERIES, WIDEST_OF_FEW = 16, 128
# Sums of all parts that the last program has in registers at once: 128 of a thread's 255.
MOST_HELD = 128 * 32 * WARPS_OF_FEW


def _covering(size: int) -> int:
    return 1 << (size - 1).bit_length()


def tiles_of_few(
    queries: Sequence[int], keys: tuple[int, int], width: int
) -> AttentionTiles | None:
    """Tiles for queries [batch, heads, m, d] by (heads of keys, keys) and values of a width, if
    those that read a head of keys fit in one: its keys are shared by programs that are busy on all
    multiprocessors."""
    batch, heads, m, _ = queries
    rows = heads // keys[0] * m
    if rows > MOST_QUERIES:
        return None
    parts = max(1, PROGRAMS // (batch * keys[0]))
    covering = _covering(rows)
    held = MOST_HELD // (covering * max(16, _covering(width)))
    parts = min(parts, -(-keys[1] // KEYS_OF_FEW), held)
    length = -(-keys[1] // (parts * KEYS_OF_FEW)) * KEYS_OF_FEW
    return AttentionTiles(covering, KEYS_OF_FEW, WARPS_OF_FEW, STAGES_OF_FEW, -(-keys[1] // length))


def default_tiles(width: int, backward: bool) -> tuple[AttentionTiles, ...]:
    """Tiles for heads of a size: of the forward; or of the backward's two kernels, that of keys and
    values first."""
    if not backward:
        if width <= 128:
            return (AttentionTiles(64, 64, 4, 3),)
        return (AttentionTiles(128, 64, 8, 2),)
    if width <= 64:
        return (AttentionTiles(64, 64, 4, 2), AttentionTiles(64, 64, 4, 3))
    if width <= 128:
        return (AttentionTiles(64, 64, 4, 2), AttentionTiles(64, 64, 4, 2))
    return (AttentionTiles(32, 64, 8, 2), AttentionTiles(64, 32, 8, 2))


def _loops(
    ctx: Context,
    node: fx.Node,
    captured: list[Value],
    text: str,
    q: torch.Tensor,
    k: torch.Tensor,
    backward: bool,
) -> AttentionLoops:
    """The loops of a score function. Raises `UnsupportedGraph` where there are none."""
    shape = (*q.shape[:3], k.shape[2])
    if not all(type(n) is int for n in shape):
        raise UnsupportedGraph("attention of symbolic sizes")
    stride = contiguous_strides(shape)
    given = node.args[6 if backward else 3]
    assert isinstance(given, list | tuple)
    like = make(shape, stride, torch.float32, q.device)
    fakes = [like, *(tensor_of(n) for n in given), like]  # type: ignore[arg-type]
    inner = Context(ctx.target, ctx.everywhere, ctx.builder, dict(ctx.buffers))
    values = []
    for name in (SCORES, SLOPES):
        inner.buffers[name] = Buffer(name, torch.float32, q.device, shape, stride)
        value = value_like(like, name)
        value.stored = Strided(name, shape, stride, 0)
        values.append(value)
    score, gradient = _lowered(inner, graph_of(text, fakes), [values[0], *captured, values[1]])
    variables, indices = ctx.loop_indices(shape)
    bodies = []
    for result in (score, gradient) if backward else (score,):
        if result.shape != shape:
            raise UnsupportedGraph("a function of scores that gives another shape")
        bodies.append(inner.load(result, indices))
    if inner.nodes or inner.constants:
        raise UnsupportedGraph("a function of scores that needs memory")
    bodies = _at_one_place(ctx, bodies, variables, linear(indices, stride))
    b, h, i, j = variables
    body = ScoreBody(*simpler(ctx.builder, bodies))
    seen = seen_within(body.score, (b, h, i, j), SCORES)
    inside = ScoreBody(*simpler(ctx.builder, body.roots, seen.truths))
    mask = mask_within(ctx.builder, body.score, seen, h, SCORES)
    return AttentionLoops((b, h, i, j), body, inside, seen, mask, SCORES, SLOPES, ())


def _lowered(ctx: Context, gm: fx.GraphModule, inputs: list[Value]) -> tuple[Value, Value]:
    """What a graph of pointwise operators gives."""
    env: dict[fx.Node, Any] = {}
    given = iter(inputs)

    def resolve(arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            return env[arg]
        return [resolve(a) for a in arg] if isinstance(arg, list | tuple) else arg

    for node in gm.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(given)
        elif node.op == "output":
            score, gradient = resolve(node.args[0])
            return score, gradient
        else:
            rule: Callable[..., Any] | None = RULES.get(rule_name(node))
            dtype = tensor_of(node).dtype
            if rule is None or not ctx.target.has_operator(rule_name(node), dtype):
                raise UnsupportedGraph(f"{node.target} in a function of scores")
            kwargs = {k: resolve(v) for k, v in node.kwargs.items()}
            env[node] = rule(ctx, node, [resolve(a) for a in node.args], kwargs)
            if not isinstance(env[node], Value):
                raise UnsupportedGraph(f"{node.target} in a function of scores")
    raise UnsupportedGraph("a function of scores that gives nothing")


def _at_one_place(
    ctx: Context, bodies: list[Expr], variables: tuple[Var, ...], place: Index
) -> list[Expr]:
    """The bodies, of which each must read the score at its own place alone; variables that count
    nothing are 0."""

    def fixed(var: Var) -> Index:
        return Index(0, ()) if var.size == 1 else variable(var)

    own = place.substitute(fixed, lambda e: e)
    bodies = rename(ctx.builder, bodies, fixed)
    for load in loads(bodies):
        if load.buffer in (SCORES, SLOPES) and (load.index != own or load.mask is not None):
            raise UnsupportedGraph("a function of several scores")
    return bodies
