"""Constructs: tensors of classes with a `__torch_function__` of their own."""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations


import pytest
import torch
import torch.nn.functional as F
from dovetail_capture import CaptureError, export, graph_break, optimize
from torch.overrides import TorchFunctionMode
from construct_cases import CountingBackend, same

LOG: list[object] = []


class Usual(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs)


class OtherSigmoid(torch.Tensor):
    """Another function for one, another answer for a property."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == torch.Tensor.sigmoid:
            return super().__torch_function__(torch.Tensor.exp, types, args, kwargs)
        if func == torch.Tensor.ndim.__get__:
            return 10
        return super().__torch_function__(func, types, args, kwargs)


class Logs(torch.Tensor):
    """Notes what it is asked."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        LOG.append((func.__name__, [t.__name__ for t in types], sorted(kwargs or {})))
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not isinstance(result, cls):
            result = result.as_subclass(cls)
        return result


class LogsToo(Logs):
    pass


class Unwraps(torch.Tensor):
    """As the images of torchvision: few functions keep the class."""

    KEEPS = {torch.Tensor.clone, torch.Tensor.to, torch.Tensor.detach}

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if not all(issubclass(cls, t) for t in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs or dict())
        if func in cls.KEEPS and isinstance(args[0], cls):
            return result.as_subclass(cls)
        if isinstance(result, cls):
            return result.as_subclass(torch.Tensor)
        return result

    @property
    def twice(self):
        return self * 2

    def plus(self, other):
        return self + other


class Tagged(torch.Tensor):
    """Gives on a note of what it was made of."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, Tagged):
            result.tags = [getattr(a, "tag", None) for a in args if isinstance(a, Tagged)]
        return result


class Refuses(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


class CountsCalls(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        LOG.append(("mode", [t.__name__ for t in types]))
        return func(*args, **(kwargs or {}))


def _given(cls, *shape, grad=False):
    numel = torch.Size(shape).numel()
    tensor = (torch.arange(float(numel)).reshape(shape) / 7 + 0.1).as_subclass(cls)
    return tensor.requires_grad_() if grad else tensor


# --- programs -------------------------------------------------------------------------------------


def many_operations(x, y):
    parts = x.split(2), torch.chunk(x, 2), x.max(dim=0), [row for row in x]
    made = torch.stack([x, y]), torch.cat((x, x)), torch.where(x > 0, x, y), x.new_zeros(2)
    known = x.ndim, x.shape, x.dtype, len(x), x.dim(), x.numel(), isinstance(x + 1, type(x))
    layers = F.linear(x, y), F.layer_norm(x, (3,)), F.softmax(x, -1), F.pad(x, (1, 1)), F.gelu(x)
    return parts, made, known, layers, x.sigmoid() + torch.sigmoid(x), y @ x.T, x[0], x[:, 1:]


def in_a_block_without(x, y):
    with torch._C.DisableTorchFunctionSubclass():
        plain = x.sigmoid()
    return plain, x.sigmoid(), type(plain) is type(x)


def writes(x, y):
    x.add_(1)
    x[0] = 5
    y += x
    part = x[1:]
    part.mul_(2)
    return x, part, y


def made_inside(x, y):
    made = (y + 1).as_subclass(type(x))
    return made.sigmoid(), made.as_subclass(torch.Tensor), type(made.sum()).__name__


def attributes_of_instances(x, y):
    x.note = 3
    return x.note, getattr(x, "nothing", 1), hasattr(x, "nothing"), x * 2


def under_a_mode(x, y):
    with CountsCalls():
        z = x + y
    return z.sin()


def around_a_break(x, y):
    z = x + y
    graph_break()
    return z.sigmoid(), x.ndim, z


def a_break_in_a_block_without(x, y):
    with torch._C.DisableTorchFunctionSubclass():
        first = x.sigmoid()
        graph_break()
        second = x.sigmoid()
    return first, second, x.sigmoid()


def sizes_of_an_input_changed(x, y):
    x.unsqueeze_(0)
    return x + 1


WHOLE = [many_operations, in_a_block_without, writes, made_inside, attributes_of_instances,
         under_a_mode]  # fmt: skip
BROKEN = [around_a_break, a_break_in_a_block_without, sizes_of_an_input_changed]


def _compare(program, make, fullgraph, backend=None):
    """Two calls, eager beside captured: results, arguments, what was asked."""
    captured = optimize(program, backend or CountingBackend(), fullgraph=fullgraph)
    for _ in range(2):
        seen = []
        for call in (program, captured):
            LOG.clear()
            given = make()
            result = call(*given)
            asked = list(LOG)
            with torch._C.DisableTorchFunctionSubclass():
                seen.append((result, given, asked))
        with torch._C.DisableTorchFunctionSubclass():
            assert same(*seen), seen


class Plain(torch.Tensor):
    """Has `Tensor`'s `__torch_function__`."""


class Switched(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


@pytest.mark.parametrize("program", WHOLE + BROKEN, ids=lambda p: p.__name__)
@pytest.mark.parametrize(
    "cls", [Usual, OtherSigmoid, Logs, Unwraps, Plain, Switched], ids=lambda c: c.__name__
)
def test_programs(cls, program) -> None:
    _compare(program, lambda: (_given(cls, 3, 3), _given(torch.Tensor, 3, 3)), program in WHOLE)


def test_members_of_the_class() -> None:
    def program(x):
        return x.twice, x.plus(3), x.clone(), x.to(torch.float64)

    _compare(program, lambda: (_given(Unwraps, 3),), True)


def test_attributes_that_are_given_on() -> None:
    def make():
        x = _given(Tagged, 3)
        x.tag = "input"
        return (x,)

    def program(x):
        y = x + 1
        y.tag = "made"
        z = y * x
        return y, y.tags, z, z.tags

    _compare(program, make, True)


class Made(torch.Tensor):
    @staticmethod
    def __new__(cls, data, tag):
        made = torch.Tensor._make_subclass(cls, data)
        made.tag = tag
        return made

    def __init__(self, data, tag):
        self.other = tag * 2


class MadeOfAnything(torch.Tensor):
    def __new__(cls, data):
        return torch.as_tensor(data).as_subclass(cls)


def test_tensors_of_own_classes_that_are_made_inside() -> None:
    def program(x, w):
        made, other, view = Made(x, 3), MadeOfAnything([1.0, 2.0, 3.0]), Plain(x)
        view.add_(1)
        kept = made.tag, made.other, made.requires_grad
        return made * 2, kept, other + x, view, Plain(w) * w, Usual(w).sum()

    def make():
        return _given(torch.Tensor, 3), _given(torch.Tensor, 3, grad=True)

    _compare(program, make, True)


def test_two_classes() -> None:
    def program(x, y, z):
        return x + y, y + x, torch.stack([z, x, y])

    _compare(program, lambda: (_given(Logs, 3), _given(LogsToo, 3), _given(torch.Tensor, 3)), True)


def test_a_class_that_leaves_it_to_the_other() -> None:
    class Answers(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args)

    def program(x, y):
        return torch.add(x, y)

    _compare(program, lambda: (_given(Refuses, 3), _given(Answers, 3)), True)


def test_an_operation_nobody_answers() -> None:
    captured = optimize(lambda x: torch.add(x, 1), CountingBackend())
    with pytest.raises(TypeError, match="__torch_function__"):
        captured(_given(Refuses, 3))


def test_gradients() -> None:
    def program(x, w):
        with torch.no_grad():
            kept = x * w
        return (x * w).sin() + kept

    gradients = []
    for call in (program, optimize(program, CountingBackend(), fullgraph=True)):
        x, w = _given(Usual, 4, grad=True), _given(torch.Tensor, 4, grad=True)
        result = call(x, w)
        result.sum().backward()
        with torch._C.DisableTorchFunctionSubclass():
            gradients.append((type(result), result.detach(), x.grad, w.grad))
    with torch._C.DisableTorchFunctionSubclass():
        assert same(*gradients)


def test_one_tensor_given_twice_and_sizes_that_change() -> None:
    backend = CountingBackend()

    def program(x, y):
        x.add_(1)
        return x + y * x.shape[0]

    captured = optimize(program, backend)

    def check(make):
        seen = [(call(*given), given) for call in (program, captured) for given in (make(),)]
        with torch._C.DisableTorchFunctionSubclass():
            assert same(*seen)

    check(lambda: (_given(Usual, 3),) * 2)
    for size in (3, 4, 5, 6):
        check(lambda: (_given(Usual, size), _given(Usual, size)))
    check(lambda: (_given(torch.Tensor, 3), _given(torch.Tensor, 3)))
    assert len(backend.graphs) == 4  # one tensor; two; of any size; plain ones


def test_in_a_module_and_in_containers() -> None:
    class Adds(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", _given(Logs, 3))

        def forward(self, inputs):
            return inputs["a"] + self.shift + inputs["b"][0]

    _compare(Adds(), lambda: ({"a": _given(Logs, 3), "b": [_given(torch.Tensor, 3)]},), True)


def test_where_functions_are_switched_off() -> None:
    backend = CountingBackend()
    captured = optimize(lambda x: x.sigmoid(), backend)
    x = _given(OtherSigmoid, 3)
    for _ in range(2):  # there the function runs as it is
        with torch._C.DisableTorchFunctionSubclass():
            assert torch.equal(captured(x), torch.sigmoid(x.as_subclass(torch.Tensor)))
        assert torch.equal(captured(x).as_subclass(torch.Tensor), x.as_subclass(torch.Tensor).exp())
    assert len(backend.graphs) == 1


def test_an_export_says_what_it_does_not_take() -> None:
    with pytest.raises(CaptureError, match="a Usual as an input of what is exported"):
        export(lambda x: x + 1, (_given(Usual, 3),))
    with pytest.raises(CaptureError, match="a Plain made in what is exported"):
        export(lambda x: x.as_subclass(Plain) + 1, (_given(torch.Tensor, 3),))
    exported = export(lambda x: x.as_subclass(torch.Tensor) + 1, (_given(torch.Tensor, 3),))
    assert torch.equal(exported(torch.ones(3)), torch.full((3,), 2.0))


# --- `__new__` of classes of tensors --------------------------------------------------------------


class MadeBySuper(torch.Tensor):
    @staticmethod
    def __new__(cls, x, *args, **kwargs):
        return super().__new__(cls, x)

    def __init__(self, x, note=None):
        self.note = note


class MadeByName(torch.Tensor):
    def __new__(cls, x):
        made = torch.Tensor.__new__(cls, x)
        made.scale = 2
        return made


@pytest.mark.parametrize("grad", [False, True])
def test_tensors_made_by_the_class_of_tensors(grad: bool) -> None:
    def program(x):
        first, second = MadeBySuper(x, note=3), MadeByName(x * 2)
        return first + 1, first.note, type(first * 2).__name__, second * second.scale

    seen = []
    for call in (program, optimize(program, CountingBackend(), fullgraph=True)):
        x = torch.ones(2, requires_grad=grad)
        results = call(x)
        if grad:
            (results[0].sum() + 1).backward()
            results[3].sum().backward()
        seen.append((repr([getattr(r, "data", r) for r in results]), x.grad))
    assert repr(seen[0]) == repr(seen[1])
