"""Tensor subclasses that wrap tensors: compiled with what is inside, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import dovetail

aten = torch.ops.aten


class Pair(Tensor):
    """Two tensors of one shape, to both of which everything is done."""

    a: Tensor
    b: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, a: Tensor, b: Tensor) -> Pair:
        made: Pair = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device
        )
        return made

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Pair({self.a}, {self.b})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: Any, size: Any, stride: Any) -> Any:
        return Pair(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        def of(name: str) -> Any:
            inside = tree_map(
                lambda t: getattr(t, name) if isinstance(t, Pair) else t, (args, kwargs or {})
            )
            return func(*inside[0], **inside[1])

        def paired(a: Any, b: Any) -> Any:
            if isinstance(a, (tuple, list)):
                return type(a)(paired(x, y) for x, y in zip(a, b, strict=True))
            return Pair(a, b) if isinstance(a, Tensor) else a

        a, b = of("a"), of("b")
        if func._schema.is_mutable and isinstance(a, Tensor):
            return args[0]
        return paired(a, b)


class Scaled(Tensor):
    """Whole numbers of 8 bits and a scale. Its products are those of its values."""

    data_: Tensor
    scale: Tensor
    bits: int
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, data_: Tensor, scale: Tensor, bits: int) -> Scaled:
        made: Scaled = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, data_.shape, strides=data_.stride(), dtype=scale.dtype
        )
        return made

    def __init__(self, data_: Tensor, scale: Tensor, bits: int) -> None:
        self.data_, self.scale, self.bits = data_, scale, bits

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Scaled({self.data_}, {self.scale})"

    @classmethod
    def of(cls, values: Tensor, bits: int = 8) -> Scaled:
        most = 2 ** (bits - 1) - 1
        scale = values.abs().amax(1, keepdim=True) / most
        return cls((values / scale).round().clamp(-most, most).to(torch.int8), scale, bits)

    def values_(self) -> Tensor:
        return self.data_.to(self.scale.dtype) * self.scale

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["data_", "scale"], {"bits": self.bits}

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: Any, size: Any, stride: Any) -> Any:
        return Scaled(inner["data_"], inner["scale"], meta["bits"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (aten.t.default, aten.detach.default, aten.clone.default):
            t = args[0]
            return Scaled(func(t.data_), func(t.scale), t.bits)
        plain = tree_map(lambda t: t.values_() if isinstance(t, Scaled) else t, args)
        return func(*plain, **(kwargs or {}))


def make_pair(*shape: int, grad: bool = False, seed: int = 0) -> Pair:
    torch.manual_seed(seed)
    return Pair(torch.randn(shape), torch.randn(shape)).requires_grad_(grad)


def parts(value: Any) -> Any:
    """A value as plain tensors, and their types."""
    if isinstance(value, Pair):
        return ("Pair", value.requires_grad, parts(value.a), parts(value.b))
    if isinstance(value, Scaled):
        return ("Scaled", value.data_, value.scale, value.bits)
    if isinstance(value, (tuple, list)):
        return [parts(v) for v in value]
    return value.detach() if isinstance(value, Tensor) else value


def assert_same(found: Any, expected: Any) -> None:
    """`parts` of two values are equal."""
    mine, theirs = _leaves(found), _leaves(expected)
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        if isinstance(b, Tensor):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        else:
            assert a == b


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for v in value for leaf in _leaves(v)]
    return [value]


def check(
    fn: Callable[..., Any], make: Callable[[], list[Any]], *, backend: str = "dovetail", **one: Any
) -> Any:
    """Compiled equals eager, in results, inputs afterwards, and gradients; in one graph."""
    compiled = dovetail.compile(fn, backend=backend, **one)
    for _ in range(2):
        left, right = make(), make()
        found, expected = compiled(*left), fn(*right)
        assert_same(parts(found), parts(expected))
        assert_same(parts(left), parts(right))
        for mine, theirs in zip(_tensors(found), _tensors(expected), strict=True):
            assert type(mine) is type(theirs) and mine.requires_grad == theirs.requires_grad
        for inputs, results in ((left, found), (right, expected)):
            losses = [t.sum() for t in _tensors(results) if t.requires_grad and not t.is_leaf]
            if losses:
                torch.autograd.backward(losses)
            del inputs
        for mine, theirs in zip(left, right, strict=True):
            if isinstance(theirs, Tensor) and theirs.requires_grad and theirs.is_leaf:
                assert type(mine.grad) is type(theirs.grad)
                assert_same(parts(mine.grad), parts(theirs.grad))
    return compiled


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in _tensors(v)]
    return [value] if isinstance(value, Tensor) else []


def one_graph(compiled: Any) -> None:
    report = dovetail.report(compiled)
    assert not report.breaks and report.graphs == 1, report


PLAIN: dict[str, Callable[..., Any]] = {
    "pointwise": lambda x, y, p: (x * y).sin() + p,
    "product": lambda x, y, p: x @ y.t(),
    "softmax": lambda x, y, p: torch.softmax(x * 2 + y, -1),
    "norm": lambda x, y, p: torch.nn.functional.layer_norm(x + y, (4,), p),
    "several": lambda x, y, p: (x + 1, y.sum(0), x * p, p * 2),
    "chunks": lambda x, y, p: torch.cat(list((x + y).chunk(2, 1))[::-1], 1),
    "only a plain result": lambda x, y, p: p.exp(),
    "mixed with plain": lambda x, y, p: p * x.a.sum() + y,
}


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
@pytest.mark.parametrize("grads", [(False, False, False), (True, False, True), (True, True, True)])
@pytest.mark.parametrize("name", PLAIN)
def test_functions(name: str, grads: tuple[bool, ...], backend: str) -> None:
    def make() -> list[Any]:
        torch.manual_seed(2)
        plain = torch.randn(4).requires_grad_(grads[2])
        return [make_pair(3, 4, grad=grads[0]), make_pair(3, 4, grad=grads[1], seed=1), plain]

    one_graph(check(PLAIN[name], make, backend=backend))


def test_inputs_that_are_no_leaves() -> None:
    leaves: list[Pair] = []

    def make() -> list[Any]:
        leaves.append(make_pair(3, 4, grad=True))
        return [leaves[-1] * 2]

    one_graph(check(lambda x: x.tanh(), make))
    for leaf in leaves:
        assert_same(parts(leaf.grad), parts(leaves[0].grad))


def test_an_input_itself_and_one_result_twice() -> None:
    compiled = dovetail.compile(lambda x: (x, (y := x * 2), y))
    x = make_pair(3)
    first, second, third = compiled(x)
    assert first is x and second is third
    one_graph(compiled)


def test_views_of_inputs() -> None:
    compiled = check(lambda x: (x.view(-1), x[1:], x.t()), lambda: [make_pair(3, 4, grad=True)])
    one_graph(compiled)
    x = make_pair(3, 4)
    view = compiled(x)[0]
    assert view._base is x and view.a.data_ptr() == x.a.data_ptr()
    view.mul_(2)
    torch.testing.assert_close(x.a, make_pair(3, 4).a * 2)


def test_writes_to_what_is_inside() -> None:
    def write(x: Any, y: Any) -> Any:
        x.mul_(2)
        y.add_(x)
        return x + y

    one_graph(check(write, lambda: [make_pair(3), make_pair(3, seed=1)]))
    x, y = make_pair(3), make_pair(3, seed=1)
    before = x._version
    dovetail.compile(write)(x, y)
    assert x._version > before


def test_two_wrappers_around_one_tensor() -> None:
    def write(x: Any, y: Any) -> Any:
        x.mul_(2)
        return y + 1

    compiled = dovetail.compile(write)
    for shared in (False, True, False):
        found, expected = [], []
        for call, into in ((compiled, found), (write, expected)):
            x = make_pair(3)
            y = Pair(x.a, x.b) if shared else make_pair(3, seed=1)
            into += [call(x, y), x, y]
        assert_same(parts(found), parts(expected))


def test_a_write_that_needs_gradients_breaks_and_is_right() -> None:
    def write(x: Any, w: Any) -> Any:
        x.mul_(w)
        return x + 1

    compiled = check(write, lambda: [make_pair(3), make_pair(3, seed=1, grad=True)])
    assert any("is written to and needs" in b.reason for b in dovetail.report(compiled).breaks)


def test_an_output_that_is_a_view_of_an_intermediate_breaks_and_is_right() -> None:
    compiled = check(lambda x: (x * 2).view(-1), lambda: [make_pair(3, 4, grad=True)])
    assert any("a view of a Pair" in b.reason for b in dovetail.report(compiled).breaks)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return nn.functional.linear(x, weight, bias).relu()


def test_a_weight_of_few_bits() -> None:
    def make() -> list[Any]:
        torch.manual_seed(0)
        x = torch.randn(5, 4, requires_grad=True)
        return [x, Scaled.of(torch.randn(6, 4)), torch.randn(6, requires_grad=True)]

    one_graph(check(linear, make))


def test_the_context_is_guarded() -> None:
    compiled = dovetail.compile(lambda x, w: (x @ w.t()) * 2)
    x = torch.randn(5, 4)
    for bits in (8, 4, 8, 2):
        weight = Scaled.of(torch.randn(6, 4), bits)
        torch.testing.assert_close(compiled(x, weight), (x @ weight.values_().t()) * 2)
    assert dovetail.report(compiled).graphs == 3


def test_parameters_that_are_subclasses() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        for layer in (made[0], made[2]):
            layer.weight = nn.Parameter(Scaled.of(layer.weight.detach()), requires_grad=False)
        return made

    expected, compiled_model = model(), model()
    compiled = dovetail.compile(compiled_model)
    x = torch.randn(3, 4)
    for _ in range(2):
        found, wanted = compiled(x), expected(x)
        torch.testing.assert_close(found, wanted)
        for each, result in ((compiled_model, found), (expected, wanted)):
            each.zero_grad()
            result.square().sum().backward()
        for mine, theirs in zip(compiled_model.parameters(), expected.parameters(), strict=True):
            if theirs.requires_grad:
                torch.testing.assert_close(mine.grad, theirs.grad)
    one_graph(compiled)


def test_training_parameters_that_are_pairs() -> None:
    results = []
    for compile_it in (True, False):
        torch.manual_seed(0)
        layer = nn.Linear(4, 3)
        weight = layer.weight.detach()
        layer.weight = nn.Parameter(Pair(weight.clone(), weight * 2))
        layer.bias = nn.Parameter(Pair(layer.bias.detach().clone(), layer.bias.detach() + 1))
        call = dovetail.compile(layer) if compile_it else layer
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=False)
        x = make_pair(5, 4)
        for _ in range(3):
            optimizer.zero_grad()
            loss = call(x).square().sum()
            loss.backward()
            optimizer.step()
        results.append([parts(loss), *(parts(p) for p in layer.parameters())])
        if compile_it:
            one_graph(call)
    assert_same(results[0], results[1])


def test_a_wrapper_around_wrappers() -> None:
    def make() -> list[Any]:
        x = Pair(make_pair(3, 4), make_pair(3, 4, seed=1)).requires_grad_()
        return [x, make_pair(3, 4, seed=2)]

    compiled = check(lambda x, y: ((x * 2).sin() * y, y + 1), make)
    one_graph(compiled)


def test_what_is_inside_can_be_read() -> None:
    one_graph(check(lambda x: (x * 2).a + x.b, lambda: [make_pair(3)]))


def test_several_shapes() -> None:
    compiled = dovetail.compile(lambda x: x.cos() * 2)
    for n in (2, 3, 4, 2):
        assert_same(parts(compiled(make_pair(n, 4))), parts(make_pair(n, 4).cos() * 2))
    assert not dovetail.report(compiled).breaks


@pytest.mark.parametrize("dynamic", [None, True])
def test_plain_tensors_of_several_sizes_beside_them(dynamic: bool | None) -> None:
    """What is wrapped, and the gradient of what is plain, have sizes of the call."""

    def function(x: Tensor, weight: Tensor) -> Any:
        return (x @ weight).relu() * 2, x.sin()

    compiled = dovetail.compile(function, dynamic=dynamic)
    for n in (2, 3, 4, 5):
        results = []
        for call in (compiled, function):
            torch.manual_seed(n)
            x, weight = torch.randn(n, 3, requires_grad=True), make_pair(3, 4, grad=True)
            out, beside = call(x, weight)
            assert all(type(size) is int for size in (*out.shape, *out.stride()))
            (out.sum() + beside.sum()).backward()
            results.append([parts(t) for t in (out, beside, x.grad, weight.grad)])
        assert_same(results[0], results[1])
    report = dovetail.report(compiled)
    assert not report.breaks and report.graphs == (1 if dynamic else 2)


def test_a_gradient_of_another_make_is_refused() -> None:
    x = make_pair(3, grad=True)
    out = dovetail.compile(lambda x: x * 2)(x)
    with pytest.raises(RuntimeError, match="is a Tensor or one of another make"):
        out.backward(torch.ones(3))


def test_gradients_of_gradients_are_refused() -> None:
    x = make_pair(3, grad=True)
    out = dovetail.compile(lambda x: x.sin())(x)
    with pytest.raises(RuntimeError, match="create_graph=True"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


class Functional(Pair):
    """A class that also answers functions, and whose `__tensor_unflatten__` makes tensors of
    another class: it is run plainly."""

    calls = 0

    @classmethod
    def __torch_function__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        Functional.calls += 1
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def test_subclasses_that_are_put_together_as_others_run_plainly() -> None:
    compiled = dovetail.compile(lambda x: x.sin() * 2)
    x = Functional(torch.ones(2), torch.ones(2))
    for _ in range(2):
        before = Functional.calls
        assert_same(parts(compiled(x)), parts(x.sin() * 2))
        assert Functional.calls == before + 2
    reasons = [b.reason for b in dovetail.report(compiled).breaks]
    assert any("its __tensor_unflatten__ gives a Pair" in reason for reason in reasons)


def test_jagged_tensors_run_plainly() -> None:
    def double(x: Any) -> Any:
        return x.sin() * 2

    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    compiled = dovetail.compile(double)
    torch.testing.assert_close(compiled(x).values(), double(x).values())
    with pytest.raises(dovetail.CaptureError):
        dovetail.compile(double, fullgraph=True)(x)


class _Doubling(Tensor):
    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.sin else out


class _Sines(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.ones(3).as_subclass(_Doubling)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.weight).as_subclass(Tensor) + x


@pytest.mark.parametrize("first", ["asked", "not asked"])
def test_where_no_class_is_asked(first: str) -> None:
    module, x = _Sines(), torch.zeros(3)
    compiled = dovetail.compile(module)
    for asked in (first == "asked", first != "asked", True, False):
        with nullcontext() if asked else torch._C.DisableTorchFunctionSubclass():
            torch.testing.assert_close(compiled(x), module(x))
    assert dovetail.report(compiled).graphs == 1
