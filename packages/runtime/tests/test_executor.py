"""Plans written by hand, run by the native executor and by the oracle, against eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from dovetail_runtime import (
    Allocate,
    CallAten,
    Constant,
    CopyInto,
    CppKernel,
    Free,
    FreeSlab,
    LaunchCpp,
    LoadOptions,
    Plan,
    PlanInput,
    Ref,
    SizeExpr,
    SymbolBinding,
    TensorSpec,
    View,
    load,
    release_idle_memory,
)
from dovetail_runtime.artifact import default_cpp_builder
from dovetail_runtime.lower import PlanError
from dovetail_runtime.native import executor_module
from dovetail_runtime.plan import Kernel, Size, Step
from reference_executor import ReferenceExecutor

CPU = torch.device("cpu")

SCALE = CppKernel(
    "scale",
    """
static inline float times(float x, float s) { return x * s; }
extern "C" void scale(void* const* p, const int64_t* s, int64_t begin, int64_t end) {
  const float* x = static_cast<const float*>(p[0]);
  float* y = static_cast<float*>(p[1]);
  for (int64_t i = begin; i < end; ++i) y[i] = times(x[i], float(s[0]));
}
""",
)
ADD = CppKernel(
    "add",
    """
#include <algorithm>
static inline float times(float x, float y) { return std::max(x + y, -1e30f); }
extern "C" void add(void* const* p, const int64_t*, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    static_cast<float*>(p[2])[i] =
        times(static_cast<const float*>(p[0])[i], static_cast<const float*>(p[1])[i]);
}
""",
)


def sym(name: str) -> SizeExpr:
    return SizeExpr("sym", (name,))


def mul(a: Size, b: Size) -> Size:
    return SizeExpr("mul", (a, b))


def dense(*shape: Size, dtype: torch.dtype = torch.float32) -> TensorSpec:
    strides: list[Size] = []
    step: Size = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        both = isinstance(step, int) and isinstance(extent, int)
        step = step * extent if both else mul(step, extent)  # type: ignore[operator]
    return TensorSpec(tuple(shape), tuple(strides), dtype, CPU)


def make(
    inputs: Sequence[tuple[str, TensorSpec | None]],
    steps: Sequence[Step],
    outputs: Sequence[str | Size | None],
    *,
    kernels: Sequence[Kernel] = (),
    symbols: Sequence[SymbolBinding] = (),
    constants: Sequence[Constant] = (),
    slab: Size | tuple[Size, ...] = 0,
    mutated: tuple[str, ...] = (),
) -> Plan:
    return Plan(
        "test_plan",
        "cpu",
        tuple(PlanInput(name, spec) for name, spec in inputs),
        tuple(symbols),
        tuple(constants),
        tuple(kernels),
        tuple(steps),
        tuple(("cpu", size) for size in (slab if isinstance(slab, tuple) else (slab,)) if size),
        tuple(outputs),
        mutated,
    )


def executors(plan: Plan) -> list[Callable[..., Any]]:
    cpp = [k for k in plan.kernels if isinstance(k, CppKernel)]
    oracle = ReferenceExecutor(plan, default_cpp_builder().build(cpp))
    return [oracle, load(plan, options=LoadOptions(check_inputs=True)), load(plan)]


def same(actual: Any, expected: Any) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert torch.allclose(actual, expected, rtol=1e-6, atol=1e-6)


def test_slab_kernels_and_out_variants() -> None:
    plan = make(
        [("x", dense(4, 8)), ("w", dense(8, 8))],
        [
            Allocate("t", dense(4, 8), 0),
            LaunchCpp("scale", ("x", "t"), (3,), 32, 8),
            Allocate("u", dense(4, 8), 128),
            CallAten("aten::mm.out", (Ref("t"), Ref("w")), (("out", Ref("u")),)),
            Allocate("o", dense(4, 8), None),
            LaunchCpp("add", ("u", "t", "o"), (), 32, 8),
            Free(("t", "u")),
        ],
        ["o", None, "x", 7, "o"],
        kernels=[SCALE, ADD],
        slab=256,
    )
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    for run in executors(plan):
        o, none, same_x, seven, again = run(x, w)
        same(o, (3 * x) @ w + 3 * x)
        assert none is None and same_x is x and seven == 7 and again is o
        assert not o.requires_grad


def two_slabs(rows: int) -> Plan:
    """Through one slab, which is given back, and then through another."""
    return make(
        [("x", dense(rows, 8))],
        [
            Allocate("t", dense(rows, 8), 0),
            LaunchCpp("scale", ("x", "t"), (3,), 8 * rows, 8),
            Allocate("kept", dense(rows), None),
            CallAten("aten::sum.IntList_out", (Ref("t"), (1,)), (("out", Ref("kept")),)),
            FreeSlab("cpu", 0),
            Allocate("u", dense(rows, 8), 64, 1),
            LaunchCpp("scale", ("x", "u"), (2,), 8 * rows, 8),
            View("row", "u", dense(8)),
            CallAten("aten::mul.Tensor", (Ref("kept"), Ref("row")), (), ("o",)),
        ],
        ["o"],
        kernels=[SCALE],
        slab=(32 * rows, 32 * rows + 64),
    )


def test_a_slab_is_given_back_before_another_is_taken() -> None:
    x = torch.randn(8, 8)
    for run in executors(two_slabs(8)):
        for _ in range(2):
            same(run(x)[0], (3 * x).sum(1) * 2 * x[0])
    # The pool keeps no more than was in use at one time.
    rows = 4096
    run = load(replace(two_slabs(rows), steps=two_slabs(rows).steps[:-1], outputs=("kept",))).run
    release_idle_memory()
    run(torch.randn(rows, 8))
    assert 0 < executor_module().idle_slab_bytes() < 48 * rows
    release_idle_memory()


def test_a_call_that_returns_another_layout_is_laid_out_again() -> None:
    """Libraries choose the layout of a convolution's gradients by more than its arguments."""
    transposed = TensorSpec((4, 8), (1, 4), torch.float32, CPU)
    for expected in (dense(4, 8), transposed, dense(4, 4)):
        call = CallAten("aten::relu", (Ref("x"),), (), ("o",), (expected,))
        plan = make([("x", dense(4, 8))], [call], ["o"])
        for run in executors(plan):
            x = torch.randn(4, 8)
            if expected.shape != (4, 8):
                with pytest.raises(RuntimeError, match="aten::relu returned"):
                    run(x)
                continue
            (o,) = run(x)
            assert torch.equal(o, x.relu()) and o.stride() == expected.stride


def test_a_result_that_is_an_argument_is_not_laid_out_again() -> None:
    """A copy would be no longer what the caller holds."""
    transposed = TensorSpec((4, 8), (1, 4), torch.float32, CPU)
    call = CallAten("aten::alias", (Ref("x"),), (), ("o",), (transposed,))
    run = load(make([("x", dense(4, 8))], [call], ["o"]))
    with pytest.raises(RuntimeError, match="aten::alias returned"):
        run(torch.randn(4, 8))


def test_the_strides_of_one_element_say_nothing() -> None:
    # strides of dimensions of one element, and of nothing, say nothing
    for shape, stride in (((1, 8), (3, 1)), ((0, 8), (1, 1))):
        spec = TensorSpec(shape, stride, torch.float32, CPU)
        call = CallAten("aten::relu", (Ref("x"),), (), ("o",), (spec,))
        for run in executors(make([("x", dense(*shape))], [call], ["o"])):
            run(torch.randn(shape))


def test_threads_split_the_work() -> None:
    n = 100_000
    plan = make(
        [("x", dense(n))],
        [Allocate("o", dense(n), None), LaunchCpp("scale", ("x", "o"), (2,), n, 1000)],
        ["o"],
        kernels=[SCALE],
    )
    x = torch.randn(n)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            for run in executors(plan):
                same(run(x)[0], x * 2)
    finally:
        torch.set_num_threads(before)


def test_views_of_everything() -> None:
    """Views of an input, of the slab, of an own allocation, of an ATen result, of a view; with
    offsets and other dtypes."""
    transposed = TensorSpec((8, 4), (1, 8), torch.float32, CPU)
    tail = TensorSpec((4,), (1,), torch.float32, CPU, offset=28)
    integers = TensorSpec((32,), (1,), torch.int32, CPU)
    plan = make(
        [("x", dense(4, 8))],
        [
            View("xt", "x", transposed),
            View("xt_tail", "xt", tail),
            Allocate("s", dense(4, 8), 64),
            CallAten("aten::mul.out", (Ref("x"), Ref("x")), (("out", Ref("s")),)),
            View("st", "s", transposed),
            CallAten("aten::clone", (Ref("st"),), (), ("st_copy",)),
            View("s_tail", "s", tail),
            Allocate("own", dense(4), None),
            LaunchCpp("add", ("xt_tail", "s_tail", "own"), (), 4, 8),
            CallAten("aten::exp", (Ref("x"),), (), ("e",)),
            View("e_tail", "e", tail),
            CallAten("aten::clone", (Ref("e_tail"),), (), ("e_copy",)),
            View("bits", "s", integers),
            CallAten("aten::clone", (Ref("bits"),), (), ("bits_copy",)),
        ],
        ["xt", "st_copy", "own", "e_copy", "bits_copy"],
        kernels=[ADD],
        slab=192,
    )
    x = torch.randn(4, 8)
    for run in executors(plan):
        xt, st, own, e, bits = run(x)
        assert xt.data_ptr() == x.data_ptr() and xt.stride() == (1, 8)
        same(st, (x * x).t())
        same(own, x[3, 4:] + x[3, 4:] ** 2)
        same(e, x[3, 4:].exp())
        assert torch.equal(bits, (x * x).view(torch.int32).flatten())


def test_views_of_a_result_count_from_where_it_begins() -> None:
    """The library copies the whole storage of a view that it writes into, so that its result
    begins where the view does."""
    plan = make(
        [("x", TensorSpec((6,), (1,), torch.float32, CPU, offset=2)), ("part", dense(2))],
        [
            CallAten("aten::slice_scatter", (Ref("x"), Ref("part"), 0, 1, 3), (), ("whole",)),
            View("tail", "whole", TensorSpec((3,), (1,), torch.float32, CPU, offset=3)),
            View("last", "tail", TensorSpec((1,), (1,), torch.float32, CPU, offset=5)),
            CallAten("aten::clone", (Ref("tail"),), (), ("copy",)),
            CallAten("aten::exp", (Ref("last"),), (), ("e",)),
        ],
        ["copy", "e", "tail"],
    )
    base, part = torch.randn(20), torch.randn(2)
    for start in (2, 0, 9):
        x = base[start : start + 6]
        whole = x.clone()
        whole[1:3] = part
        for run in executors(plan):
            copy, e, tail = run(x, part)
            same(copy, whole[3:])
            same(e, whole[5:].exp())
            same(tail, whole[3:])


def test_input_with_storage_offset() -> None:
    plan = make(
        [("x", TensorSpec((6,), (1,), torch.float32, CPU, offset=2))],
        [Allocate("o", dense(6), None), LaunchCpp("scale", ("x", "o"), (1,), 6, 8)],
        ["o"],
        kernels=[SCALE],
    )
    base = torch.randn(10)
    for run in executors(plan):
        same(run(base[2:8])[0], base[2:8])


def test_aten_arguments_of_all_kinds() -> None:
    image = dense(2, 3, 8, 8)
    last = TensorSpec((2, 3, 8, 8), (192, 1, 24, 3), torch.float32, CPU)
    plan = make(
        [("x", image), ("w", dense(4, 3, 3, 3)), ("i", dense(2, dtype=torch.int64))],
        [
            # int lists, optional tensor (absent), bool, broadcast list, int for SymInt[]
            CallAten(
                "aten::convolution",
                (Ref("x"), Ref("w"), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1),
                (),
                ("conv",),
            ),
            # several results, the last ones unwanted; optional tensors; floats
            CallAten(
                "aten::native_layer_norm", (Ref("conv"), (8,), None, None, 1e-5), (),
                ("norm", None, None),
            ),
            # dtype, memory format
            CallAten("aten::_to_copy", (Ref("x"),), (("dtype", torch.float64),), ("d",)),
            CallAten(
                "aten::clone", (Ref("x"),), (("memory_format", torch.channels_last),), ("c",)
            ),
            # a list of tensors in
            CallAten("aten::cat", ((Ref("x"), Ref("c")), 1), (), ("cat",)),
            # a list of optional tensors in
            CallAten("aten::index.Tensor", (Ref("x"), (None, Ref("i"))), (), ("picked",)),
            # a list of tensors out
            CallAten("aten::split_with_sizes", (Ref("x"), (2, 6), 2), (), ("a", "b")),
            # dtype, layout, device, pin_memory of a factory; a float for a Scalar; an int for it
            CallAten(
                "aten::full", ((2, 2), 1.5),
                (("dtype", torch.float32), ("layout", torch.strided), ("device", CPU),
                 ("pin_memory", False)),
                ("f",),
            ),
            CallAten("aten::add.Tensor", (Ref("f"), Ref("f")), (("alpha", 2),), ("f3",)),
            # a number where a tensor is wanted does not change the dtype
            CallAten("aten::mul.Tensor", (Ref("f3"), 2.0), (), ("f6",)),
            CallAten("aten::add.Tensor", (Ref("i"), 1), (), ("i1",)),
            # a string; a missing default; an int for a float
            CallAten(
                "aten::div.Tensor_mode", (Ref("f6"), 2), (("rounding_mode", "floor"),), ("fl",)
            ),
            CallAten("aten::gelu", (Ref("f"),), (("approximate", "tanh"),), ("g",)),
            CallAten("aten::rand_like", (Ref("f"),), (), (None,)),
            CallAten("aten::leaky_relu", (Ref("x"), 1), (), ("lr",)),
            CallAten("aten::native_dropout", (Ref("f"), 0, True), (), ("drop", "mask")),
            # one int for int[2]
            CallAten("aten::avg_pool2d", (Ref("x"), 2), (), ("pool",)),
            # inf and a complex number
            CallAten("aten::where.self", (Ref("mask"), Ref("f"), float("-inf")), (), ("wh",)),
            CallAten("aten::mul.Tensor", (Ref("f"), 2j), (), ("im",)),
            # a masked result is undefined
            CallAten(
                "aten::convolution_backward",
                (Ref("conv"), Ref("x"), Ref("w"), (0,), (1, 1), (1, 1), (1, 1), False, (0, 0), 1,
                 (False, True, False)),
                (),
                ("gx", "gw", "gb"),
            ),
        ],
        ["conv", "norm", "d", "c", "cat", "picked", "a", "b", "f6", "i1", "fl", "g", "lr", "drop",
         "mask", "pool", "wh", "im", "gx", "gw"],
    )  # fmt: skip
    assert last.stride == (192, 1, 24, 3)
    x, w, i = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.tensor([2, 0])
    conv = torch.conv2d(x, w, padding=1)
    f = torch.full((2, 2), 1.5)
    channels_last = x.to(memory_format=torch.channels_last)
    grad_w = torch.ops.aten.convolution_backward.default(
        conv, x, w, [0], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
    )[1]
    expected = [
        conv, torch.layer_norm(conv, (8,)), x.double(), channels_last,
        torch.cat([x, channels_last], 1), x[:, i], x[:, :, :2], x[:, :, 2:], f * 6, i + 1,
        (f * 3).floor(), torch.nn.functional.gelu(f, approximate="tanh"), x, f,
        torch.ones(2, 2).bool(),
        torch.nn.functional.avg_pool2d(x, 2), f, f * 2j, None, grad_w,
    ]  # fmt: skip
    for run in executors(plan):
        outputs = run(x, w, i)
        assert len(outputs) == len(expected)
        for actual, wanted in zip(outputs, expected, strict=True):
            if wanted is None:
                assert actual is None
            else:
                assert actual.dtype == wanted.dtype
                assert actual.stride() == wanted.stride()
                same(actual, wanted)


def test_symbols_everywhere() -> None:
    n, k = sym("n"), sym("k")
    half: Size = SizeExpr("floordiv", (n, 2))
    rounded: Size = mul(SizeExpr("ceildiv", (mul(n, 4), 64)), 64)
    plan = make(
        [("x", dense(n)), ("k", None)],
        [
            Allocate("t", dense(n), 64),
            LaunchCpp("scale", ("x", "t"), (k,), n, 4),
            View("head", "t", TensorSpec((half,), (1,), torch.float32, CPU)),
            Allocate("pad", dense(k), None),
            CallAten("aten::fill_.Scalar", (Ref("pad"), half)),
            CallAten("aten::cat", ((Ref("head"), Ref("pad")),), (), ("o",)),
            CallAten("aten::view", (Ref("o"), (1, SizeExpr("add", (half, k)))), (), ("o2",)),
            CallAten("aten::mul.Tensor", (Ref("o2"), 1.0), (), ("o3",)),
        ],
        ["o3", half, SizeExpr("max", (n, k)), SizeExpr("mod", (SizeExpr("neg", (n,)), 4))],
        kernels=[SCALE],
        symbols=[SymbolBinding("n", 0, 0), SymbolBinding("k", 1, None)],
        slab=SizeExpr("add", (64, rounded)),
    )
    for run in executors(plan):
        for size, factor in ((10, 3), (1, 5), (64, 2), (7, 1), (1000, 4)):
            x = torch.randn(size)
            o, h, m, r = run(x, factor)
            pad = torch.full((factor,), float(size // 2))
            same(o, torch.cat([x[: size // 2] * factor, pad])[None])
            assert (h, m, r) == (size // 2, max(size, factor), -size % 4)


def test_mutation_is_written_back_and_counted() -> None:
    plan = make(
        [("x", dense(4)), ("y", dense(4))],
        [
            Allocate("t", dense(4), 0),
            LaunchCpp("scale", ("x", "t"), (2,), 4, 8),
            CopyInto("x", "t"),
            LaunchCpp("add", ("x", "y", "y"), (), 4, 8),
        ],
        [],
        kernels=[SCALE, ADD],
        slab=64,
        mutated=("y",),
    )
    for run in executors(plan):
        x, y = torch.ones(4), torch.ones(4)
        versions = x._version, y._version
        assert run(x, y) == ()
        same(x, torch.full((4,), 2.0))
        same(y, torch.full((4,), 3.0))
        assert x._version > versions[0] and y._version > versions[1]


def test_constants_and_leaf_parameters() -> None:
    constant = torch.tensor([1.0, 2.0, 3.0])
    plan = make(
        [("p", dense(3))],
        [
            Allocate("o", dense(3), None),
            LaunchCpp("add", ("p", "c", "o"), (), 3, 8),
            CallAten("aten::mul_.Tensor", (Ref("o"), Ref("p"))),
            Free(("c", "p")),
        ],
        ["o"],
        kernels=[ADD],
        constants=[Constant("c", constant)],
    )
    parameter = torch.nn.Parameter(torch.tensor([1.0, 1.0, 2.0]))
    for run in executors(plan):
        for _ in range(3):
            (o,) = run(parameter)
            same(o, (parameter + constant).detach() * parameter.detach())
            assert not o.requires_grad and o.grad_fn is None


def test_autocast_and_inference_mode_change_nothing() -> None:
    plan = make(
        [("x", dense(4, 4))],
        [CallAten("aten::mm", (Ref("x"), Ref("x")), (), ("o",))],
        ["o"],
    )
    x = torch.randn(4, 4)
    run = load(plan)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run(x)[0].dtype == torch.float32
    with torch.inference_mode():
        (o,) = run(x)
    same(o, x @ x)


def test_zero_sized_tensors() -> None:
    n = sym("n")
    plan = make(
        [("x", dense(n, 4))],
        [
            Allocate("t", dense(n, 4), 0),
            LaunchCpp("scale", ("x", "t"), (2,), mul(n, 4), 8),
            View("v", "t", dense(4, n)),
            CallAten("aten::sum", (Ref("v"),), (), ("o",)),
        ],
        ["o"],
        kernels=[SCALE],
        symbols=[SymbolBinding("n", 0, 0)],
        slab=SizeExpr("mul", (n, 64)),
    )
    for run in executors(plan):
        assert run(torch.randn(0, 4))[0].item() == 0.0
        x = torch.randn(3, 4)
        same(run(x)[0], (x * 2).sum())


def test_wrong_inputs_are_refused() -> None:
    plan = make(
        [("x", dense(4, 8)), ("k", None)],
        [CallAten("aten::neg", (Ref("x"),), (), ("o",))],
        ["o"],
    )
    checked = load(plan, options=LoadOptions(check_inputs=True)).run
    x = torch.randn(4, 8)
    checked(x, 1)
    with pytest.raises(TypeError, match="2 inputs expected, 1 given"):
        checked(x)
    with pytest.raises(TypeError, match="positional"):
        checked(x, k=1)
    with pytest.raises(TypeError, match=r"input 1 \('k'\) must be an int or a float, not Tensor"):
        checked(x, x)
    with pytest.raises(TypeError, match=r"input 0 \('x'\) must be a tensor, not int"):
        checked(1, 1)
    with pytest.raises(RuntimeError, match=r"must be Float of shape \[4, 8\].*it is Double"):
        checked(x.double(), 1)
    with pytest.raises(RuntimeError, match=r"of shape \[8, 4\]"):
        checked(x.t(), 1)
    with pytest.raises(RuntimeError, match=r"strides \[1, 4\]"):
        checked(x.t().contiguous().t(), 1)
    with pytest.raises(RuntimeError, match="not a plain dense tensor"):
        checked(torch.randn(4, 8, dtype=torch.complex64).conj(), 1)
    with pytest.raises(RuntimeError, match="on meta"):
        checked(torch.randn(4, 8, device="meta"), 1)
    checked(x, 1)


def test_wrong_plans_are_refused() -> None:
    def refused(steps: list[Step], outputs: list[str | Size | None], message: str) -> None:
        with pytest.raises((PlanError, RuntimeError, ValueError), match=message):
            load(make([("x", dense(4))], steps, outputs, slab=64))

    out = Allocate("o", dense(4), 0)
    refused([out], ["o"], "lives in the slab")
    refused([out, View("v", "o", dense(2))], ["v"], "lives in the slab")
    refused([Allocate("x", dense(4), None)], [], "two tensors are called 'x'")
    refused([], ["nobody"], "no tensor is called 'nobody'")
    refused([out, Free(("o",)), View("v", "o", dense(2))], [], "after it was freed")
    refused([Allocate("o", dense(4), 32)], [], "64-byte")
    refused([Allocate("o", dense(32), 0)], [], "takes bytes 0 to 128 of a slab of 64")
    refused([Allocate("o", dense(4), 0, 1)], [], "'o' wants slab 1 on cpu: none")
    refused([out, FreeSlab("cpu", 0), View("v", "o", dense(2))], [], "after it was freed")
    refused([FreeSlab("cpu", 0), out], [], "'o' wants slab 0 on cpu: freed")
    refused([LaunchCpp("ghost", (), (), 1, 1)], [], "no compiled C\\+\\+ kernel is called 'ghost'")
    refused([CallAten("aten::no_such_op", ())], [], "no operator aten::no_such_op")
    refused([CallAten("aten::neg", ())], [], "argument 'self' is missing")
    refused([CallAten("aten::neg", (Ref("x"), 1))], [], "too many arguments")
    refused([CallAten("aten::neg", (Ref("x"),), (("axis", 1),))], [], "keyword argument unknown")
    refused([CallAten("aten::neg", ("x",))], [], "a string is given")
    refused([CallAten("aten::sum.dim_IntList", (Ref("x"), (0.5,)))], [], "an int is wanted")
    refused([out], [sym("n")], "symbol 'n' is bound by no input")


def test_a_slab_that_is_too_small_is_noticed() -> None:
    """Sizes known only in a call are checked there by the oracle, and on request natively."""
    n = sym("n")
    plan = make(
        [("x", dense(n))],
        [Allocate("t", dense(n), 64)],
        [],
        symbols=[SymbolBinding("n", 0, 0)],
        slab=128,
    )
    for run in executors(plan)[:2]:
        assert run(torch.randn(16)) == ()
        with pytest.raises((RuntimeError, ValueError), match="takes bytes 64 to 132 of a slab"):
            run(torch.randn(17))


def test_errors_of_kernels_name_their_step() -> None:
    plan = make(
        [("x", dense(4, 8))],
        [CallAten("aten::mm", (Ref("x"), Ref("x")), (), ("o",))],
        ["o"],
    )
    for run in executors(plan):
        with pytest.raises(RuntimeError, match="mat1 and mat2") as caught:
            run(torch.randn(4, 8))
        notes = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
        assert "step 0" in notes and "aten::mm" in notes and "test_plan" in notes
    with pytest.raises(RuntimeError, match="divides by zero"):
        divided = make(
            [("x", dense(sym("n")))],
            [Allocate("o", dense(SizeExpr("floordiv", (8, sym("n")))), None)],
            ["o"],
            symbols=[SymbolBinding("n", 0, 0)],
        )
        load(divided)(torch.empty(0))


def test_a_kernel_may_throw() -> None:
    thrower = CppKernel(
        "thrower",
        """
#include <stdexcept>
extern "C" void thrower(void* const* p, const int64_t* s, int64_t begin, int64_t end) {
  if (s[0] == 1) throw std::out_of_range("index out of range");
  if (s[0] == 2) throw std::runtime_error("ZeroDivisionError");
}
""",
    )
    plan = make(
        [("x", dense(4)), ("k", None)],
        [LaunchCpp("thrower", ("x",), (sym("k"),), 100, 10)],
        [],
        kernels=[thrower],
        symbols=[SymbolBinding("k", 1, None)],
    )
    for run in executors(plan):
        x = torch.randn(4)
        assert run(x, 0) == ()
        with pytest.raises(IndexError, match="index out of range"):
            run(x, 1)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            run(x, 2)
        assert run(x, 0) == ()
    with pytest.raises(IndexError, match="step 0 of test_plan: kernel thrower"):
        load(plan)(torch.randn(4), 1)


def test_result_count_is_checked() -> None:
    plan = make(
        [("x", dense(4))],
        [CallAten("aten::split.Tensor", (Ref("x"), 2), (), ("a", "b", "c"))],
        ["a"],
    )
    with pytest.raises(RuntimeError, match="returned 2 values, 3 are named"):
        load(plan)(torch.randn(4))
