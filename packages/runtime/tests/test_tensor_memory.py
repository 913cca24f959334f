"""Large tensors that plans make outside of their slabs: kept memory, never shared by two."""

from __future__ import annotations

import threading
from collections.abc import Iterator

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
    TensorSpec,
    View,
    load,
    release_idle_memory,
)
from dovetail_runtime.native import executor_module
from step_times import step_times

CPU = torch.device("cpu")
ROWS, COLUMNS = 1024, 513  # some huge pages, and a few small ones

COPY = CppKernel(
    "copy_rows",
    f"""
extern "C" void copy_rows(void* const* p, const int64_t*, int64_t begin, int64_t end) {{
  for (int64_t i = begin * {COLUMNS}; i < end * {COLUMNS}; ++i)
    static_cast<float*>(p[1])[i] = static_cast<const float*>(p[0])[i];
}}
""",
)


@pytest.fixture(autouse=True)
def _nothing_idle() -> Iterator[None]:
    release_idle_memory()
    yield
    release_idle_memory()


def copy_plan(rows: int = ROWS) -> Plan:
    spec = TensorSpec((rows, COLUMNS), (COLUMNS, 1), torch.float32, CPU)
    return Plan(
        "copy",
        "cpu",
        inputs=(PlanInput("x", spec),),
        symbols=(),
        constants=(),
        kernels=(COPY,),
        steps=(Allocate("y", spec, None), LaunchCpp("copy_rows", ("x", "y"), (), rows, 1)),
        slab_bytes=(),
        outputs=("y",),
    )


def test_the_memory_of_a_dead_result_is_used_again() -> None:
    run = load(copy_plan()).run
    x = torch.randn(ROWS, COLUMNS)
    (first,) = run(x)
    place = first.data_ptr()
    assert executor_module().idle_slab_bytes() == 0
    del first
    kept = executor_module().idle_slab_bytes()
    assert kept >= x.nbytes
    (second,) = run(x)
    assert second.data_ptr() == place
    assert executor_module().idle_slab_bytes() < kept
    assert torch.equal(second, x)


def test_results_alive_together_share_nothing() -> None:
    run = load(copy_plan()).run
    inputs = [torch.randn(ROWS, COLUMNS) for _ in range(6)]
    results = [run(x)[0] for x in inputs]
    del results[::2], inputs[::2]
    inputs += [torch.randn(ROWS, COLUMNS) for _ in range(4)]
    results += [run(x)[0] for x in inputs[3:]]
    assert all(torch.equal(a, b) for a, b in zip(results, inputs, strict=True))


def test_no_more_is_kept_than_was_in_use_at_one_time() -> None:
    small, large = load(copy_plan(ROWS)).run, load(copy_plan(4 * ROWS)).run
    for _ in range(3):
        small(torch.randn(ROWS, COLUMNS))
        large(torch.randn(4 * ROWS, COLUMNS))
        assert executor_module().idle_slab_bytes() <= 4 * (4 * ROWS * COLUMNS) + 4096


def test_a_result_can_be_resized_viewed_and_outlive_the_plan() -> None:
    x = torch.randn(ROWS, COLUMNS)
    (y,) = load(copy_plan()).run(x)
    part = y[3:5]
    y.resize_(2 * ROWS, COLUMNS)
    assert torch.equal(y[:ROWS], x)
    y.fill_(7.0)
    assert torch.equal(part, torch.full((2, COLUMNS), 7.0))
    z = y.clone()
    del y, part
    release_idle_memory()
    assert bool((z == 7.0).all())


def test_results_die_in_other_threads() -> None:
    run = load(copy_plan()).run
    wrong: list[str] = []

    def work(seed: int) -> None:
        x = torch.full((ROWS, COLUMNS), float(seed))
        for _ in range(20):
            (y,) = run(x)
            if not torch.equal(y, x):
                wrong.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_absurd_size_is_an_error_and_leaves_the_pool_usable() -> None:
    spec = TensorSpec((1 << 50,), (1,), torch.float32, CPU)
    huge = Plan("huge", "cpu", (), (), (), (), (Allocate("y", spec, None),), (), ("y",))
    with pytest.raises((MemoryError, RuntimeError)):
        load(huge).run()
    x = torch.randn(ROWS, COLUMNS)
    assert torch.equal(load(copy_plan()).run(x)[0], x)


def test_step_times_runs_every_step_on_real_data() -> None:
    spec = TensorSpec((ROWS, COLUMNS), (COLUMNS, 1), torch.float32, CPU)
    turned = TensorSpec((COLUMNS, ROWS), (1, COLUMNS), torch.float32, CPU)
    plan = copy_plan()
    steps = (
        *plan.steps,
        View("t", "y", turned),
        CallAten("aten::neg", (Ref("t"),), outputs=("z",)),
    )
    plan = Plan("steps", "cpu", plan.inputs, (), (), plan.kernels, steps, (), ("z",))
    found = step_times(plan, [torch.randn(ROWS, COLUMNS)], repeats=2)
    assert [t.name for t in found] == ["copy_rows", "aten::neg"]
    assert all(t.seconds > 0 for t in found)
    assert found[1].shapes == ((COLUMNS, ROWS), (COLUMNS, ROWS))
    assert found[0].nbytes == 2 * 4 * ROWS * COLUMNS
    assert spec.shape == found[0].shapes[0]
