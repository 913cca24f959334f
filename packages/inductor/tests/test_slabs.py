"""Slabs that are cut in several, each held for its own time."""

from __future__ import annotations

import random
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from dovetail_inductor.emit_plan import emit_plan
from dovetail_inductor.lowering.lower import lower
from dovetail_inductor.options import Gpu, InductorOptions
from dovetail_inductor.scheduler.fuse import fuse
from dovetail_inductor.scheduler.memory import plan_memory
from dovetail_inductor.scheduler.slabs import (
    MOST_SLABS,
    WORTH_BYTES,
    Slab,
    Tenant,
    cut_slabs,
    pack,
)
from dovetail_inductor.targets import CUDA
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import FreeSlab, Plan
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

GPU = torch.device("cuda", 0)
KIB = 1 << 10


def peak(slabs: list[Slab], outside: list[int]) -> int:
    there = list(outside)
    for step in range(len(there)):
        there[step] += sum(s.nbytes for s in slabs if s.first <= step <= s.last)
    return max(there)


def check_slabs(slabs: list[Slab], tenants: list[Tenant]) -> None:
    """All lie in one slab, while it is held, and no two in the same place at the same time."""
    assert sorted(n for s in slabs for n in s.offsets) == sorted(t.name for t in tenants)
    by_name = {t.name: t for t in tenants}
    for slab in slabs:
        there = [(by_name[name], offset) for name, offset in slab.offsets.items()]
        assert slab.first == min(t.first for t, _ in there)
        assert slab.last == max(t.last for t, _ in there)
        for one, at in there:
            assert at % 64 == 0 and at + one.nbytes <= slab.nbytes
            for other, place in there:
                apart = at + one.nbytes <= place or place + other.nbytes <= at
                never = one.last < other.first or other.last < one.first
                assert one is other or apart or never, (one, other)


def test_cut_slabs_hold_what_one_does_and_never_take_more() -> None:
    cut = 0
    for seed in range(200):
        rng = random.Random(seed)
        steps = rng.randrange(2, 40)
        tenants = []
        for i in range(rng.randrange(1, 30)):
            first = rng.randrange(steps)
            last = min(steps - 1, first + rng.choice((0, 1, 1, 2, 5, steps)))
            tenants.append(Tenant(f"b{i}", rng.randrange(0, 400) * KIB + i, first, last))
        outside = [rng.randrange(0, 800) * KIB for _ in range(steps)]
        one = pack(tenants, GPU)
        check_slabs([one], tenants)
        found = cut_slabs(one, tenants, outside)
        check_slabs(found, tenants)
        assert len(found) <= MOST_SLABS
        if len(found) > 1:
            cut += 1
            assert peak(found, outside) <= peak([one], outside) - WORTH_BYTES, seed
    assert cut > 50


def test_a_slab_is_cut_where_memory_outside_is_at_its_peak() -> None:
    # Large ones early, a small one beside a large result at the end; the early ones take the
    # small one's place while it is not there.
    early = [Tenant(f"e{i}", 256 * KIB, i, i + 1) for i in range(6)]
    late = Tenant("late", 64 * KIB, 6, 7)
    tenants = [*early, late]
    one = pack(tenants, GPU)
    found = cut_slabs(one, tenants, [0] * 7 + [250 * KIB])
    assert peak([one], [0] * 7 + [250 * KIB]) == 762 * KIB
    assert len(found) == 2 and peak(found, [0] * 7 + [250 * KIB]) <= 576 * KIB


def test_a_slab_is_cut_for_what_is_there_after_a_peak_too() -> None:
    tenants = [Tenant("across", 64 * KIB, 0, 3), Tenant("after", 512 * KIB, 2, 3)]
    outside = [0, 900 * KIB, 0, 0]
    found = cut_slabs(pack(tenants, GPU), tenants, outside)
    assert [s.first for s in found] == [0, 2] and peak(found, outside) == 964 * KIB


def test_a_slab_is_cut_behind_the_last_of_equal_peaks() -> None:
    """As the blocks of a network have: a cut behind the first alone gains nothing."""
    tenants = [Tenant("across", 1 * KIB, 0, 7), Tenant("after", 64 * KIB, 6, 7)]
    outside = [0, 900 * KIB, 0, 900 * KIB, 0, 900 * KIB, 0, 0]
    found = cut_slabs(pack(tenants, GPU), tenants, outside)
    assert [s.first for s in found] == [0, 6] and peak(found, outside) == 901 * KIB


def test_a_cut_that_gains_little_is_not_made() -> None:
    tenants = [Tenant("early", 64 * KIB, 0, 1), Tenant("late", 48 * KIB, 2, 3)]
    outside = [0, 0, 0, 500 * KIB]
    assert len(cut_slabs(pack(tenants, GPU), tenants, outside)) == 1
    large = [0, 0, 0, 4 << 30]
    tenants = [replace(t, nbytes=t.nbytes * 4) for t in tenants]
    assert len(cut_slabs(pack(tenants, GPU), tenants, large)) == 1
    many = tenants
    assert len(cut_slabs(pack(many, GPU), many, outside)) == 2


def planned(fn: Any, *inputs: Tensor) -> Plan:
    """The plan of `fn` for a GPU, as a plan for a CPU."""
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    options = InductorOptions(triton=True, gpu=Gpu())
    graph = fuse(lower(gm, CUDA), options)
    graph = replace(graph, buffers={n: replace(b, device=GPU) for n, b in graph.buffers.items()})
    return _on_cpu(emit_plan(graph, plan_memory(graph), options, "graph"))


def _on_cpu(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_on_cpu, value))
    if value == GPU:
        return torch.device("cpu")
    if isinstance(value, str):
        return "cpu" if value == str(GPU) else value
    if is_dataclass(value):
        return type(value)(**{f.name: _on_cpu(getattr(value, f.name)) for f in fields(value)})
    return value


def head(x: Tensor, up: Tensor, down: Tensor, vocabulary: Tensor) -> Tensor:
    """A block, and a large result of a small one of its."""
    x = x + torch.relu(x @ up) @ down
    return (x.sum(0, keepdim=True) * 0.1) @ vocabulary


def test_a_plan_gives_a_slab_back_before_a_large_result_is_made() -> None:
    r = torch.randn
    inputs = (r(16, 16), r(16, 1024) / 4, r(1024, 16) / 32, r(16, 12288) / 4)
    plan = planned(head, *inputs)
    (given_back,) = [i for i, s in enumerate(plan.steps) if isinstance(s, FreeSlab)]
    assert len(plan.slab_bytes) == 2 and given_back < len(plan.steps) - 2
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    torch.testing.assert_close(got, head(*inputs), rtol=1e-4, atol=1e-4)
