"""Constructs: NumPy arrays and functions as torch code.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations


import pytest
import torch

np = pytest.importorskip("numpy")
from construct_cases import Case, Table, run_case

construct = Table()


def arrays():
    return np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(6).reshape(2, 3)


def one_array():
    return (np.arange(6, dtype=np.float64).reshape(2, 3) / 4,)


@construct(graphs=1, breaks=0)
def arrays_like_tensors(x):
    made = np.ones_like(x), np.zeros_like(x.T), np.full_like(x.long(), 3)
    summed = torch.from_numpy(np.zeros_like(x)) + x
    return made, np.ones_like(x, dtype=np.int32), np.empty_like(x).shape, summed


@construct(make=arrays)
def arithmetic(a, b):
    return (
        a + b, a - 1, 2 * a, b / 2, b // 2, b % 4, a**2, -a, +b, ~b, b & 1, b | 2, b ^ 3, a @ a.T, 1 / (a + 1),
        a + np.float32(2), b + True, b * 1.5, b - b, a + 1e-3,
    )  # fmt: skip


@construct(make=arrays)
def arrays_that_are_filled_later(a, b):
    made, whole, like = np.empty((2, 3)), np.empty(3, dtype=np.int64), np.empty_like(a)
    made[...] = np.sin(np.arange(3))
    whole[0], whole[1:] = 1, 2
    like[...] = a
    return made, whole, like, np.empty((0, 2)).shape, np.empty(2).dtype


@construct(make=arrays)
def comparisons(a, b):
    return (
        a > 2,
        b == 3,
        a <= b,
        b != 1,
        (a > 1) & (b < 4),
        np.logical_not(a > 1),
        3 < b,
        np.isnan(a),
    )


@construct(make=arrays)
def reductions(a, b):
    return (
        a.sum(), b.sum(axis=0), a.mean(axis=1, keepdims=True), b.mean(), a.max(), b.min(axis=-1), a.std(),
        a.var(axis=0, ddof=1), b.prod(), a.argmax(), b.argmin(axis=1), (a > 2).all(), (b > 2).any(axis=0),
        np.sum(a, axis=(0, 1)), np.cumsum(b), np.cumsum(a, axis=1), np.max(b), np.mean(b, 0),
    )  # fmt: skip


@construct(make=arrays)
def shapes(a, b):
    return (
        a.T, a.reshape(3, 2), a.reshape((6,)), a.reshape(-1), b.ravel(), b.flatten(), a[None].squeeze(),
        np.expand_dims(a, 0), np.concatenate([a, b]), np.stack((a, a), axis=1), np.vstack([a, a]),
        np.hstack([b, b]), a.swapaxes(0, 1), np.moveaxis(a, 0, 1), np.transpose(b), b.transpose(1, 0),
        np.tile(a, 2), np.flip(a).copy(), np.roll(b, 1), np.broadcast_to(a[0], (2, 3)).copy(), np.tril(a), b.copy(),
    )  # fmt: skip


@construct(make=arrays)
def about_arrays(a, b):
    return (
        a + 1, a.shape, a.ndim, b.dtype, a.size, len(a), isinstance(a, np.ndarray), type(b) is np.ndarray,
        a.dtype == np.float32, a.astype(np.int64), b.astype("float32"), a.astype(float),
    )  # fmt: skip


@construct(make=arrays)
def indexing(a, b):
    i = np.array([1, 0])
    total = 0
    for row in a:
        total = total + row
    return (
        a[0],
        a[0, 1],
        a[:, 1:],
        b[..., 0],
        a[i],
        a[i, i],
        a[:, ::2],
        total,
        [r.sum() for r in b],
        b[None, 0],
    )


@construct(make=one_array)
def parts_of_real_numbers(a):
    return a.real is a, a.real + 1, a.imag, np.real(a), np.imag(a), a.sum().real


@construct(graphs=1, breaks=0)
def parts_of_complex_numbers(x):
    a = torch.complex(x, x + 1).numpy()
    made = a.copy()
    made.real[0] = 9
    made.imag[:, 1:] *= 2
    return a.real, a.imag + 1, np.real(a), np.imag(a)[1:], made.real, made.imag, made.real.dtype


@construct(make=one_array)
def shifted_spectra(a):
    return (
        np.fft.fftshift(a), np.fft.fftshift(a, axes=1), np.fft.ifftshift(a, (0, 1)), np.fft.ifftshift(a[0]),
    )  # fmt: skip


@construct(make=one_array)
def pointwise_functions(a):
    n = np
    return (
        n.exp(a), n.log(a + 1), n.sqrt(a), n.sin(a), n.cos(a), n.tanh(a), n.abs(-a), n.square(a), n.floor(a),
        n.ceil(a), n.rint(a), n.sign(a - 0.5), n.maximum(a, 0.5), n.minimum(a, a * 2), n.clip(a, 0.2, 1),
        a.clip(0, 1), n.where(a > 0.5, a, 0.0), n.power(a, 2), n.hypot(a, a), n.log1p(a), n.isfinite(a),
    )  # fmt: skip


@construct(make=arrays)
def linear_algebra(a, b):
    return (
        np.dot(a, a.T), np.matmul(b, b.T), np.einsum("ij,kj->ik", a, a), np.outer(a[0], a[1]), a[0].dot(a[1]),
        np.linalg.norm(a), np.linalg.norm(a, axis=1), np.trace(b), a[0] @ a[1],
    )  # fmt: skip


@construct()
def made_in_the_function(x):
    a = np.zeros((2, 3)) + np.ones((2, 3), dtype=np.float32)
    c = np.arange(3) * np.array([1, 2, 3]) + np.full(3, 2)
    return (
        x + torch.from_numpy(a),
        c,
        np.linspace(0, 1, 5),
        np.eye(2),
        np.asarray([1.5, 2]),
        np.zeros_like(c),
    )


@construct()
def from_tensor_and_back(x):
    a = x.numpy()
    b = np.square(a) * 2
    y = torch.from_numpy(b) + 1
    return y, b, torch.tensor(a) * 2, torch.as_tensor(b) - 1, np.asarray(x) + 1


@construct()
def shared_memory(x):
    y = x * 2
    a = y.numpy()
    a += 1
    a[0] = 7
    b = a[1]
    b *= 3
    a[:, 0] = np.array([5.0, 6.0])
    return y, a, b


@construct(graphs=None, breaks=None, make=arrays)
def writes_to_an_argument(a, b):
    c = a * 2
    row = a.T[0]
    row += 1
    a[0] = 9
    a += 1
    return c + a


@construct(graphs=2, breaks=1, make=arrays)
def break_between(a, b):
    c = a * 2
    print("between", c.shape)
    return c + b


@construct(graphs=None, breaks=None, make=arrays)
def not_mapped(a, b):
    c = a + 1
    d = np.percentile(c, 50)
    e = np.unique(b)
    return d + c, e, c.tolist(), float(c.sum()), b[b > 2]


@construct(graphs=None, breaks=None, make=arrays)
def branching_on_data(a, b):
    return a + 1 if a.sum() > 3 else a - 1


@construct(
    graphs=None, breaks=None, make=lambda: (np.array(["a"]), np.arange(4)[::-1], np.arange(3.0))
)
def odd_arrays(names, reverse, plain):
    plain.setflags(write=False)
    return names[0], reverse + 1, plain * 2


@construct(make=lambda: (np.float32(2.5), np.int64(3)))
def scalars_as_arguments(s, n):
    return torch.ones(2) * float(s), s + n, np.sqrt(s)


@construct(make=arrays)
def errors_of_shapes(a, b):
    try:
        a @ b
    except ValueError as error:
        return a + 1, type(error).__name__


def odd_numbers():
    floats = np.array([0.0, -0.0, 1.0, -2.0, 3.5, np.nan, np.inf, -np.inf])
    return floats, np.array([1, -2, 3]), np.array([1, 200, 255], np.uint8)


@construct(make=odd_numbers)
def numbers_that_torch_takes_otherwise(a, i, u):
    return np.sign(a), a % 2.5, a % -1, 2.0 % a, i // 2, i % 3, i**2, u == 255, i[u - u]


@construct(breaks=None, graphs=None, make=odd_numbers)
def numbers_that_torch_does_not_take(a, i, u):
    with np.errstate(all="ignore"):
        whole = i // np.array([0, 1, 2]), i % (i - 1), u > -1, 2 ** (i * i)
    try:
        2**i
    except ValueError as error:
        return whole, error
    return whole


@construct(breaks=None, graphs=None, make=odd_numbers)
def made_of_arrays(a, i, u):
    return np.array([i, i]), np.full((2,), i[0]), np.linspace(i[0], i[2], 3), np.arange(i[2])


@construct(breaks=None, graphs=None, make=odd_numbers)
def dtypes_without_kernels(a, i, u):
    b, c, w = a > 1, a * 1j, i.astype(np.uint32)
    return abs(b), np.argmax(b), abs(c), c * c == c, w < w, w.max(), np.sort(w)


@construct()
def tensors_of_scalars(x):
    """They have the dtype of NumPy's scalars, not that of Python's numbers."""
    wide, short, half = np.float64(1.5), np.int32(2), np.float16(0.5)
    return (
        torch.tensor(wide), torch.tensor(short), torch.tensor([half, half]), torch.tensor((short, 1)),
        torch.tensor([[wide, 1]]), torch.tensor([short, True]), torch.tensor(np.bool_(True)),
        torch.tensor(np.complex128(1j)), torch.tensor(wide, dtype=torch.float16),
        torch.as_tensor(wide), torch.as_tensor([short]), torch.asarray(half), x.new_tensor(wide),
        x * wide, torch.full((2,), wide), torch.tensor([1, np.float32(2)]), x + torch.tensor(wide),
    )  # fmt: skip


@construct(breaks=None, graphs=None, make=lambda: (np.arange(9.0).reshape(3, 3),))
def tensors_of_results(a):
    found = np.trace(a), a.sum()
    return torch.tensor(found[0]), torch.tensor(found[1]), torch.tensor([found[1], 1.0])


@construct(breaks=None, graphs=None, make=lambda: (np.ones(1), np.zeros(1, np.int64)))
def an_index_that_ones_do_not_fit(a, i):
    try:
        return a[i]
    except IndexError:
        return "none"


@construct(make=lambda: (torch.arange(6.0),))
def scalars_of_arrays_that_are_written_to(x):
    """A scalar is a copy: what two places swap, say."""
    a = (x * 1).numpy()
    first = a[0]
    a[0] = a[1]
    a[1] = first
    a[2], a[3] = a[3], a[2]
    last, *_ = a[4:]
    rows = [v for v in a]
    a[4:] = 0
    return torch.from_numpy(a), first * 2, last + 1, rows[5] - 1


@construct(make=lambda: (torch.arange(12.0),))
def reversed_parts(x):
    a = (x * 2).numpy().reshape(3, 4)
    return (
        a[::-1].copy(), a[::-2, 1:] + 1, a[..., ::-1].sum(0), a[2:0:-1, None, 3::-2] * 1, a[:0:-1, 1].copy(),
        a[5:-9:-1].mean(), a[0:2:-1].shape, a[np.array([0, 1]), ::-1] * 1, np.flip(a, 1) + a,
    )  # fmt: skip


def _as_array(x):
    return (x * 1).numpy().reshape(2, 3)


def _written(view):
    """A program that writes to a view, and one that writes to what the view shows."""

    def to_the_view(x):
        a = _as_array(x)
        b = view(a)
        b[...] = 9
        return torch.from_numpy(a)

    def to_the_array(x):
        a = _as_array(x)
        b = view(a)
        a[...] = 9
        return torch.from_numpy(b.copy())

    return to_the_view, to_the_array


@pytest.mark.parametrize(
    "view",
    [
        np.flip, np.fliplr, np.flipud, np.rot90, lambda a: a[::-1], lambda a: a[:, ::-1],
        lambda a: a.astype(np.float32, copy=False), lambda a: np.array(a, ndmin=3, copy=None),
    ],
)  # fmt: skip
def test_a_write_to_a_view(view) -> None:
    """Such views torch cannot make; NumPy makes them where somebody writes."""
    from construct_cases import CountingBackend
    from dovetail_capture import optimize

    x = torch.arange(6.0)
    for program in _written(view):
        assert torch.equal(optimize(program, CountingBackend())(x), program(x))
    given, array = optimize(view, CountingBackend()), x.numpy().copy().reshape(2, 3)
    given(array)[...] = 7
    assert (array == 7).all()


def test_a_write_to_what_a_diagonal_shows() -> None:
    from construct_cases import CountingBackend
    from dovetail_capture import optimize

    program = _written(np.diag)[1]
    x = torch.arange(6.0)
    assert torch.equal(optimize(program, CountingBackend())(x), program(x))


BELOW, DIAGONAL = np.tril_indices(3, -1), np.arange(3, dtype=np.int32)
CHOSEN = np.array([True, False, True])


@construct(make=lambda: (torch.arange(9.0).reshape(3, 3),))
def arrays_that_index_a_tensor(x):
    y = torch.zeros(3, 3)
    y[BELOW[0], BELOW[1]] = x[0]
    y[DIAGONAL, DIAGONAL] = 1.0
    y[CHOSEN] = 5.0
    return (
        y,
        x[DIAGONAL],
        x[:, DIAGONAL[::-1].copy()],
        x[DIAGONAL[None], BELOW[0]],
        x[-DIAGONAL, 1:],
    )


@construct(breaks=None, graphs=None, make=lambda: (torch.arange(6.0),))
def arrays_made_of_tensors(x):
    first, second = x[2] * 3, x[3] + 1
    pair = np.array([first, second])
    return (
        pair,
        np.full((2,), x[1]),
        np.linspace(x[0], x[4], 3),
        np.asarray((x[5], 1.0)),
        np.arange(x[3]),
    )


@construct(make=lambda: (torch.arange(6.0),))
def options_and_questions(x):
    a = (x * 1.37).numpy()
    s = a.sum()
    return (
        np.array(a, ndmin=2, copy=None) + 0, np.asarray(a, dtype=np.float64), np.array(a, dtype=np.int64),
        np.asarray(s), np.array(s, ndmin=1), np.iscomplexobj(a), np.shape(a), np.size(a), np.ndim(a),
        x * np.arange(4)[2].item(),
    )  # fmt: skip


@construct(make=lambda: (np.array([-1.0, 0, 0.5, 1, 1, 2.9, 3, 4, np.nan]),))
def interpolation(a):
    inf = float("inf")
    return (
        np.interp(a, [0, 1, 3], [1, 2, 5]), np.interp(a, np.arange(3), a[:3], left=-1, right=9),
        np.interp(a, [1.0], [4.0]), np.interp(a, [0.0, 1, 1, 3], [1, 2, 3, 5]),
        np.interp(a, [0, 1, 3], [inf, 1, inf]), np.interp(a, [-inf, 1, 3], [0, 1, 2]),
        np.interp(0.3, a[1:4], a[:3]), np.interp([0.1, 7], a[1:4], [1, 2, 3]),
    )  # fmt: skip


@construct(make=lambda: (np.arange(3), np.arange(3, dtype=np.float32)))
def arrays_beside_lists(a, b):
    return (
        np.concatenate([a, [1, 2]]), np.concatenate(([0.5], b, a), 0), np.stack([b, [1, 2, 3]]),
        np.vstack([a, [1, 2, 3.0]]), np.hstack([b, 5]), np.column_stack([a, (1, 2, 3)]),
    )  # fmt: skip


@construct(make=arrays)
def functions_of_sequences(a, b):
    return (
        np.mean((a[0], a[1])), np.max((b[0, 0], b[1, 1], 3)), np.argmax([a[0], b[1]]), np.sum([b[0], [1, 2, 3]], 0),
        np.where((True, False, True), a, 0), np.where(a > 2, (1, 2, 3), b), np.maximum((b[0], b[1]), a),
        np.dot(a, (1, 2, 3)), np.exp([a[0], a[1]]), np.add(b, (0.5, 1, 2)), np.roll([b[0], b[1]], 1),
        np.less([1, 2, 3], a), np.tile((a[0, 0], 2), 2),
    )  # fmt: skip


def cubes():
    return np.arange(4.0).reshape(2, 2) + 1, np.arange(8.0).reshape(2, 2, 2)


@construct(make=cubes)
def functions_with_further_arguments(a, b):
    return (
        np.dot(a, b), np.dot(b, a), np.dot(a[0], b), np.dot(b, b), np.trace(a, 1),
        np.trace(b, 0, 1, 2), np.diff(b, 2), np.diff(a, 1, 0), np.nan_to_num(a, True, 0.5),
        np.sum(a, 0, np.float32), np.cumsum(a, dtype=np.int64), np.expand_dims(a, (0, 2)),
        np.vstack((a, a), dtype=np.float32), np.moveaxis(b, (0, 1), (1, 0)),
        np.concatenate((a, b[0]), axis=None), np.split(b, [1], 2), np.broadcast_to(a[0], (3, 2)),
        np.squeeze(b[None, :, :1], (0, 2)), np.roll(b, 1, (0, 1)),
    )  # fmt: skip


def two_tensors():
    return torch.arange(6.0).reshape(2, 3) + 0.5, torch.arange(6).reshape(2, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@construct(make=two_tensors)
def functions_of_tensors(x, i):
    return (
        np.floor(x), np.sqrt(i), np.add(x, i), np.maximum(x, 3), x + np.square(x), np.stack([x, x * 2]), np.dot(x, x.T),
        np.concatenate((x, x.numpy())), np.where(x > 2, x, 0), np.isnan(x), np.transpose(x), np.argmax(x, 1),
        np.reshape(x, (3, 2)), np.clip(x, 1, 3), np.cumsum(x, 0), np.diff(i), np.mean((x[0], x[1])), np.multiply(2, i),
        np.greater(x, i),
    )  # fmt: skip


@construct(make=two_tensors)
def what_numpy_and_torch_refuse(x, i):
    found = []
    for function in (np.sum, np.mean, np.std, np.max, np.all):
        try:
            found.append(function(x))
        except TypeError as error:
            found.append(str(error))
    return found, x + 1


def test_a_tensor_that_needs_a_gradient_has_no_array() -> None:
    from construct_cases import CountingBackend
    from dovetail_capture import optimize

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="requires grad"):
        optimize(lambda x: np.sin(x * 2), CountingBackend())(x)


def test_the_base_of_a_result_is_an_array() -> None:
    from construct_cases import CountingBackend
    from dovetail_capture import optimize

    found = optimize(lambda a: a[1:] + 1, CountingBackend())(np.arange(3.0))
    assert found.base is None or isinstance(found.base, np.ndarray)


def test_a_write_beside_arrays() -> None:
    """What a graph writes to is its own, or the frame runs plainly."""
    from construct_cases import CountingBackend
    from dovetail_capture import optimize

    def own(a, b):
        c = a + b
        c -= b
        return c

    def given(x, a):
        x.add_(1)
        return x, a + 1

    a, b = np.arange(3.0), np.ones(3)
    assert np.array_equal(optimize(own, CountingBackend())(a, b), a)
    for shared in (False, True):
        x = torch.zeros(3, dtype=torch.float64)
        array = x.numpy() if shared else np.zeros(3)
        found = optimize(given, CountingBackend())(x, array)
        assert found[0] is x and np.array_equal(found[1], array + 1)
        assert np.array_equal(array, np.full(3, float(shared)))


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)


def test_another_shape_or_dtype_is_another_graph() -> None:
    from construct_cases import CountingBackend
    from dovetail_capture import optimize

    backend = CountingBackend()
    captured = optimize(lambda a: a * 2, backend, fullgraph=True)
    for array in (
        np.ones(3),
        np.ones(4),
        np.ones(3, np.float32),
        np.ones((3, 2))[:, 0],
        np.ones(3),
    ):
        found = captured(array)
        assert found.dtype == array.dtype and np.array_equal(found, array * 2)
    assert len(backend.graphs) == 4


def test_functions_of_numpy_run_plainly() -> None:
    from construct_cases import CountingBackend
    from dovetail_capture import optimize, recompiles

    def sums_of_shuffled(x, lengths):
        for length in lengths:
            # compiled code, which calls functions of NumPy's that are written in Python
            x = x + float(np.random.permutation(np.arange(length)).sum())
        return x

    captured = optimize(sums_of_shuffled, CountingBackend())
    for first in range(2, 6):
        lengths = (first, first + 4)
        x = torch.zeros(3)
        assert torch.equal(captured(x, lengths), sums_of_shuffled(x, lengths))
    assert not [why for why in recompiles(captured) if "multiarray" in str(why)]
