"""What users say about functions and the compiler: marks and stances, ours and torch.compiler's."""

from __future__ import annotations

import binascii
import zlib
from typing import Any

import dovetail_capture as dc
import pytest
import torch
from construct_cases import CountingBackend
from dovetail_capture import stance
from dovetail_capture.errors import GraphBreakError, RecompileError


def _targets(backend: CountingBackend) -> list[Any]:
    return [n.target for gm in backend.graphs for n in gm.graph.nodes if n.op == "call_function"]


@dc.disable
def ours(t):
    return t * 2 if not dc.is_compiling() else t


@torch.compiler.disable(reason="by the test")
def theirs(t):
    return t * 2


@dc.disable(recursive=False)
def shallow(t):
    return helper(t) + 1


def helper(t):
    return t * 5


@pytest.mark.parametrize("function", [ours, theirs])
def test_disabled_functions_run_in_python(function):
    backend = CountingBackend()
    run = dc.optimize(lambda t: function(t + 1) - 3, backend)
    assert torch.equal(run(torch.ones(2)), torch.ones(2))
    assert len(backend.graphs) == 2
    (break_,) = run.capture_context.log.breaks
    assert "disabled" in break_.reason
    with pytest.raises(GraphBreakError):
        dc.optimize(lambda t: function(t + 1), CountingBackend(), fullgraph=True)(torch.ones(2))


def test_the_reason_is_told():
    run = dc.optimize(lambda t: theirs(t + 1), CountingBackend())
    run(torch.ones(2))
    assert "by the test" in run.capture_context.log.breaks[0].reason


def test_disable_of_one_frame_captures_what_it_calls():
    backend = CountingBackend()
    run = dc.optimize(lambda t: shallow(t + 1), backend)
    assert torch.equal(run(torch.ones(2)), torch.full((2,), 11.0))
    assert len(backend.graphs) == 2  # `t + 1` and `helper`


def test_a_disabled_module():
    class Inner(torch.nn.Module):
        def forward(self, t):
            return t * 2

    model = torch.nn.Sequential(dc.disable(Inner()), torch.nn.ReLU())
    assert torch.equal(dc.optimize(model, CountingBackend())(torch.ones(2)), torch.full((2,), 2.0))


def test_assumed_constant():
    calls = []

    @dc.assume_constant_result
    def setting():
        calls.append(1)
        return 3

    run = dc.optimize(lambda t: t * setting(), CountingBackend(), fullgraph=True)
    assert torch.equal(run(torch.ones(2)), torch.full((2,), 3.0))
    count = len(calls)
    run(torch.ones(2))
    assert len(calls) == count >= 1

    @torch.compiler.assume_constant_result
    def other():
        return len(calls)

    assert (
        dc.optimize(lambda t: t * other(), CountingBackend(), fullgraph=True)(torch.ones(1))
        == count
    )


def test_substitute():
    def crc(data, crc, /):
        return 7

    with pytest.raises(TypeError, match="signature"):
        dc.substitute_in_graph(zlib.adler32)(lambda: 1)
    dc.substitute_in_graph(binascii.crc_hqx)(crc)
    run = dc.optimize(lambda t: t * binascii.crc_hqx(b"abc", 0), CountingBackend(), fullgraph=True)
    assert torch.equal(run(torch.ones(2)), torch.full((2,), 7.0))
    assert binascii.crc_hqx(b"abc", 0) == 40406
    with pytest.raises(ValueError, match="already"):
        dc.substitute_in_graph(binascii.crc_hqx)(crc)


def test_allowed_in_graph():
    @dc.allow_in_graph
    def whole(t):
        return t * 3

    backend = CountingBackend()
    assert torch.equal(
        dc.optimize(lambda t: whole(t) + 1, backend)(torch.ones(1)), torch.ones(1) * 4
    )
    assert whole in _targets(backend)
    with pytest.raises(TypeError):
        dc.allow_in_graph(3)


def test_graph_break_and_is_compiling():
    def program(t):
        t = t + 1
        dc.graph_break("as asked")
        return t * (2 if dc.is_compiling() else 3) * (2 if torch.compiler.is_compiling() else 3)

    backend = CountingBackend()
    run = dc.optimize(program, backend)
    assert torch.equal(run(torch.ones(1)), torch.ones(1) * 8) and len(backend.graphs) == 2
    assert "as asked" in run.capture_context.log.breaks[0].reason
    assert not dc.is_compiling()


def test_reset():
    backend = CountingBackend()
    run = dc.optimize(lambda t: t + 1, backend)
    run(torch.ones(1))
    dc.reset()
    run(torch.ones(1))
    assert len(backend.graphs) == 2


# --- stances -------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _default_stance():
    yield
    dc.set_stance("default")


def test_force_eager():
    backend = CountingBackend()
    run = dc.optimize(lambda t: t + (2 if dc.is_compiling() else 1), backend)
    with dc.set_stance("force_eager"):
        assert run(torch.ones(1)) == 2 and not backend.graphs
    run(torch.ones(1))
    assert len(backend.graphs) == 1

    @dc.set_stance("force_eager")
    def eagerly():
        return run(torch.ones(1, dtype=torch.float64))

    eagerly()
    assert len(backend.graphs) == 1
    dc.set_stance("force_eager")
    run(torch.ones(3))
    assert len(backend.graphs) == 1


def test_eager_on_recompile():
    backend = CountingBackend()
    run = dc.optimize(lambda t: t + 1, backend)
    run(torch.ones(1))
    with dc.set_stance("eager_on_recompile"):
        assert torch.equal(run(torch.ones(2, dtype=torch.float64)), torch.full((2,), 2.0).double())
    assert len(backend.graphs) == 1
    run(torch.ones(2, dtype=torch.float64))
    assert len(backend.graphs) == 2


def test_fail_on_recompile():
    run = dc.optimize(lambda t: t + 1, CountingBackend())
    run(torch.ones(1))
    with dc.set_stance("fail_on_recompile"):
        run(torch.ones(1))
        with pytest.raises(RecompileError, match="dtype"):
            run(torch.ones(1, dtype=torch.float64))
    run(torch.ones(1, dtype=torch.float64))


def test_bad_stances():
    with pytest.raises(ValueError, match="unknown stance"):
        dc.set_stance("eager")

    def program(t):
        dc.set_stance("force_eager")
        return t

    with pytest.raises(RuntimeError, match="inside a compiled function"):
        dc.optimize(program, CountingBackend())(torch.ones(1))


def test_error_on_graph_break():
    def program(t):
        t = t + 1
        print("here")
        return t * 2

    run = dc.optimize(program, CountingBackend())
    with dc.error_on_graph_break(True):
        with pytest.raises(GraphBreakError, match="print"):
            run(torch.ones(1))
    run(torch.ones(1))

    def inside(t):
        with dc.error_on_graph_break(True):
            print("here")
        return t

    with pytest.raises(GraphBreakError, match="print"):
        dc.optimize(inside, CountingBackend())(torch.ones(1))

    def outside(t):
        with dc.error_on_graph_break(True):
            t = t + 1
        print("after it")
        return t * 2

    backend = CountingBackend()
    assert dc.optimize(outside, backend)(torch.ones(1)) == 4 and len(backend.graphs) == 2


def _breaks_twice(t):
    t = t + 1
    with dc.error_on_graph_break(False):
        dc.graph_break()
        t = t + 2
        dc.graph_break()
    return t + 4


def _allowed_within(t):
    def inner(t):
        with dc.error_on_graph_break(False):
            dc.graph_break()
            with ALLOWED:
                t = t * 2
                dc.graph_break()
        return t + 1

    with ALLOWED:
        return inner(t + 1) + inner(t)


@dc.error_on_graph_break(False)
def _allowed_as_a_whole(t):
    t = t + 2
    dc.graph_break()
    return t + 4


def _breaks_behind(t):
    with dc.error_on_graph_break(False):
        t = t + 1
        dc.graph_break()
    dc.graph_break()
    return t


ALLOWED = dc.error_on_graph_break(False)


@pytest.mark.parametrize("outside", [None, False, True])
@pytest.mark.parametrize(
    ("program", "graphs"), [(_breaks_twice, 3), (_allowed_within, None), (_allowed_as_a_whole, 2)]
)
def test_breaks_in_blocks_that_allow_them(program, graphs, outside):
    backend = CountingBackend()
    run = dc.optimize(program, backend)
    if outside is not None:
        run = dc.error_on_graph_break(outside)(run)
    x = torch.ones(2)
    for _ in range(2):
        assert torch.equal(run(x), program(x))
    assert graphs is None or len(backend.graphs) == graphs
    assert stance._State.error_on_graph_break is None and not ALLOWED.before


def test_breaks_behind_a_block_that_allows_them():
    x = torch.ones(2)
    run = dc.optimize(_breaks_behind, CountingBackend())
    assert torch.equal(run(x), x + 1)
    dc.reset()
    with pytest.raises(GraphBreakError, match=r"graph_break\(\) was called"):
        with dc.error_on_graph_break(True):
            run(x)
    assert stance._State.error_on_graph_break is None


def test_layers_do_not_use_up_the_limit():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, t):
            return torch.relu(self.inner(t))

    layers = torch.nn.ModuleList([Layer() for _ in range(12)])

    def program(t):
        for layer in layers:
            print("layer")
            t = layer(t)
        return t

    run = dc.optimize(program, CountingBackend())
    with torch.no_grad():
        expected = program(torch.ones(2))
        for _ in range(2):
            assert torch.equal(run(torch.ones(2)), expected)
    assert not [e for e in run.capture_context.log.events if e.kind == "limit"]


def test_functions_made_anew_by_each_call_do_not_recompile():
    def caller(t, k):
        return run(t, lambda u: u * k)

    backend = CountingBackend()
    run = dc.optimize(lambda t, f: f(t) + 1, backend)
    for _ in range(3):
        assert caller(torch.ones(1), 2) == 3
    assert len(backend.graphs) == 1
    assert caller(torch.ones(1), 5) == 6  # what the function closes over is guarded
    assert run(torch.ones(1), lambda u: u * 7) == 8


def mask_unless_compiled(t):
    return None if torch.compiler.is_compiling() else t > 0


def test_what_raises_because_it_is_compiled_is_told_that_it_is_not():
    def fn(t):
        return t * mask_unless_compiled(t).shape[0]

    backend = CountingBackend()
    t = torch.randn(3)
    assert torch.equal(dc.optimize(fn, backend, fullgraph=True)(t), fn(t))
    assert len(backend.graphs) == 1


def test_a_break_behind_what_raises_because_it_is_compiled():
    def fn(t):
        u = t * mask_unless_compiled(t).shape[0]
        dc.graph_break()
        return u + (1 if torch.compiler.is_compiling() else 2)

    t = torch.randn(3)
    assert torch.equal(dc.optimize(fn, CountingBackend())(t), t * 3 + 1)


def test_a_break_in_what_cleans_up_after_what_raises_because_it_is_compiled():
    def fn(t):
        dc.graph_break()
        try:
            return t * mask_unless_compiled(t).shape[0]
        finally:
            dc.graph_break()

    t = torch.randn(3)
    assert torch.equal(dc.optimize(fn, CountingBackend())(t), fn(t))


def test_what_raises_compiled_or_not_raises():
    def fn(t, n):
        scale = 2 if torch.compiler.is_compiling() else 3
        if n < 0:
            raise ValueError(f"{n} is negative")
        return t * scale

    compiled, t = dc.optimize(fn, CountingBackend()), torch.randn(3)
    with pytest.raises(ValueError, match="-1 is negative"):
        compiled(t, -1)
    assert torch.equal(compiled(t, 1), t * 2)
