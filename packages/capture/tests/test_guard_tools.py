"""What users have to look at guards and to say which are kept: explain_guards, recompiles,
guard_filter_fn; and the stance that looks at sizes before it compiles."""

from __future__ import annotations

import copy

import dovetail_capture as dc
import pytest
import torch

SCALE = 2


class Config:
    def __init__(self):
        self.depth = 3


CONFIG = Config()


def program(x, k=1):
    return x * SCALE * CONFIG.depth + k


def graphs(compiled):
    return compiled.capture_context.log.graph_count


def test_guards_are_explained_frame_by_frame():
    compiled = dc.optimize(program, dc.run_graph)
    assert dc.explain_guards(compiled) == ""
    compiled(torch.ones(2))
    text = dc.explain_guards(compiled)
    assert "program (" in text and "version 0" in text
    assert "x is a torch.Tensor: float32, cpu, sizes (2)" in text
    assert "SCALE == 2" in text and "CONFIG.depth == 3" in text
    compiled(torch.ones(2).double())
    assert "version 1" in dc.explain_guards(compiled)
    with pytest.raises(TypeError, match="not what optimize gives"):
        dc.explain_guards(program)


def test_guards_after_a_break_are_explained():
    def broken(x):
        y = x + 1
        print("", end="")
        return y * CONFIG.depth

    compiled = dc.optimize(broken, dc.run_graph)
    compiled(torch.ones(2))
    assert "after a graph break" in dc.explain_guards(compiled)


def test_recompiles_tell_the_clause_and_what_to_do():
    compiled = dc.optimize(program, dc.run_graph, dynamic=False)
    compiled(torch.ones(2))
    assert dc.recompiles(compiled) == ()
    compiled(torch.ones(3))
    first = dc.recompiles(compiled)[0]
    assert "x.size(0) is 3 instead of 2" in first and "mark_dynamic(x, 0)" in first


def test_the_recompile_limit_is_told():
    compiled = dc.optimize(program, dc.run_graph, dynamic=False, recompile_limit=2)
    compiled(torch.ones(2))
    compiled(torch.ones(3))
    with pytest.warns(RuntimeWarning, match="recompile limit"):
        compiled(torch.ones(4))
    assert "limit" in dc.recompiles(compiled)[-1]


def drop_globals(entries):
    return [not entry.is_global for entry in entries]


def test_a_filter_drops_what_it_is_told_to():
    shown = []

    def keep(entries):
        shown.extend(entries)
        return drop_globals(entries)

    compiled = dc.optimize(program, dc.run_graph, guard_filter_fn=keep)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 7.0))
    CONFIG.depth = 5
    try:
        # What is not guarded may change unnoticed: this is what the user asked for.
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 7.0))
        assert torch.equal(compiled(torch.ones(2), 2), torch.full((2,), 12.0))
    finally:
        CONFIG.depth = 3
    tensor = next(e for e in shown if e.guard_type == "TENSOR_MATCH")
    assert tensor.name == "x" and tensor.has_value and tensor.value.shape == (2,)
    assert not tensor.is_global
    depth = next(e for e in shown if e.name == "CONFIG.depth" and e.value == 3)
    assert depth.is_global and depth.guard_type == "EQUALS_MATCH"
    grad = next(e for e in shown if e.guard_type == "GRAD_MODE")
    assert grad.name == "" and not grad.has_value


def test_a_filter_sees_globals_of_other_modules():
    shown = []

    def keep(entries):
        shown.extend(entries)
        return [True] * len(entries)

    dc.optimize(lambda x: torch.nn.functional.relu(x), dc.run_graph, guard_filter_fn=keep)(
        torch.ones(2)
    )
    assert any(e.is_global for e in shown)


def test_torch_compilers_own_filters_work():
    keep = torch.compiler.skip_guard_on_globals_unsafe
    compiled = dc.optimize(program, dc.run_graph, guard_filter_fn=keep)
    compiled(torch.ones(2))
    assert "globals." not in dc.explain_guards(compiled)
    keep = torch.compiler.keep_tensor_guards_unsafe
    compiled = dc.optimize(program, dc.run_graph, guard_filter_fn=keep)
    compiled(torch.ones(2))
    assert "guards (1)" in dc.explain_guards(compiled)


class Scaled(torch.nn.Module):
    """A module of the program's around one of torch's."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self.factor = 3

    def forward(self, x):
        return self.inner(x) * self.factor


@pytest.mark.parametrize("own", [False, True], ids=["torch's own", "all"])
def test_torch_compilers_filters_drop_guards_on_modules(own):
    filters = torch.compiler
    name = (
        "skip_guard_on_all_nn_modules_unsafe" if own else "skip_guard_on_inbuilt_nn_modules_unsafe"
    )
    module = Scaled()
    compiled = dc.optimize(module, dc.run_graph, guard_filter_fn=getattr(filters, name))
    x = torch.ones(1, 2)
    assert torch.equal(compiled(x), module(x))
    told = dc.explain_guards(compiled)
    assert "self.inner" not in told
    assert ("self.factor" in told) is not own
    module.factor = 5
    stale = module(x) * (3 / 5)
    assert torch.allclose(compiled(x), stale if own else module(x))
    assert torch.allclose(compiled(torch.ones(3, 2)), module(torch.ones(3, 2)))


def test_a_filter_answers_for_each_guard():
    compiled = dc.optimize(program, dc.run_graph, guard_filter_fn=lambda entries: [True])
    with pytest.raises(dc.CaptureError, match="gave 1 answers for the"):
        compiled(torch.ones(2))


def test_a_copied_module_keeps_the_filter():
    module = torch.nn.Linear(2, 2)
    compiled = dc.optimize(module, dc.run_graph, guard_filter_fn=drop_globals)
    twin = copy.deepcopy(compiled)
    assert twin.capture_context.region.guard_filter_fn is drop_globals


def test_eager_first_then_compiled_for_the_sizes_that_differ():
    compiled = dc.optimize(program, dc.run_graph)
    with dc.set_stance("eager_then_compile"):
        assert torch.equal(compiled(torch.ones(4)), program(torch.ones(4)))
        assert graphs(compiled) == 0
        for size in (5, 6, 7):
            assert torch.equal(compiled(torch.ones(size)), program(torch.ones(size)))
        assert graphs(compiled) == 1
    assert torch.equal(compiled(torch.ones(9)), program(torch.ones(9)))
    assert graphs(compiled) == 1


def test_eager_first_then_compiled_for_the_same_sizes():
    compiled = dc.optimize(program, dc.run_graph)
    with dc.set_stance("eager_then_compile"):
        for _ in range(3):
            assert torch.equal(compiled(torch.ones(4)), program(torch.ones(4)))
    assert graphs(compiled) == 1
    assert "sizes (4)" in dc.explain_guards(compiled)
