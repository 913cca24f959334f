"""Some random programs of tensor arithmetic (`random_graphs.py` runs many)."""

from __future__ import annotations

import warnings

import pytest
from random_graphs import (
    EDGES,
    KERNELS,
    MODELS,
    Difference,
    check,
    make_inputs,
    needed,
    random_program,
)
from triton_backend import TritonBackend, builder_for_hopper


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("seed", [6000, 6003, 6007])
def test_as_eager(seed: int, dynamic: bool | None) -> None:
    program = random_program(seed)
    assert program is not None
    print(program.inputs, program.source())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "ok" in check(program, dynamic=dynamic)


@pytest.mark.parametrize(("seed", "dynamic"), [(101, None), (103, True), (108, None), (111, None)])
def test_gpu_kernels_as_eager(seed: int, dynamic: bool | None) -> None:
    """In Triton's interpreter."""
    program = random_program(seed, KERNELS)
    assert program is not None
    print(program.inputs, program.source())
    backend = TritonBackend()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "ok" in check(program, backend, dynamic)
    assert any(plan.kernels for plan in backend.plans)


@pytest.mark.parametrize("dynamic", [None, True])
def test_models_as_eager(dynamic: bool | None) -> None:
    """Lines of all kinds, on a CPU and as a GPU's kernels that say what type each value has."""
    program = random_program(9500002, MODELS)
    assert program is not None
    print(program.inputs, program.source())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "ok" in check(program, dynamic=dynamic)
        assert "ok" in check(program, TritonBackend(builder_for_hopper()), dynamic)


def _edges_as_eager(seed: int, dynamic: bool | None) -> None:
    program = random_program(seed, EDGES)
    if program is None:
        return
    print(f"seed {seed}", program.inputs, program.calls, program.source())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "ok" in check(program, dynamic=dynamic)


@pytest.mark.parametrize(
    ("seed", "dynamic"), [*((n, None) for n in range(8)), (8, True), (9, True)]
)
def test_edges_as_eager(seed: int, dynamic: bool | None) -> None:
    """Sizes around a vector's, pieces of one element (`random_graphs.py 0 400 --edges`)."""
    _edges_as_eager(seed, dynamic)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("first", range(0, 400, 50))
def test_many_edges_as_eager(first: int, dynamic: bool | None) -> None:
    for seed in range(first, first + 50):
        _edges_as_eager(seed, dynamic)


def test_eager_accepts_what_the_tables_hold() -> None:
    """A row that eager never accepts would test nothing, as sorts with a wrong keyword did."""
    programs = [random_program(seed, MODELS) for seed in range(9500000, 9500060)]
    made = [line.text for program in programs if program is not None for line in program.lines]
    for name in ("sort(", "argmax", "pool", "cross_entropy", "index_put", "conv", "attention"):
        assert any(name in text for text in made), name


def test_a_difference_is_seen() -> None:
    """The check fails where what is compiled is not what eager runs."""
    program = random_program(6000)
    assert program is not None

    def spoilt(gm: object, examples: object) -> object:
        return lambda *inputs: [t + 1 for t in gm(*inputs)]  # type: ignore[operator]

    with pytest.raises(Difference):
        check(program, backend=spoilt)  # type: ignore[arg-type]


def test_what_no_output_needs_is_cut() -> None:
    program = random_program(6000)
    assert program is not None
    less = needed(program)
    assert len(less.lines) <= len(program.lines)
    assert less.function()(*make_inputs(less, less.calls[0]))
