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

from dovetail.backends.onnx_writer import ModelWriter, Rule, Unsupported

_LARGEST = np.iinfo(np.int64).max


def _arguments(node: Node) -> dict[str, Any]:
    """The arguments of a call by name, with the schema's defaults."""
    schema = node.target._schema  # type: ignore[union-attr]
    found = {a.name: a.default_value for a in schema.arguments}
    found.update(zip(found, node.args, strict=False))
    return {**found, **node.kwargs}


def _shape(node: Node) -> list[int]:
    return list(node.meta["val"].shape)


def _ints(w: ModelWriter, values: Sequence[int]) -> str:
    return w.constant(list(values), np.int64)


def _unary(op: str) -> Rule:
    def rule(w: ModelWriter, node: Node) -> str:
        return w.emit(op, w.of(node.args[0]))

    return rule


def _binary(op: str) -> Rule:
    def rule(w: ModelWriter, node: Node) -> str:
        _only_floats(node)
        if _arguments(node).get("alpha", 1) != 1:
            raise Unsupported("a sum with a factor, which eager rounds once")
        return w.emit(op, *(w.of(arg) for arg in node.args[:2]))

    return rule


def _only_floats(node: Node) -> None:
    if node.meta["val"].dtype != torch.float32:
        raise Unsupported("arithmetic that is not on floats")


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


def _reshaped(w: ModelWriter, node: Node) -> str:
    first = node.args[0]
    assert isinstance(first, Node)
    return w.emit("Reshape", w.of(first, first.meta["val"].dtype), _ints(w, _shape(node)))


def _same(w: ModelWriter, node: Node) -> str:
    first = node.args[0]
    assert isinstance(first, Node)
    return w.emit("Identity", w.of(first, first.meta["val"].dtype))


def _converted(w: ModelWriter, node: Node) -> str:
    return w.emit("Identity", w.of(node.args[0], node.meta["val"].dtype))


def _kept(w: ModelWriter, node: Node) -> tuple[str, list[int]]:
    """The name and shape of the first argument, in its own dtype."""
    first = node.args[0]
    assert isinstance(first, Node)
    return w.of(first, first.meta["val"].dtype), _shape(first)


def _permuted(w: ModelWriter, node: Node) -> str:
    x, shape = _kept(w, node)
    order = [d % len(shape) for d in _arguments(node)["dims"]]
    return w.emit("Transpose", x, perm=order)


def _expanded(w: ModelWriter, node: Node) -> str:
    return w.emit("Expand", _kept(w, node)[0], _ints(w, _shape(node)))


def _sliced(w: ModelWriter, node: Node) -> str:
    x, shape = _kept(w, node)
    a = _arguments(node)
    start, end = a["start"] or 0, _LARGEST if a["end"] is None else a["end"]
    dim = a["dim"] % len(shape)
    return w.emit("Slice", x, *(_ints(w, [v]) for v in (start, end, dim, a["step"])))


def _selected(w: ModelWriter, node: Node) -> str:
    x, shape = _kept(w, node)
    a = _arguments(node)
    dim = a["dim"] % len(shape)
    place = a["index"] % shape[dim]
    row = w.emit("Slice", x, *(_ints(w, [v]) for v in (place, place + 1, dim, 1)))
    return w.emit("Reshape", row, _ints(w, _shape(node)))


def _concatenated(w: ModelWriter, node: Node) -> str:
    a = _arguments(node)
    parts = a["tensors"]
    dtype = node.meta["val"].dtype
    return w.emit("Concat", *(w.of(p, dtype) for p in parts), axis=a["dim"] % len(_shape(node)))


def _padded(w: ModelWriter, node: Node) -> str:
    a = _arguments(node)
    pads, rank = a["pad"], len(_shape(node))
    if any(p < 0 for p in pads):
        raise Unsupported("padding that cuts off")
    _only_floats(node)
    before, after = [0] * rank, [0] * rank
    for i in range(len(pads) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = pads[2 * i], pads[2 * i + 1]
    return w.emit("Pad", w.of(a["self"]), _ints(w, [*before, *after]), w.constant(a["value"]))


def _filled(value: float | None = None) -> Rule:
    def rule(w: ModelWriter, node: Node) -> str:
        a = _arguments(node)
        given = next((a[k] for k in ("fill_value", "s") if k in a), None)
        dtype = np.bool_ if node.meta["val"].dtype == torch.bool else np.float32
        one = w.constant(given if value is None else value, dtype)
        return w.emit("Expand", one, _ints(w, _shape(node)))

    return rule


def _axes(node: Node) -> list[int]:
    """The dimensions that a reduction goes over."""
    first = node.args[0]
    assert isinstance(first, Node)
    rank, dims = len(_shape(first)), _arguments(node)["dim"]
    if not rank:
        raise Unsupported("a reduction of a number")
    dims = [dims] if isinstance(dims, int) else dims
    return sorted(d % rank for d in dims) if dims else list(range(rank))


def _reduction(op: str) -> Rule:
    def rule(w: ModelWriter, node: Node) -> str:
        _only_floats(node)
        keep = int(_arguments(node)["keepdim"])
        return w.emit(op, w.of(node.args[0]), _ints(w, _axes(node)), keepdims=keep)

    return rule


def _truth(op: str) -> Rule:
    def rule(w: ModelWriter, node: Node) -> str:
        first = node.args[0]
        assert isinstance(first, Node)
        if first.meta["val"].dtype != torch.bool:
            raise Unsupported("the truth of floats")
        keep = int(_arguments(node)["keepdim"])
        found = w.emit(op, w.of(first), _ints(w, _axes(node)), keepdims=keep)
        return w.emit("Less", w.constant(0.5), found)

    return rule


def _var_mean(w: ModelWriter, node: Node) -> tuple[str, ...]:
    a, axes = _arguments(node), _axes(node)
    sizes = _shape(a["self"])
    correction = 1 if a["correction"] is None else a["correction"]
    count = math.prod(sizes[d] for d in axes) - correction
    if count <= 0:
        raise Unsupported("the variance of too few numbers")
    x, dims = w.of(a["self"]), _ints(w, axes)
    mean = w.emit("ReduceMean", x, dims, keepdims=1)
    off = w.emit("Sub", x, mean)
    keep = int(a["keepdim"])
    total = w.emit("ReduceSum", w.emit("Mul", off, off), dims, keepdims=keep)
    kept = mean if keep else w.emit("ReduceMean", x, dims, keepdims=0)
    return w.emit("Div", total, w.constant(count)), kept


def _addmm(w: ModelWriter, node: Node) -> str:
    a = _arguments(node)
    factors = {"alpha": float(a["alpha"]), "beta": float(a["beta"])}
    return w.emit("Gemm", *(w.of(a[k]) for k in ("mat1", "mat2", "self")), **factors)


def _convolution(w: ModelWriter, node: Node) -> str:
    a = _arguments(node)
    spatial = len(_shape(a["weight"])) - 2
    if len(_shape(a["input"])) != spatial + 2:
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
    a = _arguments(node)
    if a["ceil_mode"] or len(_shape(a["self"])) != 4 or a.get("divisor_override") is not None:
        raise Unsupported("pooling of rounded-up sizes, without a batch, or with another divisor")

    def each(given: Sequence[int]) -> list[int]:
        return list(given) * 2 if len(given) == 1 else list(given)

    kernel = each(a["kernel_size"])
    strides = each(a["stride"]) if a["stride"] else kernel
    return {"kernel_shape": kernel, "strides": strides, "pads": each(a["padding"]) * 2}


def _max_pool(w: ModelWriter, node: Node) -> tuple[str | None, ...]:
    given = list(_arguments(node)["dilation"])
    dilations = given * 2 if len(given) == 1 else given
    found = w.emit("MaxPool", w.of(node.args[0]), **_pool_attributes(node), dilations=dilations)
    return found, None


def _avg_pool(w: ModelWriter, node: Node) -> str:
    counted = int(_arguments(node)["count_include_pad"])
    attributes = _pool_attributes(node)
    return w.emit("AveragePool", w.of(node.args[0]), **attributes, count_include_pad=counted)


def _along(op: str) -> Rule:
    def rule(w: ModelWriter, node: Node) -> str:
        rank = len(_shape(node))
        if not rank:
            raise Unsupported("a softmax of a number")
        return w.emit(op, w.of(node.args[0]), axis=_arguments(node)["dim"] % rank)

    return rule


def _layer_norm(w: ModelWriter, node: Node) -> tuple[str | None, ...]:
    a = _arguments(node)
    shape = a["normalized_shape"]
    weight = w.constant(np.ones(shape)) if a["weight"] is None else w.of(a["weight"])
    inputs = [w.of(a["input"]), weight] + ([] if a["bias"] is None else [w.of(a["bias"])])
    normal = w.emit("LayerNormalization", *inputs, axis=-len(shape), epsilon=a["eps"])
    return normal, None, None


def _batch_norm(w: ModelWriter, node: Node) -> tuple[str | None, ...]:
    a = _arguments(node)
    size = _shape(a["running_mean"])
    weight = w.constant(np.ones(size)) if a["weight"] is None else w.of(a["weight"])
    bias = w.constant(np.zeros(size)) if a["bias"] is None else w.of(a["bias"])
    kept = w.of(a["running_mean"]), w.of(a["running_var"])
    x = w.of(a["input"])
    return w.emit("BatchNormalization", x, weight, bias, *kept, epsilon=a["eps"]), None, None


def _gelu(w: ModelWriter, node: Node) -> str:
    x = w.of(node.args[0])
    if _arguments(node)["approximate"] == "tanh":
        cube = w.emit("Mul", w.emit("Mul", x, x), w.emit("Mul", x, w.constant(0.044715)))
        inner = w.emit("Mul", w.emit("Add", x, cube), w.constant(math.sqrt(2 / math.pi)))
        curve = w.emit("Tanh", inner)
    else:
        curve = w.emit("Erf", w.emit("Mul", x, w.constant(math.sqrt(0.5))))
    return w.emit("Mul", w.emit("Mul", x, w.constant(0.5)), w.emit("Add", curve, w.constant(1)))


def _for_each_head(w: ModelWriter, node: Node, heads: int) -> str:
    """Keys or values that several heads share, once for each."""
    batch, own, rows, width = _shape(node)
    if own == heads:
        return w.of(node)
    apart = w.emit("Reshape", w.of(node), _ints(w, [batch, own, 1, rows, width]))
    each = w.emit("Expand", apart, _ints(w, [batch, own, heads // own, rows, width]))
    return w.emit("Reshape", each, _ints(w, [batch, heads, rows, width]))


def _attention(w: ModelWriter, node: Node) -> tuple[str | None, ...]:
    a = _arguments(node)
    if a["attn_mask"] is not None or a["dropout_p"]:
        raise Unsupported("attention with a mask or dropout")
    heads = _shape(a["query"])[1]
    key, value = (_for_each_head(w, a[name], heads) for name in ("key", "value"))
    rows, columns, width = _shape(a["query"])[-2], _shape(a["key"])[-2], _shape(a["query"])[-1]
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


def _named(names: str, rule: Rule) -> dict[str, Rule]:
    return {f"aten.{name}": rule for name in names.split()}


def _each(pairs: Mapping[str, str], make: Callable[[str], Rule]) -> dict[str, Rule]:
    return {f"aten.{name}": make(op) for names, op in pairs.items() for name in names.split()}


# Those that move or make values, and compute nothing: alone they are no reason for a region.
MOVING: Mapping[str, Rule] = {
    **_named(
        "view.default _unsafe_view.default reshape.default unsqueeze.default squeeze.dim "
        "squeeze.dims squeeze.default",
        _reshaped,
    ),
    **_named("clone.default alias.default detach.default lift_fresh_copy.default", _same),
    **_named("_to_copy.default", _converted),
    **_named("permute.default", _permuted),
    **_named("expand.default", _expanded),
    **_named("slice.Tensor", _sliced),
    **_named("select.int", _selected),
    **_named("cat.default", _concatenated),
    **_named("constant_pad_nd.default", _padded),
    **_named("full.default scalar_tensor.default full_like.default", _filled()),
    **_named("zeros.default zeros_like.default", _filled(0)),
    **_named("ones.default ones_like.default", _filled(1)),
}

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
    **_named("gt.Tensor gt.Scalar", _comparison("Less", swapped=True)),
    **_named("ge.Tensor ge.Scalar", _comparison("LessOrEqual", swapped=True)),
    **_named("ne.Tensor ne.Scalar", _comparison("Equal", negated=True)),
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
    **_named("rsqrt.default", _reciprocal_root),
    **_named("where.self", _where),
    **_named("var_mean.correction", _var_mean),
    **_named("addmm.default", _addmm),
    **_named("convolution.default", _convolution),
    **_named("max_pool2d_with_indices.default", _max_pool),
    **_named("avg_pool2d.default", _avg_pool),
    **_named("native_layer_norm.default", _layer_norm),
    **_named("_native_batch_norm_legit_no_training.default", _batch_norm),
    **_named("gelu.default", _gelu),
    **_named("_scaled_dot_product_flash_attention_for_cpu.default", _attention),
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
