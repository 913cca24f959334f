"""The order of steps by memory, and the count of live bytes that decides it."""

from __future__ import annotations

from dataclasses import replace

import torch
from dovetail_inductor.lowering.lower import lower
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.pipeline import PassLog, compile_graph
from dovetail_inductor.scheduler.fuse import fuse
from dovetail_inductor.scheduler.lifetimes import live_bytes
from dovetail_inductor.scheduler.order import order
from dovetail_inductor.scheduler.round_at_peak import round_at_peak
from dovetail_inductor.targets import CUDA
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor

MIB = 1 << 20


def kernels_of(fn, *inputs):
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return fuse(lower(gm), InductorOptions())


def late(x, w):
    wide = w @ w
    small = (w @ x).sin()
    for _ in range(2):
        small = ((torch.outer(small, small) @ w) @ small).sin()
    return (wide @ small).sum()


def test_a_large_result_that_is_needed_late_is_made_late(check):
    x, w = torch.randn(512), torch.randn(512, 512)
    graph = kernels_of(late, x, w)
    before, after = live_bytes(graph), live_bytes(order(graph))
    assert before.bytes > 3 * MIB - MIB // 2  # wide, and the two of a product
    assert after.bytes < before.bytes - MIB // 2
    check(late, x, w, rtol=1e-2, atol=1e-1)


def test_steps_stay_where_they_are_when_nothing_is_gained():
    graph = kernels_of(
        lambda x, w: ((x @ w).relu() @ w).sum(), torch.randn(9, 512), torch.randn(512, 512)
    )
    assert order(graph) is graph


def shortcut(x, w, narrow):
    """A step of a residual network, whose shortcut is computed last."""
    x = (x @ w).sin()
    y = ((x[:, :256] @ narrow) @ narrow.t()).sin()
    y = torch.outer(y[:, 0], y[0]) @ y.t()
    return (y.sum(1) * (x @ narrow).sum(1)).sum()


def test_what_frees_memory_comes_before_the_peak(check):
    inputs = torch.randn(512, 512), torch.randn(512, 256), torch.randn(256, 16)
    graph = kernels_of(shortcut, *inputs)
    found = order(graph)
    before, after = live_bytes(graph), live_bytes(found)
    assert after.bytes < before.bytes - MIB // 4, (before.as_text(), after.as_text())
    assert sorted(map(id, found.steps)) == sorted(map(id, graph.steps))
    check(shortcut, *inputs, rtol=1e-2, atol=1e-1)


def test_draws_of_random_numbers_keep_their_order():
    def fn(x, w):
        wide = torch.rand_like(w) @ w
        small = torch.rand_like(x)
        for _ in range(2):
            small = ((torch.outer(small, x) @ w) @ small).sin()
        return (wide @ small).sum()

    graph = kernels_of(fn, torch.randn(512), torch.randn(512, 512))
    draws = [s for s in graph.steps if getattr(s, "op", "").startswith("aten::rand")]
    moved = [s for s in order(graph).steps if s in draws]
    assert len(draws) == 2 and moved == draws


def test_live_bytes_are_counted_from_first_write_to_last_use():
    graph = kernels_of(
        lambda x, w: ((x @ w) @ w).sin() @ w, torch.randn(512, 512), torch.randn(512, 512)
    )
    live = live_bytes(graph)
    assert live.bytes == 2 * MIB and set(live.at) <= {MIB, 2 * MIB}
    assert len(live.alive) == 2
    owned = live_bytes(graph, frozenset({graph.inputs[0]}))
    assert owned.at[0] == 2 * MIB and owned.at[-1] == live.at[-1]
    assert live.as_text().startswith("peak 2.00 MiB at step")
    assert live_bytes(replace(graph, steps=())).bytes == 0


def test_an_input_that_the_call_owns_counts_when_steps_are_ordered():
    def fn(x, w, saved):
        wide = w @ w
        small = (saved @ x).sin()
        return (wide @ (small + (wide @ small).cos())).sum()

    texts = {}
    gm = trace_aten(fn, torch.randn(512), torch.randn(512, 512), torch.randn(512, 512))
    for owned in (False, True):
        list(gm.graph.nodes)[2].meta["owned"] = owned
        log = PassLog(dump=lambda name, text, owned=owned: texts.__setitem__((name, owned), text))
        compile_graph(gm, log=log)
    # wide waits until the saved tensor is gone
    assert texts["order", False] != texts["order", True]
    assert texts["order", True].index("aten::mv") < texts["order", True].index("aten::mm")
    assert texts["live_bytes", True].startswith("peak ")


def steep(x, w):
    """Functions that are dear enough to be kept, of a half type, read by neighbours."""
    wide = x[:, :, None] - w
    for _ in range(12):
        wide = wide * (wide + 1.5).sigmoid()
    return (wide[..., 1:] * wide[..., :-1]).sum(-1)


def test_what_is_most_of_the_peak_is_rounded_as_in_eager():
    inputs = torch.randn(16, 128).bfloat16(), torch.randn(16).bfloat16()
    gm = trace_aten(steep, *inputs, decompositions=core_aten_table())
    texts = {}
    log = PassLog(dump=texts.__setitem__)
    plan = compile_graph(gm, options=InductorOptions(triton=True), log=log)
    assert "0.06 MiB [16, 128, 16]" in texts["live_bytes"]
    (got,) = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    exact = steep(*(i.double() for i in inputs))
    assert (got - exact).abs().max() <= 1.1 * (steep(*inputs) - exact).abs().max()
    # Beside what is larger it stays as it is.
    large = torch.randn(512, 512).bfloat16()
    gm = trace_aten(
        lambda x, w, m: (steep(x, w), (m.sin() @ m.t()).sum()),
        *inputs, large, decompositions=core_aten_table(),
    )  # fmt: skip
    assert "0.12 MiB [16, 128, 16]" in live_bytes_of_all(gm)


def live_bytes_of_all(gm):
    graph = fuse(lower(gm, CUDA), InductorOptions(triton=True))
    options = InductorOptions(triton=True)
    graph = round_at_peak(order(graph), frozenset(), options)
    return "\n".join(f"{b.nbytes / MIB:.2f} MiB {list(b.shape)}" for b in graph.buffers.values())
