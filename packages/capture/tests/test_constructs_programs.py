"""Constructs: programs as users of graph compilers write them and report them.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import collections

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from construct_cases import Case, Table, run_case

construct = Table()


def two_tensors():
    return torch.arange(6.0).reshape(2, 3), torch.ones(2, 3, dtype=torch.float64)


class MyList(list):
    def total(self):
        return sum(self)

    def append(self, item):
        super().append(item + 1)


class MyDict(dict):
    def __getitem__(self, key):
        return super().__getitem__(key) * 2

    def extra(self):
        return len(self)


class MySet(set):
    def first(self):
        return min(self)


def containers():
    x = torch.arange(6.0).reshape(2, 3)
    return x, MyList([x, x + 1]), MyDict(a=x, b=2), MySet([1, 2])


@construct(graphs=2, make=containers)
def subclasses_of_containers(x, items, table, members):
    items.append(x)
    table["c"] = 3
    members.add(5)
    return items.total(), table["a"], table.extra(), members.first(), len(items), table.get("b")


@construct(graphs=2, make=lambda: (torch.ones(2), collections.defaultdict(list, {"a": [1]}),
                         collections.OrderedDict(a=1, b=2)))  # fmt: skip
def special_dicts(x, d, o):
    d["new"].append(x)
    d["a"] += [2]
    o.move_to_end("a")
    o["c"] = 3
    first = next(iter(o))
    keys, values, items = d.keys(), o.values(), list(o.items())
    return x + len(keys), first, list(values), items, "a" in keys, list(reversed(o))


@construct()
def dict_views(x):
    d = {"a": 1, "b": 2}
    keys, items = d.keys(), d.items()
    d["c"] = 3
    both = keys & {"a", "c", "z"}
    return (
        x + len(keys),
        sorted(both),
        ("c", 3) in items,
        keys == {"a", "b", "c"},
        sorted(keys | {"q"}),
    )


class Getattr(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.table = {"scale": 3}

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return (
                self.__dict__["table"][name]
                if name in self.__dict__["table"]
                else getattr(self.inner, name)
            )

    def forward(self, x):
        return self.inner(x) * self.scale + self.in_features


def module_and_tensor(make):
    def build():
        torch.manual_seed(0)
        return make(), torch.arange(6.0).reshape(2, 3)

    return build


@construct(make=module_and_tensor(Getattr))
def getattr_on_modules(m, x):
    return m(x), m.out_features


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.seen = 0
        self.a.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        self.a.register_forward_hook(lambda m, args, out: out + 1)
        self.a.register_forward_hook(self.count, with_kwargs=True)

    def count(self, module, args, kwargs, out):
        self.seen += 1

    def forward(self, x):
        return self.a(x)


@construct(make=module_and_tensor(Hooked))
def module_hooks(m, x):
    y = m(x)
    return y, m.seen


class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.ReLU()})
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])
        self.params = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))])
        self.named = nn.ParameterDict({"w": nn.Parameter(torch.ones(3))})
        self.seq = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x):
        for name, block in self.blocks.items():
            x = block(x) + len(name)
        for i, layer in enumerate(self.layers):
            x = layer(x) * (i + 1)
        for p in self.params:
            x = x + p
        x = x * self.named["w"] + sum(p.sum() for p in self.parameters())
        x = self.seq[1](self.seq[:1](x))
        names = [n for n, _ in self.named_modules()]
        return x, names, "a" in self.blocks, len(self.layers), list(self.blocks), self.layers[-1](x)


@construct(make=module_and_tensor(Containers))
def module_containers(m, x):
    return m(x)


@construct()
def strict_zip(x):
    y = x
    for a, b in zip([1, 2], (3, 4), strict=True):
        y = y + a * b
    try:
        list(zip([1], [2, 3], strict=True))
    except ValueError as error:
        return y, str(error)


@construct()
def mixing_star_args(x):
    def f(a, b=2, *c, d=3, **e):
        return a + b + sum(c) + d + sum(e.values())

    args, kwargs = (1, 2), {"d": 4, "z": 5}
    return f(x, *args, 7, *[8], **kwargs), f(*[x], **{"b": 1}), f(x, 1, *(), y=2, **{"w": 3})


class Temperature:
    def __init__(self):
        self._c = 0.0

    @property
    def celsius(self):
        return self._c

    @celsius.setter
    def celsius(self, value):
        if value < -273:
            raise ValueError("too cold")
        self._c = value

    @celsius.deleter
    def celsius(self):
        self._c = None


@construct()
def property_setters(x):
    t = Temperature()
    t.celsius = 3.0
    t.celsius += 1
    try:
        t.celsius = -300
    except ValueError as error:
        text = str(error)
    y = x + t.celsius
    del t.celsius
    return y, text, t._c


@torch.no_grad()
def without_grad(x):
    return x * 2


class Frozen(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        return x + 1


def needs_grad():
    return (torch.ones(2, 3, requires_grad=True),)


@construct(make=needs_grad)
def no_grad_as_decorator(x):
    @torch.enable_grad()
    def inner(t):
        return t * 3

    with torch.no_grad():
        z = inner(x)
    return without_grad(x), Frozen()(x), z, x * 2, torch.is_grad_enabled()


@construct(make=needs_grad)
def context_managers_in_variables(x):
    manager = torch.no_grad()
    modes = [torch.no_grad, torch.enable_grad]
    with manager:
        y = x * 2
    for mode in modes:
        with mode():
            y = y + x
    return y, x * 3


@construct(make=needs_grad, graphs=None, breaks=None)
def inference_mode_inside(x):
    with torch.inference_mode():
        y = x * 2
        flag = torch.is_inference_mode_enabled()
    return y.clone() + 1, flag


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x**3 * k

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2 * ctx.k, None


@construct(make=needs_grad)
def own_autograd_function(x):
    y = Cube.apply(x * 2, 3)
    return (y + 1).detach(), y.requires_grad


@construct()
def size_arithmetic(x):
    s = x.shape
    t = torch.Size([1]) + s
    a, *rest = t
    return (
        x.new_zeros(s[:-1] + (4,)), t, s[::-1], s.numel(), len(s), a, rest, s == (2, 3), s + (1,),
        list(s), tuple(s), s.index(3), isinstance(s, tuple), s * 2, x.size()[-1], max(s), (1, *s),
    )  # fmt: skip


@construct()
def tensor_attributes(x):
    z = torch.complex(x, x)
    return (
        x.T, x.mT, z.H, z.mH, z.real, z.imag, x.data, x.grad, x.is_leaf, x.requires_grad, x.dtype,
        x.device.type, x.ndim, x.itemsize, x.nbytes, x.layout, x.is_cuda, x.is_sparse,
        x.is_quantized, x.is_complex(), x.is_floating_point(), x.element_size(), x.stride(),
        z[1].storage_offset(), x.is_contiguous(), x.numel(), x.dim(), x.nelement(), x.get_device(),
    )  # fmt: skip


@construct()
def in_place_on_views(x):
    x = x.clone()
    row = x[0]
    row.add_(10)
    x[:, 1].mul_(2)
    flat = x.view(-1)
    flat[0] = 7
    x.t()[2] += 1
    part = x[:, :2]
    part[part > 10] = 0
    return x, row, flat


@construct()
def deleting_names(x):
    y = x + 1
    z = y * 2
    del y
    try:
        y
    except UnboundLocalError as error:
        text = type(error).__name__
    d = {"a": z}
    del d["a"]
    items = [1, 2, 3]
    del items[0], items[-1]
    return z, text, d, items


@construct(graphs=None, breaks=None)
def seed_inside(x):
    torch.manual_seed(3)
    a = torch.rand(2)
    torch.manual_seed(3)
    return x + 1, a, torch.rand(2), torch.initial_seed()


def decides():
    return False


@construct(make=needs_grad)
def grad_mode_from_a_call(x):
    torch.set_grad_enabled(decides())
    y = x * 2
    torch.set_grad_enabled(True)
    with torch.set_grad_enabled(decides() or True):
        z = x * 3
    return y, z


@construct(make=two_tensors)
def to_another(x, other):
    return (
        x.to(other),
        x.to(other.dtype),
        x.type_as(other),
        x.to("cpu", torch.float16),
        x.to(torch.int64),
    )


@construct()
def finfo_and_iinfo(x):
    return (
        x.masked_fill(x > 3, torch.finfo(x.dtype).min), torch.finfo(torch.float16).eps,
        torch.iinfo(torch.int32).max, torch.finfo(torch.float32).bits,
    )  # fmt: skip


@construct()
def asserts_with_messages(x):
    assert x.dim() == 2, f"bad {x.shape}"
    assert isinstance(x, torch.Tensor) and x.shape[0] == 2
    try:
        assert x.shape[0] == 5, f"shape is {tuple(x.shape)}"
    except AssertionError as error:
        return x + 1, str(error)


@construct(graphs=None, breaks=None)
def raise_from_uncaught(x):
    y = x + 1
    try:
        {}["k"]
    except KeyError as error:
        raise RuntimeError(f"shape {tuple(y.shape)}") from error


@construct()
def try_with_else(x):
    found = []
    for value in (1, 0):
        try:
            y = 10 // value
        except ZeroDivisionError:
            found.append("zero")
        else:
            found.append(y)
        finally:
            found.append("end")
    return x + 1, found


@construct(graphs=2, breaks=1)
def star_unpack_around_a_break(x):
    first, *rest = [x, x + 1, x + 2]
    print(len(rest))
    *init, last = rest
    return first + last, init, [*init, *rest]


@construct()
def walrus_in_comprehension(x):
    total = 0
    found = [y for i in range(4) if (y := i * 2) > 2]
    sums = [total := total + v for v in found]
    return x + y, found, sums, total


@construct()
def nested_defaults_with_tensors(x):
    w = x * 2

    def layer(t, weight=w, *, bias=x + 1):
        def inner(u, k=weight.sum()):
            return u * k + bias

        return inner(t)

    return layer(x), layer(x, w + 1), layer(x, bias=0)


def tree(x, depth):
    if depth == 0:
        return [x]
    return tree(x + 1, depth - 1) + tree(x * 2, depth - 1)


@construct()
def recursion(x):
    def down(n):
        return x if n == 0 else down(n - 1) + n

    return sum(tree(x, 3)), down(4)


@construct()
def union_types(x):
    return (
        x + isinstance(x, int | torch.Tensor), isinstance(3, int | None), isinstance(None, (int, type(None))),
        isinstance("s", str | bytes), issubclass(bool, int | str), isinstance(x, (list, nn.Parameter)),
    )  # fmt: skip


@construct()
def formatted_sizes(x):
    return (
        x + 1,
        f"{x.shape}",
        f"{x.shape[0]:>4}x{x.size(1)}",
        "%s" % (tuple(x.shape),),
        "{}".format(x.dtype),
        f"{x.device!s:>6}",
        str(x.size()),
    )


class Tracked(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


@construct(graphs=None, breaks=None, make=lambda: (torch.ones(2, 3).as_subclass(Tracked),))
def subclass_with_torch_function(x):
    y = x + 1
    return y * 2, type(y).__name__


@construct()
def functional_style(x):
    w = torch.ones(4, 3)
    y = F.linear(x, w, bias=None)
    y = F.dropout(y, p=0.5, training=False)
    y = F.layer_norm(y, y.shape[-1:])
    y = F.softmax(y, dim=-1, dtype=torch.float64)
    return F.pad(y, (1, 1)), F.one_hot(torch.tensor([0, 2]), 3), F.gelu(x)


class Counts(nn.Module):
    calls: int = 0

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.history = []
        self.cache = {}

    def forward(self, x):
        self.steps += 1
        self.calls = self.calls + 1
        self.history.append(tuple(x.shape))
        self.cache[x.shape[0]] = x
        if len(self.history) > 3:
            self.history.clear()
        return x + self.steps


@construct(graphs=None, breaks=0, make=module_and_tensor(Counts))
def module_with_state(m, x):
    return m(x), m.calls, m.history, sorted(m.cache)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x, *, scale=1.0):
        return self.lin(x) * scale


class Child(Base):
    def forward(self, x, **kwargs):
        out = super().forward(x, **kwargs)
        return {"out": out, "norm": out.norm()}


@construct(make=module_and_tensor(Child))
def super_with_kwargs(m, x):
    return m(x, scale=2.0)


@construct()
def data_structures_of_tensors(x):
    from collections import namedtuple

    table = {"a": [x, {"b": (x + 1,)}], 3: x * 2, (1, 2): None}
    table["a"][1]["c"] = table[3]
    flat = []

    def walk(v):
        if isinstance(v, torch.Tensor):
            flat.append(v.sum())
        elif isinstance(v, dict):
            for k in v:
                walk(v[k])
        elif isinstance(v, (list, tuple)):
            for item in v:
                walk(item)

    walk(table)
    return torch.stack(flat), table


@construct()
def early_exits(x):
    for i in range(10):
        if i == 2:
            continue
        if i > 4:
            break
        x = x + i
    else:
        return None
    while True:
        x = x * 2
        if x.shape[0] == 2:
            return x


@construct()
def conditional_expressions(x):
    mask = None
    y = x if mask is None else x * mask
    z = (x or None) if isinstance(x, int) else (not mask and y)
    return z + 1, mask or 3, 0 or [] or "last", 1 and 2, not None


@construct()
def numbers_and_tensors(x):
    import math

    d = x.shape[-1]
    return (
        x / math.sqrt(d), x * math.pi, math.ceil(d / 2), round(2.567, 2), divmod(7, d), 2**d, x**0.5, -x,
        abs(-d), int(3.7), float(d), complex(1, d), x // 2, 7 % d, x % 2, 1 / (x + 1), 2 - x, bool(d), hex(d),
    )  # fmt: skip


@construct()
def indexing_in_all_ways(x):
    i = torch.tensor([1, 0])
    return (
        x[0], x[-1, ...], x[..., 0], x[None], x[:, None], x[i], x[i, i], x[:, ::2], x[1:, 1:],
        x[[0, 1]], x[(0, 1)], x[slice(0, 1)], x[:, [0, 2]], x[True], x.T[1:][0],
    )  # fmt: skip


@construct(graphs=None, breaks=None)
def tolist_and_item(x):
    n = int(x[0, 1].item())
    items = x.tolist()
    return x + n, items, x.sum().item(), len(items)


@construct()
def iterating_tensors(x):
    rows = [row * 2 for row in x]
    a, b = x
    total = 0
    for row, value in zip(x, range(2)):
        total = total + row * value
    for i, column in enumerate(x.unbind(1)):
        total = total + column.sum() * i
    return rows, a + b, total, [*x], max(len(x), 1), torch.stack(tuple(reversed(x)))


@construct()
def versions_of_torch(x):
    return x + (torch.__version__ >= "2.0"), torch.__version__ < (1, 0), str(torch.__version__)


@construct(graphs=2, breaks=1)
def mask_indexing(x):
    y = x * 2
    return y[y > 2].sum() + 1


@construct(graphs=1, breaks=0)
def made_parameter(x):
    y = x + 1
    p = nn.Parameter(torch.ones(3))
    return y * p.detach()


@construct()
def globals_of_torch(x):
    return (
        x.to(torch.get_default_dtype()) + 1, torch.is_tensor(x), torch.typename(x),
        torch.is_floating_point(x), torch.numel(x), torch.result_type(x, 1), torch.broadcast_shapes((2, 1), (3,)),
    )  # fmt: skip


@construct()
def nested_vmap(x):
    dot = lambda a, b: (a * b).sum()
    outer = torch.vmap(torch.vmap(dot, in_dims=(None, 0)), in_dims=(0, None))
    return outer(x, x), torch.vmap(lambda t: torch.vmap(torch.sin)(t) + 1)(x)


@construct()
def function_transforms(x):
    f = lambda t: (t**2).sum()
    out, vjp = torch.func.vjp(torch.sin, x)
    _, tangent = torch.func.jvp(torch.cos, (x,), (torch.ones_like(x),))
    (pulled,) = vjp(torch.ones_like(out))
    return torch.func.grad(f)(x), out, pulled, tangent, torch.func.hessian(f)(x[0])


@construct()
def derivatives_of_closures(x):
    log, w = [], x + 1

    def work(a, b):
        log.append(len(log))
        return (a * w).sum(), torch.sin(b)

    (first, second), pull = torch.func.vjp(work, x, x * 2)
    da, db = pull((torch.ones(()), torch.ones_like(x)))
    out, tangents = torch.func.jvp(work, (x, x), (x, x))
    again = pull((first, second))
    return first, da, db, out, tangents, again, log


@construct(graphs=None, breaks=None)
def pulling_after_a_break(x):
    out, pull = torch.func.vjp(torch.sin, x + 1)
    y = x * 2
    print("between")
    return pull(y)[0] + out


@construct(make=module_and_tensor(lambda: nn.Linear(3, 2)))
def functional_calls(m, x):
    params = {name: p * 2 for name, p in m.named_parameters()}
    return torch.func.functional_call(m, params, (x,)), torch.func.functional_call(m, params, x)


@construct()
def linearized(x):
    out, push = torch.func.linearize(torch.sin, x)
    return out, push(torch.ones_like(x))


@construct()
def in_place_operators(x):
    y = x.clone()
    z = y
    y += 1
    y *= 2
    y -= x
    y /= 2
    y **= 2
    y @= torch.eye(3)
    return y, z is y


@construct()
def checks_on_types(x):
    return (
        type(x) is torch.Tensor, type(x) == torch.Tensor, isinstance(x, torch.FloatTensor), x.type(),
        hasattr(x, "shape"), hasattr(x, "nonsense"), getattr(x, "foo", 3), callable(x.add), x.__class__.__name__,
        isinstance(x.shape, torch.Size), x + 1,
    )  # fmt: skip


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)
