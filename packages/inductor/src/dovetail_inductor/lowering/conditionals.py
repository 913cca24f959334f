"""`torch.cond`: a call of one of two graphs, each compiled to a plan of its own; and
`torch.while_loop`: calls of two graphs in turn.

A graph sees its operands as inputs, laid out as it promises. What it holds as constants becomes
operands, too: a plan's constants stand in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dovetail_prims.conditionals import COND, graphs_of, operands_of
from dovetail_runtime.plan import Plan, PlanInput, TensorSpec
from torch import fx

from dovetail_inductor.loop_ir.loops import Buffer, ExternArg, ExternCall, Strided
from dovetail_inductor.loop_ir.sizes import Dim, FloatSize
from dovetail_inductor.lowering.externs import as_promised
from dovetail_inductor.lowering.values import (
    Context,
    UnsupportedGraph,
    Value,
    is_dense,
    tensor_of,
    value_like,
)

CompileBranch = Callable[[fx.GraphModule], Plan]


def control_flow(
    ctx: Context, node: fx.Node, resolve: Callable[[Any], Any], compile_branch: CompileBranch
) -> tuple[Value, ...]:
    """The call for a node that holds graphs; its results. `resolve` gives arguments' values."""
    graphs = graphs_of(node)
    given = [n for n in graphs[-1].graph.nodes if n.op == "placeholder"]
    operands = resolve(operands_of(node))
    args = [_operand(ctx, o, n) for o, n in zip(operands, given, strict=True)]
    plans = tuple(compile_branch(graph) for graph in graphs)
    lifted: list[Strided] = []
    plans = tuple(_without_constants(ctx, plan, plans, lifted) for plan in plans)
    results = []
    for val in node.meta["val"]:
        value = value_like(val, node.name)
        if not is_dense(value.shape, value.stride):
            raise UnsupportedGraph(f"{node.name}: a result of a branch with gaps")
        name = f"buf{len(ctx.buffers)}"
        ctx.buffers[name] = Buffer(name, value.dtype, value.device, value.shape, value.stride)
        value.stored = Strided(name, value.shape, value.stride, 0)
        results.append(value)
    outputs = tuple(value.stored.buffer for value in results if value.stored is not None)
    name, call_args = "higher_order::while_loop", (*args, *lifted)
    if node.target is COND:
        name, call_args = "higher_order::cond", (ctx.realize(resolve(node.args[0])), *call_args)
    call = ExternCall(name, call_args, (), outputs, False, node.name)
    ctx.nodes.append(replace(call, branches=plans))
    return tuple(results)


def _operand(ctx: Context, operand: Any, placeholder: fx.Node) -> ExternArg:
    if isinstance(operand, Value):
        return as_promised(ctx, operand, value_like(tensor_of(placeholder), operand.origin))
    if isinstance(operand, int | Dim | FloatSize):
        return operand
    raise UnsupportedGraph(f"{placeholder.name}: {operand!r} as an operand of a branch")


def _without_constants(
    ctx: Context, plan: Plan, plans: tuple[Plan, ...], lifted: list[Strided]
) -> Plan:
    """A branch whose constants are inputs, after the operands: those of one, then of the other."""
    inputs = list(plan.inputs)
    for number, branch in enumerate(plans):
        for constant in branch.constants:
            tensor = constant.value
            shape, stride = tuple(tensor.shape), tensor.stride()
            offset = int(tensor.storage_offset())
            spec = TensorSpec(shape, stride, tensor.dtype, tensor.device, offset)
            own = branch is plan
            inputs.append(PlanInput(constant.name if own else f"{constant.name}_{number}", spec))
            if plan is plans[0]:
                name = f"const{len(ctx.constants)}"
                ctx.constants[name] = tensor
                ctx.buffers[name] = Buffer(name, tensor.dtype, tensor.device, shape, stride, offset)
                lifted.append(Strided(name, shape, stride, 0))
    return replace(plan, inputs=tuple(inputs), constants=())
