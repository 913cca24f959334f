"""Tensors that wrap tensors and have a `__torch_function__` of their own: quantised weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import dovetail

F = nn.functional
aten = torch.ops.aten


@dataclass
class Activations:
    """How activations are rounded."""

    bits: int = 8


class Quantised(Tensor):
    """Whole numbers of 8 bits and scales. Functions and operators are looked up in tables."""

    qdata: Tensor
    scale: Tensor
    block: list[int]
    offset: Tensor | None
    activations: Activations | None
    functions: ClassVar[dict[Any, Callable[..., Any]]] = {}
    operators: ClassVar[dict[Any, Callable[..., Any]]] = {}

    @staticmethod
    def __new__(cls, qdata: Tensor, scale: Tensor, *rest: Any, **named: Any) -> Quantised:
        made: Quantised = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, qdata.shape, dtype=scale.dtype, device=qdata.device, requires_grad=False
        )
        return made

    def __init__(
        self,
        qdata: Tensor,
        scale: Tensor,
        block: list[int],
        offset: Tensor | None = None,
        activations: Activations | None = None,
    ) -> None:
        super().__init__()
        self.qdata, self.scale, self.block = qdata, scale, block
        self.offset, self.activations = offset, activations

    @classmethod
    def of(cls, values: Tensor, bits: int = 8, activations: Activations | None = None) -> Quantised:
        most = 2 ** (bits - 1) - 1
        scale = values.abs().amax(-1, keepdim=True).clamp(min=1e-5) / most
        qdata = (values / scale).round().clamp(-most, most).to(torch.int8)
        return cls(qdata, scale, [1, values.shape[-1]], activations=activations)

    def values_(self) -> Tensor:
        plain = self.qdata.to(self.scale.dtype)
        if self.offset is not None:
            plain = plain - self.offset
        return plain * self.scale

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Quantised({self.qdata}, {self.scale})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        names = ["qdata", "scale"] + ([] if self.offset is None else ["offset"])
        return names, {"block": self.block, "activations": self.activations}

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, meta: Any, size: Any, stride: Any) -> Any:
        return cls(
            inner["qdata"],
            inner["scale"],
            meta["block"],
            inner.get("offset"),
            meta["activations"],
        )

    @classmethod
    def __torch_function__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if hasattr(cls, "functions") and func in cls.functions:
            return cls.functions[func](func, types, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in cls.operators:
            return cls.operators[func](func, types, args, kwargs or {})
        raise NotImplementedError(f"{cls.__name__}: {func}")


class ByFunction(Quantised):
    """Its products are a function's."""

    functions: ClassVar[dict[Any, Callable[..., Any]]] = {}


class ByOperator(Quantised):
    """Its products are an operator's."""


def _linear(func: Any, types: Any, args: Any, kwargs: Any) -> Tensor:
    x, weight, bias = args[0], args[1], args[2] if len(args) > 2 else None
    assert isinstance(weight, Quantised)
    if weight.activations is None:
        out = (x @ weight.qdata.t().to(x.dtype)) * weight.scale.flatten()
    else:
        given = Quantised.of(x, weight.activations.bits)
        product = given.qdata.to(torch.float32) @ weight.qdata.t().to(torch.float32)
        out = product * given.scale * weight.scale.flatten()
    if bias is not None:
        out = out + bias
    return out


def _each(func: Any, types: Any, args: Any, kwargs: Any) -> Quantised:
    self = args[0]
    made = type(self)(
        func(self.qdata, *args[1:], **kwargs),
        func(self.scale, *args[1:], **kwargs),
        self.block,
        self.offset,
        self.activations,
    )
    return made


def _by_values(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    plain = [arg.values_() if isinstance(arg, Quantised) else arg for arg in args]
    return func(*plain, **kwargs)


@functools.wraps(_linear)
def _wrapped(f: Any, types: Any, args: Any, kwargs: Any, _func: Any = _linear) -> Any:
    return _func(f, types, args, kwargs)


ByFunction.functions[F.linear] = _wrapped
for of_parts in (aten.detach.default, aten.clone.default, aten.alias.default):
    Quantised.operators[of_parts] = _each
for of_values in (
    aten.mm.default, aten.addmm.default, aten.mul.Tensor, aten.linear.default, aten._to_copy.default
):  # fmt: skip
    Quantised.operators[of_values] = _by_values


def _transposed(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    return func(args[0].values_())


Quantised.operators[aten.t.default] = _transposed

KINDS = {
    "function": lambda w: ByFunction.of(w),
    "operator": lambda w: ByOperator.of(w),
    "activations": lambda w: ByFunction.of(w, activations=Activations()),
}


def model(kind: str, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    for layer in (made[0], made[2]):
        weight = KINDS[kind](layer.weight.detach())
        layer.weight = nn.Parameter(weight, requires_grad=False)
    return made


def one_graph(compiled: Any) -> None:
    report = dovetail.report(compiled)
    assert not report.breaks and report.graphs == 1, report


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "dovetail"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_layers(kind: str, grad: bool, backend: str) -> None:
    made = model(kind)
    compiled = dovetail.compile(made, backend=backend, fullgraph=True)
    for seed in range(2):
        torch.manual_seed(seed)
        results = []
        x = torch.randn(3, 8)
        for call in (compiled, made):
            made.zero_grad()
            inner = x.clone().requires_grad_(grad)
            with torch.set_grad_enabled(grad):
                out = call(inner)
            if grad and kind != "activations":  # (whose rounding has no gradients worth a check)
                out.square().sum().backward()
            results.append([out.detach(), inner.grad, made[0].bias.grad, made[2].bias.grad])
        for mine, theirs in zip(*results, strict=True):
            torch.testing.assert_close(mine, theirs)
    one_graph(compiled)


def test_adapters_beside_quantised_weights_train() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = model("function")
            self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.base(x) + self.up(self.down(x))
            return out

    results = []
    for compile_it in (False, True):
        torch.manual_seed(1)
        made = Adapted()
        call = dovetail.compile(made) if compile_it else made
        optimizer = torch.optim.SGD([p for p in made.parameters() if p.requires_grad], lr=0.1)
        for step in range(3):
            torch.manual_seed(step)
            optimizer.zero_grad()
            call(torch.randn(5, 8)).square().mean().backward()
            optimizer.step()
        results.append([p.detach() for p in made.parameters() if p.requires_grad])
        if compile_it:
            one_graph(call)
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_changed_weights_are_noticed() -> None:
    made = model("function")
    compiled = dovetail.compile(made)
    x = torch.randn(3, 8)

    def check() -> None:
        torch.testing.assert_close(compiled(x), made(x))

    weight: Any = made[0].weight
    check()
    weight.qdata.add_(1)
    check()
    weight.scale = weight.scale * 2
    check()
    weight.activations = Activations(8)
    check()
    weight.activations.bits = 4
    check()
    weight.activations = None
    check()
    made[0].weight = nn.Parameter(ByOperator.of(torch.randn(16, 8)), requires_grad=False)
    check()
    made.to(torch.float32)
    made[2].weight = nn.Parameter(ByFunction.of(torch.randn(6, 16)), requires_grad=False)
    made[2].bias = nn.Parameter(torch.randn(6))
    check()
    assert not dovetail.report(compiled).breaks


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "dovetail"])
def test_tensors_made_in_the_graph(backend: str) -> None:
    def function(x: Tensor) -> tuple[Any, Tensor]:
        made = ByFunction.of(x.sin(), activations=None)
        return made, F.linear(x, made) + made.scale.sum()

    compiled = dovetail.compile(function, backend=backend, fullgraph=True)
    x = torch.randn(4, 4)
    for _ in range(2):
        (found, out), (expected, wanted) = compiled(x), function(x)
        assert type(found) is ByFunction and found.block == expected.block
        assert found.offset is None and found.activations is None and not found.requires_grad
        torch.testing.assert_close(found.qdata, expected.qdata)
        torch.testing.assert_close(found.scale, expected.scale)
        torch.testing.assert_close(out, wanted)
    one_graph(compiled)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "dovetail"])
def test_operators_of_tensors_made_in_the_graph(backend: str) -> None:
    def function(x: Tensor) -> Any:
        made = ByOperator.of(x.sin())
        copied = made.clone()
        return x @ made.t(), copied.qdata + 1, copied.block, copied.detach()

    compiled = dovetail.compile(function, backend=backend, fullgraph=True)
    x = torch.randn(4, 4)
    found, expected = compiled(x), function(x)
    for mine, theirs in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(mine, theirs)
    assert found[2] == expected[2] and type(found[3]) is ByOperator
    torch.testing.assert_close(found[3].values_(), expected[3].values_())
    one_graph(compiled)


def test_gradients_through_what_is_made_in_the_graph() -> None:
    """The scales are tensors that autograd knows; the tensor around them is none."""

    def function(x: Tensor) -> Any:
        made = Quantised.of(x)
        return made, made.scale.sum(), made

    results = []
    for call in (dovetail.compile(function, fullgraph=True), function):
        torch.manual_seed(0)
        x = torch.randn(4, 4, requires_grad=True)
        made, scales, again = call(x * 2)
        assert made is again and not made.requires_grad and made.scale.requires_grad
        (scales + made.scale.square().sum()).backward()
        results.append(x.grad)
    torch.testing.assert_close(*results)


def test_an_attribute_is_another_tensor_to_autograd() -> None:
    results = []

    def function(weight: Any, x: Tensor) -> Tensor:
        return (x * weight.scale).sum()

    for call in (dovetail.compile(function, fullgraph=True), function):
        torch.manual_seed(0)
        weight = ByFunction.of(torch.randn(4, 4))
        weight.scale.requires_grad_()
        x = torch.randn(4, 4)
        call(weight, x).backward()
        assert weight.grad is None
        results.append(weight.scale.grad)
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "dovetail"])
def test_an_operator_on_what_needs_gradients_inside(backend: str) -> None:
    results = []
    compiled = dovetail.compile(lambda x, weight: (x @ weight.t()).sum(), backend=backend)
    for call in (compiled, lambda x, weight: (x @ weight.t()).sum()):
        torch.manual_seed(0)
        weight = ByOperator.of(torch.randn(4, 4))
        weight.scale.requires_grad_()
        x = torch.randn(4, 4, requires_grad=True)
        call(x, weight).backward()
        results.append([x.grad, weight.scale.grad])
    for mine, theirs in zip(*results, strict=True):
        assert (mine is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(mine, theirs)
    assert any("around tensors that need" in b.reason for b in dovetail.report(compiled).breaks)


class Nested(ByOperator):
    """Quantised scales, too."""


def test_a_wrapper_around_wrappers() -> None:
    def function(x: Tensor, weight: Any) -> Tensor:
        out: Tensor = x @ weight.qdata.t().float() * weight.scale.qdata.sum() + weight.scale.scale
        return out

    inner = ByFunction.of(torch.randn(4, 1))
    weight = Nested(torch.randint(-9, 9, (4, 4), dtype=torch.int8), inner, [1, 4])
    compiled = dovetail.compile(function, fullgraph=True)
    x = torch.randn(4, 4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, weight), function(x, weight))
        inner.qdata.add_(1)
    one_graph(compiled)


def test_weights_that_need_gradients() -> None:
    """The gradient of the tensor around others, by operators."""
    results = []
    for compile_it in (True, False):
        torch.manual_seed(0)
        weight = nn.Parameter(ByOperator.of(torch.randn(6, 8)))
        bias, x = torch.randn(6, requires_grad=True), torch.randn(3, 8, requires_grad=True)
        call = dovetail.compile(F.linear) if compile_it else F.linear
        call(x, weight, bias).square().sum().backward()
        results.append([x.grad, bias.grad, weight.grad])
        if compile_it:
            one_graph(call)
    for mine, theirs in zip(*results, strict=True):
        assert type(mine) is type(theirs)
        torch.testing.assert_close(mine, theirs)


def test_no_method_is_called_by_compiling() -> None:
    calls = []

    class Noting(ByOperator):
        @classmethod
        def __torch_function__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if not torch.compiler.is_compiling():
                calls.append(func)
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))

    compiled = dovetail.compile(lambda x, w: x @ w, fullgraph=True)
    weight = Noting.of(torch.randn(4, 4))
    calls.clear()
    for _ in range(2):
        compiled(torch.randn(2, 4), weight)
    assert not calls


def test_an_assigned_attribute_breaks_and_is_right() -> None:
    def function(weight: Any, x: Tensor) -> Tensor:
        weight.scale = weight.scale * 2
        return F.linear(x, weight)

    compiled = dovetail.compile(function)
    results = []
    for call in (compiled, function):
        torch.manual_seed(0)
        weight = ByFunction.of(torch.randn(4, 4))
        results.append((call(weight, torch.randn(2, 4)), weight.scale))
    torch.testing.assert_close(*results)
    assert any("assignment to `scale`" in b.reason for b in dovetail.report(compiled).breaks)


def test_other_kinds_of_one_layer() -> None:
    compiled = dovetail.compile(F.linear)
    for dtype in (torch.float32, torch.bfloat16):
        for shape in ((4, 8), (6, 8)):
            weight = ByFunction.of(torch.randn(shape, dtype=dtype))
            x = torch.randn(3, 8, dtype=dtype)
            torch.testing.assert_close(compiled(x, weight), F.linear(x, weight))
    assert not dovetail.report(compiled).breaks
