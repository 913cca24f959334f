"""FakeTensor: metadata, aliasing, autograd, the meta fallback, data dependence, FakeMode."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_prims import (
    DataDependentError,
    FakeMemo,
    FakeMode,
    FakeTensor,
    FakeTensorError,
    UnsupportedTensorError,
    fake_arguments,
    from_real,
    propagate,
    tensor_meta,
)
from dovetail_prims.fake_tensor import set_metadata
from rule_checks import check
from torch import Tensor, nn

aten = torch.ops.aten


def test_from_real_keeps_everything() -> None:
    base = torch.zeros(4, 6, dtype=torch.bfloat16)
    t = base[1:, ::2].t()
    fake = from_real(t)
    assert tensor_meta(fake) == tensor_meta(t)
    assert (fake.shape, fake.stride(), fake.storage_offset()) == (t.shape, t.stride(), 6)
    assert fake.is_leaf and not fake.requires_grad
    parameter = nn.Parameter(torch.zeros(3))
    fake = from_real(parameter)
    assert isinstance(fake, nn.Parameter) and fake.requires_grad and fake.is_leaf
    result = parameter * 2
    fake = from_real(result)
    assert fake.requires_grad and not fake.is_leaf and fake.grad_fn is not None
    assert from_real(fake) is fake


def test_memo_keeps_identity_and_aliasing() -> None:
    memo = FakeMemo()
    base = torch.zeros(4, 6)
    view, other = base[1:], torch.zeros(4, 6)
    fakes = [from_real(t, memo=memo) for t in (base, view, other, base)]
    assert fakes[0] is fakes[3]
    assert fakes[0]._storage is fakes[1]._storage
    assert fakes[0]._storage is not fakes[2]._storage
    tree = fake_arguments({"a": [base, 1], "b": base})
    assert tree["a"][0] is tree["b"] and tree["a"][1] == 1


def test_sizes_can_be_replaced() -> None:
    t = torch.zeros(2, 3, 4).transpose(1, 2)
    fake = from_real(t, sizes=(5, 6, 7))
    assert fake._sizes == (5, 6, 7)
    assert fake._strides == (42, 1, 6)


def test_unsupported_tensors_are_refused() -> None:
    with pytest.raises(UnsupportedTensorError, match="sparse"):
        from_real(torch.zeros(3).to_sparse())


def test_autograd_runs_above() -> None:
    x = from_real(torch.zeros(4, 8, requires_grad=True))
    w = from_real(nn.Parameter(torch.zeros(16, 8)))
    y = F.linear(x, w)
    assert y.grad_fn is not None and tuple(y.shape) == (4, 16)
    F.gelu(y).softmax(-1).sum().backward()
    assert isinstance(x.grad, FakeTensor) and tuple(x.grad.shape) == (4, 8)
    assert isinstance(w.grad, FakeTensor) and tuple(w.grad.shape) == (16, 8)
    with torch.no_grad():
        assert F.linear(x, w).grad_fn is None
    leaf = from_real(torch.zeros(3, requires_grad=True))
    with pytest.raises(RuntimeError, match="leaf Variable"):
        leaf.add_(1)


def test_views_share_storage_and_copies_do_not() -> None:
    x = from_real(torch.zeros(4, 6))
    for view in (
        x.view(24),
        x.t(),
        x[1:],
        x.detach(),
        x.unsqueeze(0),
        *x.split(2),
        x.expand(2, 4, 6),
    ):
        assert view._storage is x._storage
    for fresh in (x.clone(), x + 1, x.repeat(2, 1), x.double()):
        assert fresh._storage is not x._storage
    complex_view = torch.view_as_real(from_real(torch.zeros(3, dtype=torch.complex64)))
    assert tuple(complex_view.shape) == (3, 2)  # by the fallback


@pytest.mark.parametrize("fill", [torch.arange, torch.linspace, torch.logspace])
@pytest.mark.parametrize("shape", [(4, 3), (12,), (5, 2)])
def test_sequences_fill_as_many_elements_of_any_shape(fill: Any, shape: tuple[int, ...]) -> None:
    args = (0, 12) if fill is torch.arange else (0, 1, 12)
    real = torch.zeros(shape).t()
    fake = from_real(real)
    fill(*args, out=real)
    with FakeMode():
        fill(*args, out=fake)
    assert (tuple(real.shape), real.stride()) == (fake._sizes, fake._strides)


def test_complex_numbers_that_fill_are_no_halves() -> None:
    torch.set_default_dtype(torch.float16)
    try:
        for value in (1j, 1.0, True, 2):
            with FakeMode():
                fake = torch.full((2,), value)
            assert fake.dtype == torch.full((2,), value).dtype
    finally:
        torch.set_default_dtype(torch.float32)


def test_in_place_ops_return_the_fake_and_update_it() -> None:
    x = from_real(torch.zeros(3, 4))
    assert x.add_(1) is x
    x.t_()
    assert (x._sizes, x._strides, tuple(x.shape)) == ((4, 3), (1, 4), (4, 3))
    x.resize_(7)
    assert (x._sizes, tuple(x.shape), x.stride()) == ((7,), (7,), (1,))
    y = from_real(torch.zeros(5))
    x.set_(y)
    assert x._storage is y._storage and tuple(x.shape) == (5,)
    out = from_real(torch.zeros(0))
    torch.add(from_real(torch.zeros(3)), 1, out=out)
    assert tuple(out.shape) == (3,)
    set_metadata(out, (1, 3), (3, 1), 0)
    assert out.shape == (1, 3)
    lazy = from_real(torch.zeros(3, 4, dtype=torch.complex64).conj())
    lazy.t_()
    assert lazy.shape == (4, 3) and lazy.is_conj() and lazy.resolve_conj() is not lazy


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: torch.equal(x, x),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: torch.unique(x),
    ],
)
def test_data_dependent_ops_are_named(call: object) -> None:
    with pytest.raises(DataDependentError) as caught:
        call(from_real(torch.zeros(3)))  # type: ignore[operator]
    assert caught.value.op


def test_fallback_agrees_with_eager() -> None:
    x = torch.zeros(2, 3, 8, 8)
    last = x.to(memory_format=torch.channels_last)
    for op, args in (
        (aten.upsample_nearest2d.default, (x, [16, 16])),
        (aten.upsample_bilinear2d.default, (last, [4, 4], False)),
        (aten.glu.default, (torch.zeros(3, 4), 1)),
        (aten.reflection_pad2d.default, (x, [1, 1, 2, 2])),
        (aten.movedim.int, (x, 0, 2)),
        (aten.linalg_cross.default, (torch.zeros(2, 3), torch.zeros(2, 3))),
        (aten.view_as_real.default, (torch.zeros(3, dtype=torch.complex64),)),
        (aten.squeeze_.dim, (torch.zeros(1, 3), 0)),
        (aten.transpose_.default, (torch.zeros(1, 3), 0, 1)),
        (aten._foreach_add.Scalar, ([torch.zeros(3), torch.zeros(2)], 1)),
        (aten._foreach_add_.Scalar, ([torch.zeros(3), torch.zeros(2)], 1)),
    ):  # fmt: skip
        check(op, *args, expect_rule=False)


def test_real_tensors_count_as_constants() -> None:
    x = from_real(torch.zeros(3))
    assert tuple((x + torch.zeros(2, 3)).shape) == (2, 3)
    assert tuple(torch.cat([x, torch.zeros(2)]).shape) == (5,)
    with pytest.raises(FakeTensorError, match="real tensor"):
        torch.zeros(3).add_(x)


def test_fake_mode_catches_factories() -> None:
    real = torch.zeros(3)
    with FakeMode() as mode:
        for made in (
            torch.arange(5),
            torch.ones(3),
            torch.randn(2, 2),
            torch.tensor([1.0, 2.0]) + 1,
        ):
            assert isinstance(made, FakeTensor)
        torch.manual_seed(0)
        out = nn.Linear(3, 4)(real)
        assert isinstance(out, FakeTensor) and tuple(out.shape) == (4,)
        real.add_(1)
    assert real.sum() == 0 and mode.memo.get(real) is not None


def test_errors_are_eager_errors() -> None:
    x = from_real(torch.zeros(3, 4))
    for call in (
        lambda: x + from_real(torch.zeros(5)),
        lambda: x @ x,
        lambda: x.view(5),
        lambda: x.sum(7),
        lambda: torch.cat([x, from_real(torch.zeros(2, 2))]),
        lambda: 1 - (x > 0),
    ):
        with pytest.raises((RuntimeError, IndexError)):
            call()


def test_copies_and_pickles() -> None:
    x = from_real(torch.zeros(3, 4).t()).requires_grad_()
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert tensor_meta(other) == tensor_meta(x) and other.requires_grad
    assert "FakeTensor([4, 3]" in repr(x)


def test_propagate_skips_the_dispatcher() -> None:
    x = from_real(torch.zeros(3, 4))
    out = propagate(aten.sum.dim_IntList, (x, [0]), {})
    assert tuple(out.shape) == (4,)


class _Symbol:
    """A size known only by its hint; comparing it is recorded (stands for the guards' SymNode)."""

    def __init__(self, hint: int, log: list[str]) -> None:
        self.hint = hint
        self.log = log

    def __getattr__(self, name: str) -> object:
        def binary(other: object) -> object:
            value = getattr(int, f"__{name}__")(self.hint, other.hint)  # type: ignore[attr-defined]
            if isinstance(value, bool):
                self.log.append(name)
                return _Bool(value)
            return _Symbol(value, self.log)

        known = {"add", "sub", "mul", "floordiv", "mod", "eq", "ne", "lt", "le", "gt", "ge"}
        if name in known:
            return binary
        raise AttributeError(name)

    def wrap_int(self, value: int) -> _Symbol:
        return _Symbol(value, self.log)

    def is_int(self) -> bool:
        return True

    def is_bool(self) -> bool:
        return False

    def is_float(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def maybe_as_int(self) -> None:
        return None

    def is_constant(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def has_hint(self) -> bool:
        return True

    def guard_int(self, file: str, line: int) -> int:
        raise AssertionError("a shape rule converted a symbolic size to int")

    int_ = guard_int  # type: ignore[assignment]

    def _graph_repr(self) -> str:
        return "s"

    def str(self) -> str:
        return "s"


class _Bool:
    def __init__(self, value: bool) -> None:
        self.value = value

    def is_bool(self) -> bool:
        return True

    def is_int(self) -> bool:
        return False

    def is_float(self) -> bool:
        return False

    def guard_bool(self, file: str = "", line: int = 0) -> bool:
        return self.value

    bool_ = expect_true = guard_bool

    def maybe_as_bool(self) -> None:
        return None

    def is_constant(self) -> bool:
        return False


def test_rules_never_convert_a_symbolic_size() -> None:
    log: list[str] = []
    n = torch.SymInt(_Symbol(6, log))
    x = FakeTensor.make((n, 8), (8, 1), torch.float32, torch.device("cpu"))
    weight = from_real(torch.zeros(16, 8))

    def run(op: object, *args: object) -> Tensor:
        return propagate(op, args, {})  # type: ignore[no-any-return]

    y = run(aten.mm.default, x, run(aten.t.default, weight))
    for out in (
        y,
        run(aten.relu.default, y),
        run(aten.add.Tensor, y, y),
        run(aten.add.Tensor, y, 1.0),
        run(aten._softmax.default, y, -1, False),
        run(aten.native_layer_norm.default, y, [16], None, None, 1e-5)[0],
        run(aten.view.default, y, [n, 2, 8]),
        run(aten.clone.default, y),
    ):
        assert out._sizes[0].node.hint == 6 and type(out._sizes[1]) is int
    flat = run(aten.view.default, y, [n * 16])
    assert flat._sizes[0].node.hint == 96
    assert run(aten.sum.dim_IntList, y, [0])._sizes == (16,)


def test_import_leaves_sympy_alone_and_the_first_op_dynamo() -> None:
    code = (
        "import sys, torch; sympy = 'sympy' in sys.modules\n"
        "import dovetail_prims.sizes.size_nodes\n"
        "assert sympy == ('sympy' in sys.modules)\n"
        "from dovetail_prims import FakeMode, from_real\n"
        "x = from_real(torch.zeros(3, 4, requires_grad=True))\n"
        "x.softmax(-1).sum().backward()\n"
        "with FakeMode():\n"
        "    torch.zeros(3) + 1\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_operator_without_tensor_arguments_is_not_called() -> None:
    called = []

    def real(length: int) -> Tensor:
        called.append(length)
        return torch.zeros(length)

    with torch.library._scoped_library("prims_tests", "DEF") as library:
        library.define("made(SymInt length) -> Tensor")
        library.impl("made", real, "CompositeExplicitAutograd")
        library.impl("made", lambda length: torch.empty(length, device="meta"), "Meta")
        with FakeMode():
            made = torch.ops.prims_tests.made(3)
    assert made.shape == (3,) and made.device.type == "cpu"
    assert not called
