"""What ATen's operators are in ONNX, one rule each, on float32 and bool tensors of known sizes.

A rule that does not cover how an operator is called raises Unsupported. Operators that read by
index, draw numbers or give integers have no rule: eager checks, draws and orders for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from dovetail.backends.onnx_moving_rules import (
    MOVING,
    arguments_of,
    ints,
    named,
    only_floats,
    shape_of,
)
from dovetail.backends.onnx_writer import ModelWriter, Rule, Unsupported


def _unary(op: str) -> Rule:
    def rule(w: ModelWriter, node: Node) -> str:
        return w.emit(op, w.of(node.args[0]))

    return rule


def _binary(op: str) -> Rule:
    def rule(w: ModelWriter, node: Node) -> str:
        only_floats(node)
        if arguments_of(node).get("alpha", 1) != 1:
            raise Unsupported("a sum with a factor, which eager rounds once")
        return w.emit(op, *(w.of(arg) for arg in node.args[:2]))

    return rule


def _comparison(op: str, negated: bool = False, swapped: bool = False) -> Rule:
    def rule(w: ModelWriter, node: Node) -> str:
        first, second = node.args[1::-1] if swapped else node.args[:2]
        if all(isinstance(v, Node) and v.meta["val"].dtype == torch.bool for v in (first, second)):
            raise Unsupported("a comparison of bools")
        found = w.emit(op, w.of(first), w.of(second))
        return w.emit("Not", found) if negated else found

    return rule


def _logical(op: str) -> Rule:
    def rule(w: ModelWriter, node: Node) -> str:
        if node.meta["val"].dtype != torch.bool:
            raise Unsupported("bits of integers")
        return w.emit(op, *(w.of(arg, torch.bool) for arg in node.args))

    return rule


def _axes(node: Node) -> list[int]:
    """The dimensions that a reduction goes over."""
    first = node.args[0]
    assert isinstance(first, Node)
    rank, dims = len(shape_of(first)), arguments_of(node)["dim"]
    if not rank:
        raise Unsupported("a reduction of a number")
    dims = [dims] if isinstance(dims, int) else dims
    return sorted(d % rank for d in dims) if dims else list(range(rank))


def _reduction(op: str) -> Rule:
    def rule(w: ModelWriter, node: Node) -> str:
        only_floats(node)
        keep = int(arguments_of(node)["keepdim"])
        return w.emit(op, w.of(node.args[0]), ints(w, _axes(node)), keepdims=keep)

    return rule


def _truth(op: str) -> Rule:
    def rule(w: ModelWriter, node: Node) -> str:
        first = node.args[0]
        assert isinstance(first, Node)
        if first.meta["val"].dtype != torch.bool:
            raise Unsupported("the truth of floats")
        keep = int(arguments_of(node)["keepdim"])
        found = w.emit(op, w.of(first), ints(w, _axes(node)), keepdims=keep)
        return w.emit("Less", w.constant(0.5), found)

    return rule


def _var_mean(w: ModelWriter, node: Node) -> tuple[str, ...]:
    a, axes = arguments_of(node), _axes(node)
    sizes = shape_of(a["self"])
    correction = 1 if a["correction"] is None else a["correction"]
    count = math.prod(sizes[d] for d in axes) - correction
    if count <= 0:
        raise Unsupported("the variance of too few numbers")
    x, dims = w.of(a["self"]), ints(w, axes)
    mean = w.emit("ReduceMean", x, dims, keepdims=1)
    off = w.emit("Sub", x, mean)
    keep = int(a["keepdim"])
    total = w.emit("ReduceSum", w.emit("Mul", off, off), dims, keepdims=keep)
    kept = mean if keep else w.emit("ReduceMean", x, dims, keepdims=0)
    return w.emit("Div", total, w.constant(count)), kept


def _addmm(w: ModelWriter, node: Node) -> str:
    a = arguments_of(node)
    factors = {"alpha": float(a["alpha"]), "beta": float(a["beta"])}
    return w.emit("Gemm", *(w.of(a[k]) for k in ("mat1", "mat2", "self")), **factors)


def _convolution(w: ModelWriter, node: Node) -> str:
    a = arguments_of(node)
    spatial = len(shape_of(a["weight"])) - 2
    if len(shape_of(a["input"])) != spatial + 2:
        raise Unsupported("a convolution without a batch")

    def each(name: str) -> list[int]:
        given: list[int] = list(a[name])
        return given * spatial if len(given) == 1 else given

    shared: dict[str, Any] = {
        "strides": each("stride"),
        "pads": each("padding") * 2,
        "dilations": each("dilation"),
        "group": a["groups"],
    }
    if a["transposed"]:
        shared["output_padding"] = each("output_padding")
    inputs = [w.of(a["input"]), w.of(a["weight"])] + ([w.of(a["bias"])] if a["bias"] else [])
    return w.emit("ConvTranspose" if a["transposed"] else "Conv", *inputs, **shared)


def _pool_attributes(node: Node) -> dict[str, Any]:
    a = arguments_of(node)
    if a["ceil_mode"] or len(shape_of(a["self"])) != 4 or a.get("divisor_override") is not None:
        raise Unsupported("pooling of rounded-up sizes, without a batch, or with another divisor")

    def each(given: Sequence[int]) -> list[int]:
        return list(given) * 2 if len(given) == 1 else list(given)

    kernel = each(a["kernel_size"])
    strides = each(a["stride"]) if a["stride"] else kernel
    return {"kernel_shape": kernel, "strides": strides, "pads": each(a["padding"]) * 2}


def _max_pool(w: ModelWriter, node: Node) -> tuple[str | None, ...]:
    given = list(arguments_of(node)["dilation"])
    dilations = given * 2 if len(given) == 1 else given
    found = w.emit("MaxPool", w.of(node.args[0]), **_pool_attributes(node), dilations=dilations)
    return found, None


def _avg_pool(w: ModelWriter, node: Node) -> str:
    counted = int(arguments_of(node)["count_include_pad"])
    attributes = _pool_attributes(node)
    return w.emit("AveragePool", w.of(node.args[0]), **attributes, count_include_pad=counted)


def _along(op: str) -> Rule:
    def rule(w: ModelWriter, node: Node) -> str:
        rank = len(shape_of(node))
        if not rank:
            raise Unsupported("a softmax of a number")
        return w.emit(op, w.of(node.args[0]), axis=arguments_of(node)["dim"] % rank)

    return rule


def _layer_norm(w: ModelWriter, node: Node) -> tuple[str | None, ...]:
    a = arguments_of(node)
    shape = a["normalized_shape"]
    weight = w.constant(np.ones(shape)) if a["weight"] is None else w.of(a["weight"])
    inputs = [w.of(a["input"]), weight] + ([] if a["bias"] is None else [w.of(a["bias"])])
    normal = w.emit("LayerNormalization", *inputs, axis=-len(shape), epsilon=a["eps"])
    return normal, None, None


def _batch_norm(w: ModelWriter, node: Node) -> tuple[str | None, ...]:
    a = arguments_of(node)
    size = shape_of(a["running_mean"])
    weight = w.constant(np.ones(size)) if a["weight"] is None else w.of(a["weight"])
    bias = w.constant(np.zeros(size)) if a["bias"] is None else w.of(a["bias"])
    kept = w.of(a["running_mean"]), w.of(a["running_var"])
    x = w.of(a["input"])
    return w.emit("BatchNormalization", x, weight, bias, *kept, epsilon=a["eps"]), None, None


def _gelu(w: ModelWriter, node: Node) -> str:
    x = w.of(node.args[0])
    if arguments_of(node)["approximate"] == "tanh":
        cube = w.emit("Mul", w.emit("Mul", x, x), w.emit("Mul", x, w.constant(0.044715)))
        inner = w.emit("Mul", w.emit("Add", x, cube), w.constant(math.sqrt(2 / math.pi)))
        curve = w.emit("Tanh", inner)
    else:
        curve = w.emit("Erf", w.emit("Mul", x, w.constant(math.sqrt(0.5))))
    return w.emit("Mul", w.emit("Mul", x, w.constant(0.5)), w.emit("Add", curve, w.constant(1)))


def _for_each_head(w: ModelWriter, node: Node, heads: int) -> str:
    """Keys or values that several heads share, once for each."""
    batch, own, rows, width = shape_of(node)
    if own == heads:
        return w.of(node)
    apart = w.emit("Reshape", w.of(node), ints(w, [batch, own, 1, rows, width]))
    each = w.emit("Expand", apart, ints(w, [batch, own, heads // own, rows, width]))
    return w.emit("Reshape", each, ints(w, [batch, heads, rows, width]))


def _attention(w: ModelWriter, node: Node) -> tuple[str | None, ...]:
    a = arguments_of(node)
    if a["attn_mask"] is not None or a["dropout_p"]:
        raise Unsupported("attention with a mask or dropout")
    heads = shape_of(a["query"])[1]
    key, value = (_for_each_head(w, a[name], heads) for name in ("key", "value"))
    rows, columns, width = (
        shape_of(a["query"])[-2],
        shape_of(a["key"])[-2],
        shape_of(a["query"])[-1],
    )
    scale = 1 / math.sqrt(width) if a["scale"] is None else a["scale"]
    query = w.emit("Mul", w.of(a["query"]), w.constant(scale))
    scores = w.emit("MatMul", query, w.emit("Transpose", key, perm=[0, 1, 3, 2]))
    if a["is_causal"]:
        later = np.triu(np.full((rows, columns), -np.inf), 1)
        scores = w.emit("Add", scores, w.constant(later))
    return w.emit("MatMul", w.emit("Softmax", scores, axis=-1), value), None


def _reciprocal_root(w: ModelWriter, node: Node) -> str:
    return w.emit("Div", w.constant(1), w.emit("Sqrt", w.of(node.args[0])))


def _positive(w: ModelWriter, node: Node) -> str:
    x, zero = w.of(node.args[0]), w.constant(0)
    return w.emit("Where", w.emit("Less", x, zero), zero, x)


def _exponential(w: ModelWriter, node: Node) -> str:
    x = w.of(node.args[0])
    return w.emit("Where", w.emit("Equal", x, x), w.emit("Exp", x), x)


def _where(w: ModelWriter, node: Node) -> str:
    condition, *values = node.args
    dtype, choice = node.meta["val"].dtype, w.of(condition, torch.bool)
    first, second = (w.of(v, dtype) for v in values)
    if dtype == torch.bool:  # (ONNX Runtime chooses no bools)
        second = w.emit("And", w.emit("Not", choice), second)
        return w.emit("Or", w.emit("And", choice, first), second)
    return w.emit("Where", choice, first, second)


def _each(pairs: Mapping[str, str], make: Callable[[str], Rule]) -> dict[str, Rule]:
    return {f"aten.{name}": make(op) for names, op in pairs.items() for name in names.split()}


RULES: Mapping[str, Rule] = {
    **MOVING,
    **_each(
        {
            "neg.default": "Neg", "abs.default": "Abs", "exp.default": "Exp",
            "log.default": "Log", "sqrt.default": "Sqrt", "sin.default": "Sin",
            "cos.default": "Cos", "tanh.default": "Tanh", "sigmoid.default": "Sigmoid",
            "erf.default": "Erf", "relu.default": "Relu", "reciprocal.default": "Reciprocal",
            "floor.default": "Floor", "ceil.default": "Ceil", "round.default": "Round",
        },
        _unary,
    ),
    **_each(
        {
            "add.Tensor add.Scalar": "Add", "sub.Tensor sub.Scalar": "Sub",
            "mul.Tensor mul.Scalar": "Mul", "div.Tensor div.Scalar": "Div",
            "maximum.default": "Max", "minimum.default": "Min",
            "pow.Tensor_Scalar pow.Tensor_Tensor": "Pow", "mm.default bmm.default": "MatMul",
        },
        _binary,
    ),
    **_each(
        {
            "eq.Tensor eq.Scalar": "Equal", "lt.Tensor lt.Scalar": "Less",
            "le.Tensor le.Scalar": "LessOrEqual",
        },
        _comparison,
    ),
    # (OpenVINO finds NaN greater than numbers, but not less.)
    **named("gt.Tensor gt.Scalar", _comparison("Less", swapped=True)),
    **named("ge.Tensor ge.Scalar", _comparison("LessOrEqual", swapped=True)),
    **named("ne.Tensor ne.Scalar", _comparison("Equal", negated=True)),
    **_each(
        {
            "logical_not.default bitwise_not.default": "Not",
            "logical_and.default bitwise_and.Tensor": "And",
            "logical_or.default bitwise_or.Tensor": "Or",
        },
        _logical,
    ),
    **_each(
        {
            "sum.dim_IntList": "ReduceSum", "mean.dim": "ReduceMean", "amax.default": "ReduceMax",
            "amin.default": "ReduceMin",
        },
        _reduction,
    ),
    **_each({"all.dims": "ReduceMin", "any.dims": "ReduceMax"}, _truth),
    **_each({"_softmax.default": "Softmax", "_log_softmax.default": "LogSoftmax"}, _along),
    **named("rsqrt.default", _reciprocal_root),
    **named("where.self", _where),
    **named("var_mean.correction", _var_mean),
    **named("addmm.default", _addmm),
    **named("convolution.default", _convolution),
    **named("max_pool2d_with_indices.default", _max_pool),
    **named("avg_pool2d.default", _avg_pool),
    **named("native_layer_norm.default", _layer_norm),
    **named("_native_batch_norm_legit_no_training.default", _batch_norm),
    **named("gelu.default", _gelu),
    **named("_scaled_dot_product_flash_attention_for_cpu.default", _attention),
}  # fmt: skip

# For engines whose own operators make numbers of NaN.
CAREFUL_RULES: Mapping[str, Rule] = {
    **RULES,
    "aten.relu.default": _positive,
    "aten.exp.default": _exponential,
}

# What stays whole when a graph without gradients is traced: it has an ONNX operator.
WHOLE = frozenset(
    f"aten.{name}.default"
    for name in ("_softmax", "_log_softmax", "native_layer_norm", "gelu",
                 "_native_batch_norm_legit_no_training")
) | {"aten.mean.dim"}  # fmt: skip
