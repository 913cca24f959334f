"""Arguments that do not fit are refused as eager refuses them, before anything is written."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fuzz_arguments import KINDS, as_text, is_accepted, names, sweep
from torch import Tensor

import dovetail

Call = Callable[..., Any]


def zeros(*sizes: int) -> Tensor:
    return torch.zeros(sizes, dtype=torch.int64)


# A function, arguments that fit (two of them, so that sizes become symbols), and others.
GUARDED: dict[str, tuple[Call, list[tuple[Tensor, ...]], list[tuple[Tensor, ...]]]] = {
    "scatter": (
        lambda x, i: torch.scatter(x, 0, i, 7.0),
        [(torch.zeros(6, 4), zeros(2, 4)), (torch.zeros(7, 5), zeros(3, 5))],
        [(torch.zeros(6, 4), zeros(2, 4000)), (torch.zeros(8, 4), zeros(2, 5))],
    ),
    "scatter_add": (
        lambda x, i, s: torch.scatter_add(x, 0, i, s),
        [
            (torch.zeros(6, 4), zeros(2, 4), torch.ones(2, 4)),
            (torch.zeros(7, 5), zeros(3, 5), torch.ones(4, 5)),
        ],
        [(torch.zeros(6, 4), zeros(200, 4), torch.ones(2, 4))],
    ),
    "index_reduce": (
        lambda x, i, s: x.index_reduce(0, i, s, "amax"),
        [
            (torch.ones(6, 4), zeros(2), torch.ones(2, 4)),
            (torch.ones(7, 5), zeros(3), torch.ones(3, 5)),
        ],
        [
            (torch.ones(6, 4), zeros(2), torch.ones(2, 4000)),
            (torch.ones(6, 4), zeros(3), torch.ones(2, 4)),
        ],
    ),
    "cross": (
        lambda a, b: torch.cross(a, b, dim=-1),
        [(torch.ones(2, 3), torch.ones(2, 3)), (torch.ones(4, 3), torch.ones(4, 3))],
        [(torch.ones(2, 4), torch.ones(2, 4)), (torch.ones(2, 2), torch.ones(2, 2))],
    ),
    "reflection": (
        lambda x: F.pad(x, (3, 3), mode="reflect") * 1,
        [(torch.ones(1, 1, 6),), (torch.ones(1, 1, 7),)],
        [(torch.ones(1, 1, n),) for n in (3, 2, 1)],
    ),
    "matmul": (
        lambda a, b: a @ b,
        [
            (torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
            (torch.ones(3, 4, 5), torch.ones(3, 5, 6)),
        ],
        [
            (torch.ones(2, 3, 4), torch.ones(2, 1, 5)),
            (torch.ones(2, 3, 4), torch.ones(2, 3, 5)),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", GUARDED)
def test_sizes_that_guards_must_refuse(name: str, dynamic: bool | None) -> None:
    function, fitting, others = GUARDED[name]
    compiled = dovetail.compile(function, dynamic=dynamic, backend="aot_eager")
    for given in fitting:
        torch.testing.assert_close(compiled(*given), function(*given))
    for given in others:
        with pytest.raises(RuntimeError) as expected:
            function(*given)
        with pytest.raises(RuntimeError) as found:
            compiled(*given)
        assert found.type is expected.type
    torch.testing.assert_close(compiled(*fitting[0]), function(*fitting[0]))


def test_labels_without_rows_for_them() -> None:
    """The usual way to one-hot vectors."""

    def one_hot(y: Tensor) -> Tensor:
        return torch.zeros(3, 4).scatter_(1, y[:, None], 1.0)

    compiled = dovetail.compile(one_hot)
    y = torch.arange(6) % 4
    assert torch.equal(compiled(y[:3]), one_hot(y[:3]))
    for call in (one_hot, compiled):
        with pytest.raises(RuntimeError, match="Expected index"):
            call(y)


def test_what_is_refused_is_not_written() -> None:
    def write(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
        return x.scatter_add_(0, i, s)

    x = torch.zeros(3, 4)
    with pytest.raises(RuntimeError, match="Expected index"):
        dovetail.compile(write)(x, zeros(3, 5), torch.ones(3, 5))
    assert not x.any()


SLICES: dict[str, Call] = {
    "select": lambda x, i, s, dim: x.index_select(dim, i),
    "add": lambda x, i, s, dim: x.index_add(dim, i, s),
    "add twice": lambda x, i, s, dim: x.index_add(dim, i, s, alpha=2),
    "add in place": lambda x, i, s, dim: x.index_add_(dim, i, s),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", SLICES)
def test_slices_out_of_bounds_by_the_dimension(name: str, dynamic: bool) -> None:
    call = dovetail.compile(SLICES[name], backend="aot_eager", dynamic=dynamic)
    for dim, place, dtype in itertools.product(range(3), (-1, 7), (torch.int32, torch.int64)):
        x, i = torch.ones(2, 3, 4), torch.tensor([0, place], dtype=dtype)
        source = torch.ones(*(2 if d == dim else n for d, n in enumerate(x.shape)))
        with pytest.raises(Exception) as eager:
            SLICES[name](x.clone(), i, source, dim)
        with pytest.raises(eager.type) as error:
            call(x, i, source, dim)
        assert error.type is eager.type
        assert bool((x == 1).all())


ALONG: dict[str, Call] = {
    "gather": lambda x, i, s, dim: x.gather(dim, i),
    "scatter": lambda x, i, s, dim: x.scatter(dim, i, s),
    "scatter a number": lambda x, i, s, dim: x.scatter_(dim, i, 7.0),
    "scatter_add": lambda x, i, s, dim: x.scatter_add_(dim, i, s),
    "scatter_reduce": lambda x, i, s, dim: x.scatter_reduce(dim, i, s, "amax"),
    "index_reduce": lambda x, i, s, dim: x.index_reduce_(dim, i, s, "prod"),
}


@pytest.mark.parametrize("name", ALONG)
def test_numbers_as_tensors_and_indices(name: str) -> None:
    shapes = [((), 0, (1,)), ((), 0, ()), ((3,), 0, ())]
    if name == "index_reduce":
        shapes.append(((2, 3), 1, ()))
    calls = {shape: dovetail.compile(ALONG[name], dynamic=False) for shape in shapes}
    for shape, dim, index in shapes:
        x, size = torch.full(shape, 2.0), (*shape, 1)[dim]
        source = torch.full((2, 1) if len(shape) == 2 else index, 3.0)
        for place in (size - 1, -1, size):
            i = torch.full(index, place)
            kept, written = x.clone(), x.clone()
            try:
                eager = ALONG[name](written, i, source, dim)
            except Exception as refused:
                with pytest.raises(type(refused)) as error:
                    calls[shape, dim, index](kept, i, source, dim)
                assert error.type is type(refused)
                assert torch.equal(kept, x)
            else:
                assert torch.equal(calls[shape, dim, index](kept, i, source, dim), eager)
                assert torch.equal(kept, written)


@pytest.mark.parametrize("count", [2, 4])
def test_values_of_other_number_than_a_mask_holds(count: int) -> None:
    def add(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        return x.index_put_((mask,), values, accumulate=True)

    x, mask = torch.zeros(2, 3), torch.tensor([[True, False, True], [False, False, True]])
    compiled = dovetail.compile(add)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        compiled(x, mask, torch.ones(count))
    assert not x.any()
    assert torch.equal(compiled(x, mask, torch.ones(3)), mask.float())


def test_an_error_of_a_kernel_tells_index_size_and_line() -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        scaled = x * 2
        return F.cross_entropy(scaled, y)  # TARGETS

    compiled = dovetail.compile(loss)
    with pytest.raises(IndexError, match=r"index 5 is out of bounds .* with size 3") as error:
        compiled(torch.ones(2, 3), torch.tensor([0, 5]))
    text = str(error.value)
    line = next(
        i for i, x in enumerate(linecache.getlines(__file__), 1) if x.endswith("# TARGETS\n")
    )
    assert f'File "{__file__}", line {line}, in loss' in text


def test_an_error_of_a_call_tells_the_line() -> None:
    def factor(x: Tensor) -> Tensor:
        doubled = x * 2
        return torch.linalg.cholesky(doubled)  # FACTOR

    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite") as error:
        dovetail.compile(factor)(-torch.eye(3))
    lines = linecache.getlines(__file__)
    line = next(i for i, x in enumerate(lines, 1) if x.endswith("# FACTOR\n"))
    assert f'File "{__file__}", line {line}, in factor' in str(error.value)


def differences(ops: list[str], seed: int, calls: int, stage: str, kinds: tuple[str, ...]) -> str:
    rows = sweep(ops, seed, calls, stage, kinds)
    return "\n".join(as_text(row) for row in rows if not row["same"] and not is_accepted(row))


INDEXED = [
    "gather", "scatter", "scatter_add", "scatter_reduce.amax", "index_select", "index_copy", "put",
    "index_add",
    "take", "nn.functional.embedding", "nn.functional.nll_loss", "index_reduce.prod",
]  # fmt: skip


def test_a_few_calls_of_operators_that_take_indices() -> None:
    assert differences(INDEXED, 5, 6, "graphs", KINDS) == ""


def test_indices_that_kernels_refuse() -> None:
    assert differences(INDEXED[:6], 5, 2, "kernels", ("index",)) == ""


@pytest.mark.slow
def test_arguments_of_all_operators() -> None:
    seed = int(torch.randint(10**6, ()))
    print(f"seed {seed}")
    assert differences(names(), seed, 30, "graphs", KINDS) == ""


_FOUND_BY_CHANCE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "integers in max_pool1d": (lambda x: F.max_pool1d(x, 2), (torch.arange(8).view(1, 2, 4),)),
    "places of an empty image": (lambda x: F.pixel_unshuffle(x, 2), (torch.ones(1, 1, 1, 0),)),
    "bags of float indices": (
        lambda w, i: F.embedding_bag(i, w),
        (torch.ones(5, 3), torch.tensor([[0.0, 1.0]])),
    ),
    "labels below the end": (
        F.multilabel_margin_loss,
        (torch.ones(4), torch.tensor([0, -9, 1, 2])),
    ),
    "labels after the end": (
        F.multilabel_margin_loss,
        (torch.ones(4), torch.tensor([0, -1, 1, -5])),
    ),
    "pivots of another rank": (
        lambda a, p: torch.lu_unpack(a, p)[0],
        (torch.eye(3).expand(2, 3, 3), torch.ones(2, 3, 1, dtype=torch.int32)),
    ),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", _FOUND_BY_CHANCE)
def test_what_the_fuzzer_found(name: str, dynamic: bool | None) -> None:
    function, arguments = _FOUND_BY_CHANCE[name]
    with pytest.raises(Exception) as expected:
        function(*arguments)
    with pytest.raises(expected.type):
        dovetail.compile(function, dynamic=dynamic)(*arguments)
