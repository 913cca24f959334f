"""What a call costs besides its kernels: no Python, no growth, no mix-up between threads."""

from __future__ import annotations

import dataclasses
import gc
import os
import resource
import signal
import sys
import threading
import time
import weakref
from typing import Any

import pytest
import torch
from dovetail_runtime import (
    Allocate,
    CallAten,
    CppKernel,
    LaunchCpp,
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
from dovetail_runtime.native import executor_module
from plan_costs import kernel_chain, mm_chain
from torch.utils._python_dispatch import TorchDispatchMode

CPU = torch.device("cpu")
N = SizeExpr("sym", ("n",))
BYTES = SizeExpr("mul", (SizeExpr("ceildiv", (SizeExpr("mul", (N, 4)), 64)), 64))

FILL = CppKernel(
    "fill_from",
    """
extern "C" void fill_from(void* const* p, const int64_t* s, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    static_cast<float*>(p[1])[i] = static_cast<const float*>(p[0])[0];
}
""",
)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-6) -> None:
    """(torch.testing would import sympy.)"""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert torch.allclose(actual, expected, rtol=tolerance, atol=tolerance)


def row(size: Any) -> TensorSpec:
    return TensorSpec((size,), (1,), torch.float32, CPU)


def dynamic_plan() -> Plan:
    """Spreads the first element over the slab, adds the input twice, all sizes symbolic."""
    return Plan(
        "dynamic",
        "cpu",
        (PlanInput("x", row(N)),),
        (SymbolBinding("n", 0, 0),),
        (),
        (FILL,),
        (
            Allocate("t", row(N), 0),
            LaunchCpp("fill_from", ("x", "t"), (), N, 1 << 20),
            CallAten("aten::add.Tensor", (Ref("t"), Ref("x")), (), ("u",)),
            Allocate("o", row(N), None),
            CallAten("aten::add.out", (Ref("u"), Ref("x")), (("out", Ref("o")),)),
        ),
        (("cpu", BYTES),),
        ("o",),
    )


def test_no_python_runs_during_a_call() -> None:
    run = load(mm_chain(20)).run
    x = torch.randn(4, 4)
    run(x)
    events: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        events.append(event)

    sys.setprofile(profile)
    try:
        run(x)
    finally:
        sys.setprofile(None)
    # The call itself and the last setprofile; nothing else.
    assert [e for e in events if e in ("call", "return")] == []
    assert events.count("c_call") <= 2


def test_memory_stays_the_same_over_many_calls() -> None:
    run = load(dynamic_plan()).run
    sizes = [torch.randn(n) for n in (1, 100, 3000)]
    for x in sizes * 1000:
        run(x)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(33_000):
        for x in sizes:
            run(x)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 2048, f"{grown} KiB more after 99,000 calls"


def test_failing_calls_leak_nothing() -> None:
    plan = Plan(
        "failing", "cpu", (PlanInput("x", row(4)),), (), (), (),
        (CallAten("aten::mm", (Ref("x"), Ref("x")), (), ("o",)),), (), ("o",),
    )  # fmt: skip
    run = load(plan).run

    def fail(times: int, x: torch.Tensor) -> None:
        for _ in range(times):
            with pytest.raises(RuntimeError):
                run(x)

    x = torch.randn(4)
    fail(500, x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fail(3000, x)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2048
    watched = weakref.ref(x)
    del x
    gc.collect()
    assert watched() is None


def test_inputs_and_outputs_are_let_go() -> None:
    run = load(dynamic_plan()).run
    x = torch.randn(100)
    (o,) = run(x)
    watched = [weakref.ref(x), weakref.ref(o)]
    del x, o
    gc.collect()
    assert [w() for w in watched] == [None, None]


def test_eight_threads_one_artifact() -> None:
    run = load(dynamic_plan()).run
    wrong: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for i in range(300):
            x = torch.randn(1 + (seed * 37 + i * 11) % 500, generator=generator)
            (o,) = run(x)
            if not torch.allclose(o, 2 * x + x[0]):
                wrong.append(f"thread {seed}, call {i}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_compiles_and_runs() -> None:
    """Data loaders fork: the child has none of this process's threads."""
    load(dynamic_plan())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            source = FILL.source.replace("fill_from", "fill_in_child")
            plan = dynamic_plan()
            steps = tuple(
                dataclasses.replace(s, kernel="fill_in_child") if isinstance(s, LaunchCpp) else s
                for s in plan.steps
            )
            kernels = (CppKernel("fill_in_child", source),)
            run = load(dataclasses.replace(plan, kernels=kernels, steps=steps)).run
            x = torch.ones(5)
            status = 0 if torch.equal(run(x)[0], x * 3) else 2
        finally:
            os._exit(status)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_dispatch_mode_still_sees_the_operators() -> None:
    """Profilers and counters written as modes keep working."""
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    run = load(mm_chain(2)).run
    x = torch.randn(4, 4)
    with Watch():
        run(x)
    assert seen == ["aten.mm.out"] * 2


def test_an_operator_written_in_python() -> None:
    """It runs, with the GIL it needs; what it raises arrives as it is."""
    library = torch.library.Library("dovetail_runtime_test", "DEF")
    library.define("picky(Tensor x, int k) -> Tensor")

    def picky(x: torch.Tensor, k: int) -> torch.Tensor:
        if k == 3:
            raise KeyError("three")
        return x * k

    library.impl("picky", picky, "CPU")
    k = SizeExpr("sym", ("k",))
    plan = Plan(
        "python_op", "cpu", (PlanInput("x", row(4)), PlanInput("k", None)),
        (SymbolBinding("k", 1, None),), (), (),
        (CallAten("dovetail_runtime_test::picky", (Ref("x"), k), (), ("o",)),), (), ("o",),
    )  # fmt: skip
    run = load(plan).run
    x = torch.randn(4)
    close(run(x, 2)[0], x * 2)
    with pytest.raises(KeyError, match="three"):
        run(x, 3)
    close(run(x, 4)[0], x * 4)
    library._destroy()


def test_idle_slabs_are_limited() -> None:
    module = executor_module()
    run = load(kernel_chain(3)).run
    run(torch.randn(4, 4))
    assert module.idle_slab_bytes() > 0
    release_idle_memory()
    assert module.idle_slab_bytes() == 0
    run(torch.randn(4, 4))
    assert module.idle_slab_bytes() > 0
    try:
        module.set_slab_limit(0)
        assert module.idle_slab_bytes() == 0
        run(torch.randn(4, 4))
        assert module.idle_slab_bytes() == 0
    finally:
        module.set_slab_limit(1 << 30)


def spied_chain(library: torch.library.Library, seen: list[list[str]], dead: list[str]) -> Plan:
    """`view(a) @ view(a) @ x @ kept`, with a note of who is dead after each product."""
    library.define("note(Tensor x) -> Tensor")

    def note(value: torch.Tensor) -> torch.Tensor:
        seen.append(sorted(dead))
        return value.clone()

    library.impl("note", note, "CPU")
    spec = TensorSpec((64, 64), (64, 1), torch.float32, CPU)
    products = [("view", "view", "b"), ("b", "x", "c"), ("c", "kept", "out")]
    steps: list[Any] = [View("view", "a", spec)]
    for left, right, result in products:
        steps.append(CallAten("aten::mm", (Ref(left), Ref(right)), outputs=(result,)))
        name = ("dovetail_runtime_consume_test::note", (Ref(result),))
        steps.append(CallAten(*name, outputs=(f"noted_{result}",)))
    return Plan(
        "chain",
        "cpu",
        inputs=tuple(PlanInput(name, spec) for name in ("a", "x", "unused", "kept")),
        symbols=(),
        constants=(),
        kernels=(),
        steps=tuple(steps),
        slab_bytes=(),
        outputs=("out", "kept"),
    )


def test_a_consuming_call_drops_each_input_after_its_last_use() -> None:
    library = torch.library.Library("dovetail_runtime_consume_test", "DEF")
    seen: list[list[str]] = []
    dead: list[str] = []
    run = load(spied_chain(library, seen, dead)).run
    inputs = [torch.randn(64, 64) / 8 for _ in range(4)]
    a, x, unused, kept = inputs
    expected = a @ a @ x @ kept
    for name, tensor in (("a", a), ("x", x), ("unused", unused), ("kept", kept)):
        weakref.finalize(tensor, dead.append, name)
    del a, x, unused, tensor
    plain = list(inputs)
    close(run(*plain)[0], expected, 1e-4)
    del plain
    assert seen == [[], [], []]
    seen.clear()
    out, same = run.run_consuming(inputs)  # type: ignore[attr-defined]
    assert inputs == []
    close(out, expected, 1e-4)
    assert same is kept
    assert seen == [["a", "unused"], ["a", "unused", "x"], ["a", "unused", "x"]]


def test_a_consuming_call_takes_a_list_and_leaves_it_alone_when_an_input_is_wrong() -> None:
    run = load(kernel_chain(2)).run
    with pytest.raises(TypeError, match="in a list"):
        run.run_consuming((torch.ones(4),))  # type: ignore[attr-defined]
    inputs: list[Any] = ["no tensor"]
    with pytest.raises(TypeError, match="must be a tensor"):
        run.run_consuming(inputs)  # type: ignore[attr-defined]
    assert inputs == ["no tensor"]


DOUBLE = CppKernel(
    "double_it",
    """
extern "C" void double_it(void* const* p, const int64_t* s, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    static_cast<float*>(p[1])[i] = 2 * static_cast<const float*>(p[0])[i];
}
""",
)


def doubling(spec: TensorSpec) -> Any:
    """Twice its input, where that lies if the call owns it."""
    steps = (
        Allocate("o", dataclasses.replace(spec, offset=0), None, over="x"),
        LaunchCpp("double_it", ("x", "o"), (), 4096, 1 << 20),
    )
    plan = Plan("doubling", "cpu", (PlanInput("x", spec),), (), (), (DOUBLE,), steps, (), ("o",))
    return load(plan).run


def test_a_result_takes_the_memory_of_an_input_that_is_given_away() -> None:
    run = doubling(row(4096))
    for _ in range(2):  # (the second is a result of the executor's)
        x = torch.randn(4096)
        inputs, place, expected = [x], x.data_ptr(), 2 * x
        del x
        (out,) = run.run_consuming(inputs)
        assert out.data_ptr() == place
        close(out, expected)
        inputs = [out]
        del out
        (out,) = run.run_consuming(inputs)
        assert out.data_ptr() == place and out.untyped_storage().nbytes() == 4 * 4096
        close(out, 2 * expected)


def _a_numpy_array() -> tuple[torch.Tensor, Any]:
    array = torch.randn(4096).numpy().copy()
    return torch.from_numpy(array), lambda: torch.from_numpy(array.copy())


def _held() -> tuple[torch.Tensor, Any]:
    x = torch.randn(4096)
    return x, lambda: x.clone()


def _a_view_held() -> tuple[torch.Tensor, Any]:
    x = torch.randn(4096)
    view = x.detach()
    return x, lambda: view.clone()


def _its_storage_held() -> tuple[torch.Tensor, Any]:
    x = torch.randn(4096)
    storage = x.untyped_storage()
    return x, lambda: torch.empty(0).set_(storage).clone()


def _a_part() -> tuple[torch.Tensor, Any]:
    x = torch.randn(8192)[:4096]
    return x, lambda: None


@pytest.mark.parametrize(
    "make", [_a_numpy_array, _held, _a_view_held, _its_storage_held, _a_part],
    ids=lambda make: make.__name__[1:],
)  # fmt: skip
def test_memory_that_others_see_is_left_alone(make: Any) -> None:
    run = doubling(row(4096))
    x, look = make()
    inputs, place, before = [x], x.data_ptr(), x.clone()
    del x
    (out,) = run.run_consuming(inputs)
    assert out.data_ptr() != place
    close(out, 2 * before)
    seen = look()
    assert seen is None or torch.equal(seen, before)


def test_a_call_that_owns_nothing_leaves_its_inputs() -> None:
    run, x = doubling(row(4096)), torch.randn(4096)
    before = x.clone()
    (out,) = run(x)
    close(out, 2 * before)
    assert torch.equal(x, before)


def test_who_watches_a_call_is_told_where_outputs_get_their_memory() -> None:
    """Of a call's result and of a view's base, and of no intermediate value."""
    four = TensorSpec((4,), (1,), torch.float32, CPU)
    two = TensorSpec((2,), (1,), torch.float32, CPU)
    plan = Plan(
        "watched", "cpu", (PlanInput("x", four),), (), (), (),
        (
            CallAten("aten::neg", (Ref("x"),), (), ("t",)),
            CallAten("aten::abs", (Ref("t"),), (), ("o",)),
            Allocate("b", four, None),
            CallAten("aten::exp.out", (Ref("t"),), (("out", Ref("b")),)),
            View("v", "b", two),
        ),
        (), ("o", "v", "x"),
    )  # fmt: skip
    run, x = load(plan).run, torch.randn(4)
    for positions, steps in (((0,), 1), ((1,), 1), ((0, 1, 2), 2), ((2,), 0), ((), 0)):
        told: list[bool] = []
        o, v, same = run.run_watched((x,), positions, told.append)
        assert told == [True, False] * steps
        assert torch.equal(o, x.abs()) and torch.equal(v, (-x).exp()[:2]) and same is x

    def refuses(begins: bool) -> None:
        raise KeyError(begins)

    with pytest.raises(KeyError, match="True"):
        run.run_watched((x,), (0,), refuses)
    with pytest.raises(IndexError, match="output 3 of 3"):
        run.run_watched((x,), (3,), refuses)
