"""`torch.func`'s transforms that give more than a derivative, compiled: eager's values, and eager's
gradients through them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.utils._pytree import tree_leaves

import dovetail

LAYER = nn.Linear(3, 3)


def jvp_and_more(x: Tensor) -> Tensor:
    value, slope, more = jvp(lambda t: (t.sin(), (t * 2, x)), (x,), (x.cos(),), has_aux=True)
    return value + slope * more[0] * more[1]


def jvp_that_says_so(x: Tensor) -> Tensor:
    value, slope = jvp(LAYER, (x,), (x * 2,), has_aux=False)
    return value + slope


def vjp_and_more(x: Tensor) -> Tensor:
    value, pull, more = vjp(lambda t: (LAYER(t).sin(), {"more": t * 3}), x, has_aux=True)
    return value + pull(value * 2)[0] + more["more"]


def linearized(x: Tensor) -> Tensor:
    value, push = linearize(lambda t: LAYER(t).sin() * x, x)
    return value + push(x * 3) + push(torch.ones_like(x))


def linearized_in_parameters(x: Tensor) -> Tensor:
    def call(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(LAYER, parameters, (x,)).exp()

    parameters = dict(LAYER.named_parameters())
    value, push = linearize(call, parameters)
    return value + push({name: p * p for name, p in parameters.items()})


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "function",
    [jvp_and_more, jvp_that_says_so, vjp_and_more, linearized, linearized_in_parameters],
)
def test_one_graph_gives_what_eager_gives(
    function: Callable[[Tensor], Tensor], dynamic: bool | None
) -> None:
    call: Any = dovetail.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    found = []
    for run in (function, call):
        x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
        result = run(x)
        wanted = [x, *LAYER.parameters()]
        gradients = torch.autograd.grad(result.square().sum(), wanted, allow_unused=True)
        found.append([result.detach(), *(g for g in gradients if g is not None)])
    torch.testing.assert_close(*found)


# A number beside what has no dimensions inside of `vmap`: PyTorch converts the number first.


def of_sums_and_numbers(x: Tensor) -> Tensor:
    def one(row: Tensor) -> Tensor:
        total = row.sum()
        return total * 2.5 + 2**total + total.to(torch.int64) * 0.5 + total.double() * 2

    return torch.vmap(one)(x)


def of_gradients_and_numbers(x: Tensor) -> Tensor:
    return torch.vmap(torch.func.grad(lambda row: (row**3).sum() * 2.0 / 3))(x)


def of_means_by_size(x: Tensor) -> Tensor:
    return torch.vmap(lambda row: row.sum() / x.shape[0] + row.shape[0] * row.prod())(x)


def of_elements(x: Tensor) -> Tensor:
    return torch.vmap(torch.vmap(lambda e: torch.div(e * 2, 3, rounding_mode="floor") + 1j))(x)


@pytest.mark.parametrize(
    "function",
    [of_sums_and_numbers, of_gradients_and_numbers, of_means_by_size, of_elements],
)
def test_numbers_inside_of_vmap(function: Callable[[Tensor], Tensor]) -> None:
    compiled: Any = dovetail.compile(function, fullgraph=True)
    for rows in (2, 3, 5, 4):
        x = torch.linspace(-1, 1, 3 * rows).view(rows, 3)
        torch.testing.assert_close(compiled(x), function(x))
    assert compiled.capture_context.log.counters["graph"] <= 2


def test_a_number_that_changes_inside_of_vmap() -> None:
    def scaled(x: Tensor, scale: float) -> Tensor:
        return torch.vmap(torch.func.grad(lambda row: (row**2).sum() * scale))(x)

    compiled: Any = dovetail.compile(scaled, fullgraph=True)
    x = torch.linspace(-1, 1, 6).view(2, 3)
    for scale in (0.5, 1.5, 2.5, 3.5):
        torch.testing.assert_close(compiled(x, scale), scaled(x, scale))
    assert compiled.capture_context.log.counters["graph"] == 2


def sizes_within(x: Tensor) -> Tensor:
    def one(row: Tensor) -> Tensor:
        n = row.shape[0]
        return row + torch.ones(n) * row[: n // 2].sum() / n + row.new_zeros(x.shape[0]).sum()

    return torch.vmap(one)(x)


def sizes_within_two(x: Tensor) -> Tensor:
    inner = torch.vmap(lambda row: row * 2 + torch.arange(row.shape[0]))
    return torch.vmap(inner)(x.reshape(x.shape[0], 1, x.shape[1]))


def slopes_by_size(x: Tensor) -> Tensor:
    return torch.vmap(torch.func.jacrev(lambda row: row * row.sum() / row.shape[0]))(x)


@pytest.mark.parametrize("function", [sizes_within, sizes_within_two, slopes_by_size])
@pytest.mark.parametrize("backend", ["eager", "dovetail"])
def test_sizes_read_inside_of_vmap(function: Callable[[Tensor], Tensor], backend: str) -> None:
    compiled: Any = dovetail.compile(function, fullgraph=True, backend=backend)
    for shape in ((2, 3), (4, 3), (5, 6), (6, 5), (7, 9), (3, 3)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), function(x))
    assert compiled.capture_context.log.counters["graph"] <= 3


def _called_within(fn: Callable[[Tensor], Tensor]) -> dict[str, Callable[[Tensor], Tensor]]:
    """What `fn` gives inside of transforms, by name."""
    total = lambda x: fn(x).sum()  # noqa: E731
    return {
        "grad": grad(total),
        "jacrev": jacrev(fn),
        "jacfwd": jacfwd(fn),
        "hessian": hessian(total),
        "vmap": vmap(fn),
        "gradients of rows": vmap(grad(total)),
        "jvp": lambda x: jvp(fn, (x,), (x,))[1],
        "vjp": lambda x: vjp(fn, x)[1](x)[0],
        "of a closure": lambda x: grad(lambda v: (fn(x) * v).sum())(x),
    }


@pytest.mark.parametrize("name", list(_called_within(torch.sin)))
@pytest.mark.parametrize("before", ["nothing", "a call", "a call with gradients"])
def test_compiled_functions_called_within_transforms(name: str, before: str) -> None:
    """They run as in eager, which is told, whatever they were called with before; other calls of
    theirs stay compiled."""

    def fn(x: Tensor) -> Tensor:
        return (x**2).sin()

    compiled: Any = dovetail.compile(fn)
    x = torch.linspace(-1, 1, 6).view(2, 3)
    if before != "nothing":
        compiled(x.clone().requires_grad_(before == "a call with gradients"))
    ours, eagers = (_called_within(f)[name](x) for f in (compiled, fn))
    torch.testing.assert_close(ours, eagers)
    (told,) = dovetail.report(compiled).plain_frames
    assert "within a " in told
    x.requires_grad_()
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, grad(lambda t: fn(t).sum())(x.detach()))
    assert dovetail.report(compiled).graphs == 1 + (before == "a call")


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_backwards_of_compiled_functions_within_vmap(backend: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    x, vectors = torch.randn(5, 4, requires_grad=True), torch.randn(7, 5, 3)
    found = []
    for run in (model, dovetail.compile(model, backend=backend)):
        result, wanted = run(x), (x, *model.parameters())

        def pulled(v: Tensor, result: Tensor = result, wanted: Any = wanted) -> Any:
            return torch.autograd.grad(result, wanted, v, retain_graph=True)

        found.append(vmap(pulled)(vectors))
        found.append(torch.autograd.grad(result, wanted, vectors, is_grads_batched=True))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def test_a_backward_within_vmap_in_a_compiled_function() -> None:
    def jacobian(x: Tensor) -> Tensor:
        y = x**2
        pulled = vmap(lambda v: torch.autograd.grad(y, x, v)[0])
        return pulled(torch.eye(3)) * y

    x = torch.randn(3, requires_grad=True)
    compiled = dovetail.compile(jacobian)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), jacobian(x))


def shifted(t: Tensor) -> Tensor:
    with torch.no_grad():
        shift = t**3
    factor = 2 if t.requires_grad and torch.is_grad_enabled() else 5
    return (t**2 * factor - shift).sum()


def with_gradients_off(x: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        value, pull = vjp(shifted, x)
        slope, pulled = grad(shifted)(x), pull(torch.ones(()))[0]
    return value, slope, pulled, x * 2


def of_tensors_that_require_gradients(x: Tensor) -> tuple[Tensor, ...]:
    def pair(a: Tensor, b: Tensor) -> Tensor:
        return a * (2 if a.requires_grad else 3) * b * (5 if b.requires_grad else 7)

    y = x.detach() + 1
    curved = hessian(lambda a: a.pow(3 if a.requires_grad else 2).sum())(y)
    return jacrev(pair, argnums=1)(y, y), jacfwd(pair)(y, y), vjp(pair, y, y)[0], curved


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", [with_gradients_off, of_tensors_that_require_gradients])
def test_functions_that_are_differentiated_see_gradients_on(
    function: Callable[[Tensor], tuple[Tensor, ...]], backend: str
) -> None:
    x = torch.linspace(-1, 1, 3).requires_grad_()
    found = dovetail.compile(function, backend=backend)(x)
    expected = function(x)
    torch.testing.assert_close(found, expected)
    assert [t.requires_grad for t in found] == [t.requires_grad for t in expected]


def test_options_that_are_none_are_told_where_they_are_given() -> None:
    def told(x: Tensor) -> list[str]:
        messages = []
        for make in (vmap, jacrev):
            try:
                make(torch.sin, chunk_size=0)(x)
            except ValueError as error:
                messages.append(str(error))
        try:
            vmap(torch.sin, in_dims=3)(x)
        except ValueError as error:
            messages.append(str(error))
        return messages

    compiled = dovetail.compile(told, backend="eager")
    assert compiled(torch.ones(2)) == told(torch.ones(2))


class Pair(NamedTuple):
    """Of tensors."""

    first: Any
    second: Any


def _kinds(value: Any) -> Any:
    """The classes of the containers in a value."""
    items = value.values() if isinstance(value, dict) else value
    inner = [] if isinstance(value, Tensor) else [_kinds(item) for item in items]
    return type(value).__name__, inner


CLASSES: dict[str, Callable[[Tensor], Any]] = {
    "vmap": lambda x: vmap(lambda a: Pair(a, [a.sum(), OrderedDict(z=a, b=a)]))(x),
    "vmap of torch's": lambda x: (vmap(lambda a: a.max(0))(x).values, vmap(torch.sort)(x)),
    "vmap in chunks": lambda x: vmap(lambda a: Pair(a, a.topk(2)), chunk_size=2)(x),
    "vmap of a pair": lambda x: vmap(lambda p: p.first * p.second)(Pair(x, x.t())),
    "vmap of ordered": lambda x: vmap(lambda d: type(d)(y=d["x"] * 2))(OrderedDict(x=x)),
    "grad": lambda x: grad(lambda p: (p.first * p.second).sum())(Pair(x, x.cos())),
    "grad and more": lambda x: grad(lambda a: (a.sin().sum(), Pair(a, a)), has_aux=True)(x)[1],
    "jacrev": lambda x: jacrev(lambda a: Pair(a.sin(), a.sum()))(x),
    "jvp": lambda x: jvp(lambda a: Pair(a.sin(), a.sum()), (x,), (x.cos(),)),
    "vjp": lambda x: vjp(lambda a: Pair(a.sin(), a.sum()), x)[1](Pair(x, x.sum())),
}


@pytest.mark.parametrize("name", CLASSES)
def test_containers_keep_their_classes(name: str) -> None:
    function = CLASSES[name]
    compiled = dovetail.compile(function, fullgraph=True, backend="aot_eager")
    for size in (3, 4):
        x = torch.randn(size, size)
        found, expected = compiled(x), function(x)
        assert _kinds(found) == _kinds(expected)
        torch.testing.assert_close(tree_leaves(found), tree_leaves(expected))


def at_places(x: Tensor) -> Any:
    places = torch.tensor([0, 2, 1])

    def written(row: Tensor, place: Tensor) -> Tensor:
        made = row.clone()
        made[place] = 7
        made[place] += row[place] * 2
        return made

    cube = x[:, :, None] * torch.arange(4.0)
    parts = vmap(lambda a, i: (a[i], a[:, i], a[i, 1:], a[1, i], a[None, i], a[:2, i, ...]))
    return (
        vmap(lambda row: row[row.argmax()] * row[row.argmin().int()])(x),
        vmap(written)(x, places), parts(cube, places), vmap(lambda i: x[i, :2])(places),
    )  # fmt: skip


def test_places_that_differ_within_vmap() -> None:
    compiled = dovetail.compile(at_places, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        x = torch.randn(3, 3, requires_grad=True)
        found, expected = tree_leaves(compiled(x)), tree_leaves(at_places(x))
        torch.testing.assert_close(found, expected)
        slopes = [torch.autograd.grad(sum(map(torch.sum, part)), x) for part in (found, expected)]
        torch.testing.assert_close(*slopes)


def _weighted(x: Tensor, classes: Tensor) -> Tensor:
    return x.square() * F.one_hot(classes, 3)


OF_CLASSES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "jacfwd": jacfwd(_weighted),
    "jacrev": jacrev(_weighted),
    "hessian": hessian(lambda x, k: _weighted(x, k).sum()),
    "jvp": lambda x, k: jvp(lambda t: _weighted(t, k), (x,), (x,)),
    "grad": grad(lambda x, k: _weighted(x, k).sum()),
    "vmap": vmap(_weighted),
    "vmap of one": vmap(_weighted, in_dims=(0, None)),
    "gaussian": grad(lambda x, k: F.gaussian_nll_loss(x, x * k[0], x.square() + 1)),
}


@pytest.mark.parametrize("backend", ["eager", "dovetail"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", OF_CLASSES)
def test_what_asks_for_data_in_eager_within_transforms(
    name: str, dynamic: bool | None, backend: str
) -> None:
    function = OF_CLASSES[name]
    compiled = dovetail.compile(
        lambda x, k: function(x, k), fullgraph=True, dynamic=dynamic, backend=backend
    )
    for rows in (3, 5):
        if name == "vmap of one":
            rows = 3
        x, classes = torch.rand(rows, 3), torch.arange(rows) % 3
        torch.testing.assert_close(compiled(x, classes), function(x, classes))
