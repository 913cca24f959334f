"""Random sequences of views and in-place writes through the whole pipeline (autograd_aot's own
tests run many more, without capture and kernels)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from view_programs_compiled import Input, Program, Step, check_compiled, random_program
from view_programs_refused import check_refused, refused_program

import dovetail


@pytest.mark.parametrize("first", range(600_000, 600_200, 50))
def test_programs_that_eager_refuses(first: int) -> None:
    """They raise, and what was written before the step that is refused stays."""
    compared = 0
    for seed in range(first, first + 50):
        program = refused_program(seed)
        result = "no program" if program is None else check_refused(program, "aot_eager")
        assert not result.startswith("DIFFERENT"), f"seed {seed}: {result}\n{program}"
        compared += result == "ok"
    assert compared >= 5


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_a_refused_write_in_a_call_leaves_a_leaf_as_it_was(backend: str) -> None:
    """The call is a frame of its own, which writes to all the memory that the view lies in."""

    def helper(x: torch.Tensor) -> torch.Tensor:
        return x.fill_diagonal_(2)

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.view_as(x)
        helper(y)
        return y

    x = torch.randn(3, 4).requires_grad_()
    before = x.detach().clone()
    with pytest.raises(RuntimeError, match="view of a leaf"):
        dovetail.compile(fn, backend=backend)(x)
    assert torch.equal(x.detach(), before)


def _equal(first: int, backend: str, dynamic: bool | None = None, *, breaks: bool = False) -> int:
    """How many of ten seeds' programs eager accepts, and are equal; raises where one is not."""
    compared = 0
    for seed in range(first, first + 10):
        program = random_program(seed)
        if program is not None:
            print(f"seed {seed}: {program}")
            compared += check_compiled(program, backend, dynamic, breaks) == "ok"
    return compared


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("first", range(500_000, 500_040, 10))
def test_programs(first: int, backend: str) -> None:
    assert _equal(first, backend) >= 5


@pytest.mark.parametrize("seed", [26_022_632, 26_022_831])
def test_views_of_what_changed_its_shape_in_place_since(seed: int) -> None:
    program = random_program(seed)
    assert program is not None and check_compiled(program) == "ok"


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_the_library_copies_a_column_of_what_was_not_in_memory(backend: str) -> None:
    """Its result lies as that column does, which is not as it did when the graph was traced."""

    def fn(x: torch.Tensor) -> None:
        row = x.unbind(0)[1]
        for number, column in enumerate(x.t().unbind(0)):
            column.mul_(number + 2)
        torch._foreach_copy_([row], [row])

    x = torch.randn(4, 8, dtype=torch.float64)
    ours, theirs = x.clone()[:, ::2], x.clone()[:, ::2]
    dovetail.compile(fn, backend=backend)(ours)
    fn(theirs)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_a_complex_product_with_the_transpose_of_what_was_not_in_memory(backend: str) -> None:
    """Loops do not hold its elements: the library puts them into the order that was promised."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        z = torch.complex(x, x * 2)
        for number, column in enumerate(x.t().unbind(0)):
            column.mul_(number + 2)
        return x.t() * z

    x = torch.randn(4, 8, dtype=torch.float64)
    ours, theirs = x.clone()[:, ::2], x.clone()[:, ::2]
    result, expected = dovetail.compile(fn, backend=backend)(ours), fn(theirs)
    torch.testing.assert_close(result, expected)
    assert result.stride() == expected.stride()


@pytest.mark.parametrize("dynamic", [None, True])
def test_complex_parts_of_what_was_not_in_memory_lie_as_eagers(dynamic: bool | None) -> None:
    """With the gaps, and expanded dimensions, that their strides tell of."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.stack([x, x * 2], 1)
        return torch.view_as_complex(y[:, :1]), torch.view_as_complex(x[0] * 3).expand(2, -1)[
            :, ::2
        ]

    compiled = dovetail.compile(fn, dynamic=dynamic)
    for rows in (2, 5):
        x = torch.randn(rows, 3, 2)
        for ours, theirs in zip(compiled(x), fn(x), strict=True):
            assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()


def _expanded(x: torch.Tensor) -> torch.Tensor:
    return x.expand(3, 4)


def _windows(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(2).unfold(0, 3, 1)


@pytest.mark.parametrize("given", [_expanded, _windows])
def test_a_write_to_what_lies_on_itself_is_done_by_eager(
    given: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """The graph ends before the write, and eager does what it does, or refuses."""

    def zeroed(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        x.zero_()
        return y + x.cos()

    def added(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)

    ours, theirs = given(torch.ones(4)), given(torch.ones(4))
    torch.testing.assert_close(dovetail.compile(zeroed)(ours), zeroed(theirs))
    assert torch.equal(ours, theirs)
    if given is _windows:
        assert torch.equal(dovetail.compile(added)(ours), added(theirs))
    else:
        with pytest.raises(RuntimeError, match="single memory location"):
            dovetail.compile(added)(ours)
    (graph_break,) = dovetail.explain(zeroed)(given(torch.ones(4))).breaks
    assert "zero_" in str(graph_break)
    with pytest.raises(dovetail.CaptureError, match="single memory location"):
        dovetail.compile(zeroed, fullgraph=True)(given(torch.ones(4)))


def test_a_write_that_changes_a_view_among_the_inputs_is_done_by_eager() -> None:
    def fn(x: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
        y = x * 2
        x.mul_(y)
        return (x * view).sum()

    def gradient(call: Callable[..., torch.Tensor]) -> torch.Tensor:
        leaf = torch.arange(4.0, requires_grad=True)
        x = leaf * 1
        call(x, x[:]).backward()
        assert leaf.grad is not None
        return leaf.grad

    torch.testing.assert_close(gradient(dovetail.compile(fn)), gradient(fn))


def test_a_write_at_a_place_in_the_storage_has_eagers_gradient() -> None:
    def strided(x: torch.Tensor) -> torch.Tensor:
        x.as_strided((2,), (4,), 1).fill_(1.0)
        return x

    def tall(x: torch.Tensor) -> torch.Tensor:  # writes through as_strided, too
        return x.fill_diagonal_(1.0)

    def gradient(call: Callable[[torch.Tensor], torch.Tensor], start: int) -> torch.Tensor:
        leaf = torch.arange(12.0, requires_grad=True)
        x = (leaf * 1)[start : start + 6].view(2, 3).t()
        (call(x) * torch.arange(6.0).view(3, 2)).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    for fn in (strided, tall):
        for start in (0, 1):
            assert torch.equal(gradient(dovetail.compile(fn), start), gradient(fn, start))


def test_an_input_that_was_computed_where_it_lies_is_not_copied_there() -> None:
    """Its dimension of one element may have another stride there."""
    turned = Input((2, 1, 3), layout="transposed")
    steps = (Step("where", (1, 1)), Step("zero_", (1,)), Step("copy_data", (3, 2)))
    assert check_compiled(Program(10_102_942, (turned, turned), steps, ())) == "ok"


@pytest.mark.parametrize("first", [8_001_290, 8_010_880])
def test_programs_in_two_graphs(first: int) -> None:
    equal = [_equal(first, "aot_eager", dynamic, breaks=True) for dynamic in (None, True)]
    assert sum(equal) >= 10


def test_one_window_as_it_happens_lies_as_eagers() -> None:
    """Its number is a quotient of a size: that it is 1 bounds the size, and simplifies strides."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        windows = x.unfold(1, 3, 2)
        return torch.where(windows > windows, windows, windows)

    compiled = dovetail.compile(fn, dynamic=True)
    for rows in (3, 4, 6, 3):
        x = torch.randn(2, rows, 4)[:, :, ::2]
        result, expected = compiled(x), fn(x)
        assert torch.equal(result, expected) and result.stride() == expected.stride()


def test_a_dimension_in_two_lies_as_eagers() -> None:
    """That nothing is left over of its size makes the parts lie close to one another."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(0, (-1, 2)).clone()

    compiled = dovetail.compile(fn, dynamic=True)
    for columns in (4, 6):
        x = torch.randn(4, columns).t()
        result, expected = compiled(x), fn(x)
        assert torch.equal(result, expected) and result.stride() == expected.stride()


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_converted_operand_decides_where_a_result_lies(dynamic: bool | None) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y * y

    compiled = dovetail.compile(fn, dynamic=dynamic)
    for dtype in (torch.bool, torch.float32):
        x, y = torch.ones(1, 4, dtype=dtype).expand(3, 4), torch.randn(4, 3).t()
        for swapped in (False, True):
            given = (y, x) if swapped else (x, y)
            assert compiled(*given).stride() == fn(*given).stride()


UNTRACKED: list[Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]] = [
    lambda y, b: (b,), lambda y, b: (b, y), lambda y, b: (b, b[:1]), lambda y, b: (b, b.mT),
    lambda y, b: (y[:1], b, b * 2),
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("number", range(len(UNTRACKED)))
def test_views_of_a_result_made_under_no_grad(number: int, dynamic: bool | None) -> None:
    """Views of these with gradients have a `grad_fn`, and none ever gets a `grad`."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        with torch.no_grad():
            view = y.mT
        return UNTRACKED[number](y, view)

    found = []
    for call in (dovetail.compile(fn, dynamic=dynamic), fn):
        x = torch.arange(12.0).view(3, 4).requires_grad_()
        results = call(x)
        with torch.no_grad():
            seen = (*results, *(r.mT for r in results))
        sum((r * 3).sum() for r in seen).backward()
        views = (*seen, *(r.mT for r in seen))
        flags = [(r.requires_grad, r.is_leaf) for r in views]
        found.append((flags, [r.grad is None for r in seen if r.is_leaf], x.grad))
    assert found[0][:2] == found[1][:2]
    torch.testing.assert_close(found[0][2], found[1][2])


@pytest.mark.parametrize("seed", [11_016_393, 11_027_637, 11_046_395])
def test_programs_that_differed(seed: int) -> None:
    program = random_program(seed)
    assert program is not None
    assert check_compiled(program) == "ok"


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_an_input_that_starts_later_changes_its_shape_between_writes(
    backend: str, dynamic: bool | None
) -> None:
    """Where it begins in its memory is counted once."""

    def fn(x: torch.Tensor) -> None:
        x.mul_(2)
        x.as_strided_((2, 3), (3, 1))
        x.mul_(3)

    compiled = dovetail.compile(fn, dynamic=dynamic, backend=backend)
    for rows in (5, 6):
        ours, theirs = (torch.arange(4.0 * rows).view(rows, 4) for _ in range(2))
        compiled(ours[1:])
        fn(theirs[1:])
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dynamic", [None, True])
def test_an_input_that_gets_a_shape_of_symbolic_sizes(dynamic: bool | None) -> None:
    """In place: eager does it, between two graphs."""

    def fn(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y.as_strided_((x.shape[0], 2), (2, 1))
        return x * 2 + y

    compiled = dovetail.compile(fn, dynamic=dynamic)
    for rows in (3, 5, 4):
        x = torch.randn(rows, 2)
        ours, theirs = (torch.arange(24.0) for _ in range(2))
        assert torch.equal(compiled(ours, x), fn(theirs, x))
        assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_views_of_one_another_that_get_a_history(backend: str) -> None:
    """A write to one with gradients is one to the other, which had none before."""

    def fn(x: torch.Tensor, view: torch.Tensor, w: torch.Tensor) -> None:
        view.copy_(w)
        x.mul_(2)

    compiled = dovetail.compile(fn, backend=backend)
    for run in (fn, compiled, compiled):
        x, w = torch.arange(6.0), torch.ones(1, requires_grad=True)
        view = x.view(6)
        run(x, view, w)
        for written in (x, view):
            (gradient,) = torch.autograd.grad(written.sum(), w, retain_graph=True)
            assert gradient.item() == 12


def _of_zeros(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.zeros(3, 4, dtype=x.dtype)
    y.add_(x)
    return y.t(), y[0]


def _conjugates_of_zeros(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.zeros_like(x)
    y.addcmul_(x, x)
    z = y.conj()
    return z, z.imag


def _of_what_was_detached(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (x * 2).detach()
    y.mul_(x)
    return y.t(), y[0]


def _beside_what_it_was_detached_from(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x * 2
    y = z.detach()
    y.mul_(x)
    return y.t(), y[0], z


def _of_a_detached_input(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x * 2
    dovetail.graph_break()
    y = z.detach()
    y.copy_(x)
    return y.t(), y


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize(
    "fn",
    [
        _of_a_detached_input,
        _of_zeros,
        _conjugates_of_zeros,
        _of_what_was_detached,
        _beside_what_it_was_detached_from,
    ],
)
def test_views_of_what_got_its_gradient_by_a_write(
    fn: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], backend: str
) -> None:
    """They are views of one another for autograd, too: the caller may write to one."""
    gradients, results = [], []
    for run in (fn, dovetail.compile(fn, backend=backend)):
        torch.manual_seed(0)
        x = torch.randn(3, 4, dtype=torch.complex64 if "conj" in fn.__name__ else torch.float32)
        x.requires_grad_()
        first, *others = run(x * 1)
        first.mul_(3)
        results.append([t.detach().clone() for t in (first, *others)])
        sum((abs(t) ** 2).sum() for t in (first, *others)).backward()  # type: ignore[union-attr]
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(results[1], results[0])


def _detached(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.detach()
    return y, y.t(), y[1:]


def _detached_last(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x[1:].detach()
    return y.t(), y


def _detached_whole(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.detach()
    return y[(slice(0, 3, 1),)], y


def _detached_result(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    z = y.detach()
    return y, z[0], z


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("fn", [_detached, _detached_last, _detached_whole, _detached_result])
def test_views_of_what_was_detached_are_views_of_that(
    fn: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], requires_grad: bool, backend: str
) -> None:
    """What the caller then writes to one has its gradient in the others, and in nothing else."""
    seen = []
    for run in (fn, dovetail.compile(fn, backend=backend)):
        x = torch.arange(12.0).view(3, 4).requires_grad_(requires_grad) * 1
        outputs = run(x)
        assert len(set(map(id, outputs))) == len(outputs)
        before = [(t._is_view(), t.requires_grad) for t in outputs]
        weight = torch.ones((), requires_grad=True)
        outputs[1].add_(weight)
        after = [(t._is_view(), t.requires_grad, t.detach().clone()) for t in (x, *outputs)]
        graded = [(t * t).sum() for t in outputs if t.requires_grad]
        (gradient,) = torch.autograd.grad(sum(graded[1:], graded[0]), weight)
        seen.append((before, after, gradient))
    torch.testing.assert_close(seen[1], seen[0])
