"""What a captured function can read, and how each of it can change between two calls.

A `Piece` is a few lines of a function that read something and let it change the tensor `t`, the
objects that they read (made in the function's globals), and the changes that can happen to them.
`{i}` in names keeps several pieces of one kind apart.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from random import Random
from typing import Any

Namespace = dict[str, Any]


@dataclass(frozen=True)
class Piece:
    """`setup` and `changes` are statements run in the globals; `lines` are the function's."""

    name: str
    setup: str
    lines: str
    changes: tuple[str, ...]

    def placed(self, i: int) -> Piece:
        """The piece with its own names."""

        def put(text: str) -> str:
            return textwrap.dedent(text).strip("\n").replace("{i}", str(i))

        return Piece(self.name, put(self.setup), put(self.lines), tuple(map(put, self.changes)))


# Statements may use `r`, a random number generator, and `torch`.
PIECES = [
    Piece(
        "global number",
        "n{i} = 3",
        "t = t * n{i}",
        ("n{i} += 1", "n{i} = 3.0", "n{i} = True", "n{i} = float(n{i})", "n{i} = -0.0"),
    ),
    Piece(
        "global tensor",
        "g{i} = torch.ones(2, 3)",
        "t = t + g{i} if g{i}.requires_grad else t - g{i}",
        (
            "g{i} = torch.full((2, 3), 2.0)",
            "g{i}.mul_(3)",
            "g{i}.requires_grad_(not g{i}.requires_grad)",
            "g{i} = g{i}.detach().double()",
            "g{i} = g{i}.detach().t().contiguous().t()",
            "g{i} = torch.nn.Parameter(g{i}.detach())",
            "g{i}.data = torch.ones(1, 3)",
            "g{i} = torch.ones(3, dtype=torch.int64)",
        ),
    ),
    Piece(
        "tensor metadata",
        "m{i} = torch.ones(2, 3)",
        """
        if m{i}.dtype == torch.float32: t = t + 1
        if m{i}.is_contiguous(): t = t * 2
        if m{i}.stride(0) > 2: t = t - 3
        if m{i}.shape[-1] > 2: t = t + m{i}.numel()
        if m{i}.is_sparse: t = t * 5
        if isinstance(m{i}, torch.nn.Parameter): t = t * 7
        """,
        (
            "m{i} = m{i}.to(torch.float64)",
            "m{i} = torch.ones(3, 2).t()",
            "m{i} = torch.ones(2, 6)[:, ::2]",
            "m{i} = torch.ones(2, 2)",
            "m{i} = torch.ones(2, 2, 1)",
            "m{i}.data = torch.ones(4, 4)",
            "m{i} = torch.nn.Parameter(torch.ones(2, 3))",
            "m{i} = torch.ones(2, 3)",
        ),
    ),
    Piece(
        "attributes in depth",
        """
        class A{i}:
            width = 2
        a{i} = A{i}()
        a{i}.inner = A{i}()
        a{i}.inner.depth = 1
        """,
        "t = t * a{i}.inner.depth + a{i}.inner.width - getattr(a{i}, 'extra', 4)",
        (
            "a{i}.inner.depth += 1",
            "a{i}.inner.width = 9",
            "A{i}.width += 1",
            "a{i}.inner = A{i}(); a{i}.inner.depth = 8",
            "a{i}.extra = 5",
            "A{i}.extra = 6",
            "a{i}.inner.__dict__ = {'depth': 12}",
            "a{i} = A{i}(); a{i}.inner = A{i}(); a{i}.inner.depth = -1",
            "A{i}.depth = property(lambda self: 77); a{i}.inner.__dict__['depth'] = 1",
            "A{i} = type('A{i}', (A{i},), {'width': 31}); a{i}.inner.__class__ = A{i}",
            "A{i}.__getattribute__ = lambda self, name: 3 if name == 'depth' else "
            "object.__getattribute__(self, name)",
        ),
    ),
    Piece(
        "missing attributes",
        """
        class M{i}:
            def __getattr__(self, name):
                return 2
        o{i} = M{i}()
        """,
        "t = t * o{i}.anything + (3 if hasattr(o{i}, 'other') else 4)",
        (
            "o{i}.anything = 5",
            "M{i}.anything = 6",
            "M{i}.__getattr__ = lambda self, name: 7",
            "def raises(self, name): raise AttributeError(name)\n"
            "M{i}.anything = 8; M{i}.__getattr__ = raises",
        ),
    ),
    Piece(
        "methods",
        """
        class Base{i}:
            def scale(self, t): return t * 2
        class Deriv{i}(Base{i}):
            def scale(self, t): return super().scale(t) + 1
            @property
            def shift(self): return 3
            @staticmethod
            def fixed(): return 4
            @classmethod
            def made(cls): return 5
        d{i} = Deriv{i}()
        def other_scale{i}(self, t): return t * 11
        """,
        "t = d{i}.scale(t) + d{i}.shift + d{i}.fixed() - d{i}.made()",
        (
            "Base{i}.scale = other_scale{i}",
            "Deriv{i}.scale = other_scale{i}",
            "d{i}.scale = lambda t: t - 1",
            "Deriv{i}.shift = property(lambda self: 30)",
            "Deriv{i}.fixed = staticmethod(lambda: 40)",
            "Deriv{i}.made = classmethod(lambda cls: 50)",
            "Base{i}.scale.__code__ = other_scale{i}.__code__",
            "d{i}.__class__ = type('D', (Deriv{i},), {'shift': 300})",
            "Deriv{i}.__bases__ = (type('B', (Base{i},), {'scale': lambda self, t: t * 6}),)",
        ),
    ),
    Piece(
        "special methods",
        """
        class S{i}:
            items = [1, 2]
            def __len__(self): return 2
            def __bool__(self): return True
            def __contains__(self, item): return item == 1
            def __getitem__(self, item): return item + 1
            def __call__(self, t): return t + 1
            def __iter__(self): return iter(self.items)
            def __eq__(self, other): return True
            def __add__(self, other): return other + 5
        s{i} = S{i}()
        """,
        """
        t = s{i}(t) * len(s{i}) + s{i}[3] + (s{i} + 1)
        if s{i}: t = t * 2
        if 1 in s{i}: t = t + 3
        if s{i} == 4: t = t - 1
        for item in s{i}: t = t + item
        """,
        (
            "S{i}.__len__ = lambda self: 3",
            "S{i}.__bool__ = lambda self: False",
            "S{i}.__contains__ = lambda self, item: False",
            "S{i}.__getitem__ = lambda self, item: 50",
            "S{i}.__call__ = lambda self, t: t * 9",
            "S{i}.__iter__ = lambda self: iter((7,))",
            "S{i}.__eq__ = lambda self, other: False",
            "S{i}.__add__ = lambda self, other: 8",
            "S{i}.items.append(4)",
            "s{i}.items = [9]",
            "s{i}.__len__ = lambda: 100",
        ),
    ),
    Piece(
        "slots",
        """
        class L{i}:
            __slots__ = ('value', 'other')
            def __init__(self, value): self.value = value
        l{i} = L{i}(2)
        """,
        "t = t * l{i}.value + (1 if hasattr(l{i}, 'other') else 2)",
        ("l{i}.value += 1", "l{i}.other = 1", "l{i} = L{i}(7)", "l{i}.value = [1][0] * 5"),
    ),
    Piece(
        "functions",
        """
        def helper{i}(t, k=2, *, w=3, boxes=[1]): return t * k + w + len(boxes)
        def spare{i}(t, k=5, *, w=6, boxes=[1]): return t - k - w
        """,
        "t = helper{i}(t)",
        (
            "helper{i} = spare{i}",
            "helper{i}.__code__ = spare{i}.__code__",
            "helper{i}.__defaults__ = (r.randrange(9),)",
            "helper{i}.__kwdefaults__ = {'w': r.randrange(9), 'boxes': []}",
            "helper{i}.__kwdefaults__['w'] = r.randrange(9)",
            "helper{i}.__kwdefaults__['boxes'].append(1)",
            "helper{i} = torch.relu",
        ),
    ),
    Piece(
        "partials and lambdas",
        """
        import functools
        def add{i}(t, a, b=1): return t + a * b
        p{i} = functools.partial(add{i}, b=2)
        chosen{i} = lambda t: t * 2
        """,
        "t = chosen{i}(p{i}(t, 3))",
        (
            "p{i} = functools.partial(add{i}, b=r.randrange(9))",
            "p{i}.keywords['b'] = r.randrange(9)",
            "chosen{i} = lambda t: t * 3",
            "add{i}.__code__ = (lambda t, a, b=1: t - a).__code__",
        ),
    ),
    Piece(
        "closure",
        """
        def make{i}():
            cell, deep = 2, [1]
            def inner(t): return t * cell + deep[0]
            return inner
        inner{i} = make{i}()
        """,
        "t = inner{i}(t)",
        (
            "inner{i}.__closure__[0].cell_contents = r.randrange(9)",
            "inner{i}.__closure__[1].cell_contents[0] = r.randrange(9)",
            "inner{i}.__closure__[1].cell_contents = [r.randrange(9)]",
            "inner{i} = make{i}()",
        ),
    ),
    Piece(
        "containers in depth",
        """
        import collections
        Point{i} = collections.namedtuple('Point{i}', 'x y')
        box{i} = {'list': [1, [2, 3]], 'tuple': (4, 5), 'set': {6}, 'more': {'x': 7},
                  'order': collections.OrderedDict(a=1, b=2), 'point': Point{i}(1, 2)}
        """,
        """
        t = t * box{i}['list'][1][0] + len(box{i}['list']) + box{i}['tuple'][1]
        if 6 in box{i}['set']: t = t + 1
        for key, value in box{i}['more'].items(): t = t * len(key) + value
        t = t + list(box{i}['order'].values())[0] + box{i}.get('late', 3) + box{i}['point'].x
        """,
        (
            "box{i}['list'][1][0] += 1",
            "box{i}['list'].append(r.randrange(9))",
            "box{i}['list'][1] = [9, 9]",
            "box{i}['tuple'] = (4, r.randrange(9))",
            "box{i}['set'] ^= {6}",
            "box{i}['more']['yy' * r.randrange(1, 4)] = r.randrange(9)",
            "box{i}['more'].pop(r.choice(list(box{i}['more'])), None) if box{i}['more'] else None",
            "box{i}['order'].move_to_end('a')",
            "box{i}['order'].move_to_end('b')",
            "box{i}['late'] = r.randrange(9)",
            "box{i}['point'] = Point{i}(r.randrange(9), 2)",
            "box{i} = dict(box{i})",
            "box{i} = collections.defaultdict(int, box{i})",
        ),
    ),
    Piece(
        "tensors in containers",
        "ts{i} = [torch.ones(2, 3), torch.full((2, 3), 2.0)]\nalias{i} = {'w': ts{i}[1]}",
        """
        t = t * ts{i}[0] + ts{i}[-1]
        if alias{i}['w'] is ts{i}[1]: t = t + 1
        for w in ts{i}: t = t + w.sum()
        """,
        (
            "ts{i}[0] = ts{i}[0] + 1",
            "ts{i}.append(torch.ones(1, 3))",
            "ts{i}[0].add_(2)",
            "alias{i}['w'] = alias{i}['w'].clone()",
            "alias{i}['w'] = ts{i}[1]",
            "ts{i}[1] = ts{i}[0]",
            "ts{i} = tuple(ts{i})\nts{i} = list(ts{i})",
        ),
    ),
    Piece(
        "records and enums",
        """
        import dataclasses, enum
        @dataclasses.dataclass
        class R{i}:
            a: int = 1
            b: tuple = (2, 3)
        class E{i}(enum.Enum):
            ONE = 1
            TWO = 2
        rec{i}, kind{i} = R{i}(), E{i}.ONE
        """,
        "t = t * rec{i}.a + rec{i}.b[1] + (1 if kind{i} is E{i}.ONE else kind{i}.value)",
        (
            "rec{i}.a += 1",
            "rec{i}.b = (2, r.randrange(9))",
            "rec{i} = R{i}(a=r.randrange(9))",
            "kind{i} = E{i}.TWO",
            "kind{i} = E{i}.ONE",
            "R{i}.a = 99; rec{i} = object.__new__(R{i}); rec{i}.b = (0, 1)",
        ),
    ),
    Piece(
        "modules of Python",
        """
        import types
        mod{i} = types.ModuleType('mod{i}')
        mod{i}.value, mod{i}.work = 2, lambda t: t + 1
        """,
        "t = mod{i}.work(t) * mod{i}.value",
        (
            "mod{i}.value += 1",
            "mod{i}.work = lambda t: t * 8",
            "mod{i} = types.ModuleType('again{i}'); mod{i}.value, mod{i}.work = 5, torch.neg",
            "mod{i}.__class__ = type('Mod', (types.ModuleType,), {'value': 44}); "
            "mod{i}.__dict__.pop('value', None)",
        ),
    ),
    Piece(
        "builtins shadowed",
        "q{i} = [1, 2, 3]",
        "t = t * len(q{i}) + max(q{i}) + abs(-2)",
        (
            "q{i}.append(r.randrange(9))",
            "len = lambda x: 7",
            "globals().pop('len', None)",
            "max = lambda x: -5",
            "globals().pop('max', None)",
            "abs = lambda x: 21",
        ),
    ),
    Piece(
        "nn.Module",
        """
        class Net{i}(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(3, 3)
                self.drop = torch.nn.Dropout(1.0)
                self.stack = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Tanh()])
                self.table = torch.nn.ModuleDict({'a': torch.nn.Identity()})
                self.register_buffer('shift', torch.ones(3))
                self.gain = 2
            def forward(self, t):
                t = self.drop(self.linear(t)) * self.gain + self.shift
                for layer in self.stack: t = layer(t)
                return self.table['a'](t)
        net{i} = Net{i}()
        """,
        "t = net{i}(t)",
        (
            "net{i}.train(not net{i}.training)",
            "net{i}.drop.train(not net{i}.drop.training)",
            "net{i}.gain += 1",
            "net{i}.drop.p = 0.0 if net{i}.drop.p else 1.0",
            "net{i}.linear.weight.data = torch.rand(3, 3)",
            "net{i}.linear.weight = torch.nn.Parameter(torch.rand(3, 3))",
            "net{i}.linear.weight.requires_grad_(not net{i}.linear.weight.requires_grad)",
            "net{i}.linear.bias = None",
            "net{i}.linear = torch.nn.Linear(3, 3, bias=False)",
            "net{i}.linear.register_forward_hook(lambda m, a, out: out * 2)",
            "net{i}.register_forward_pre_hook(lambda m, a: (a[0] + 1,))",
            "net{i}.drop._forward_hooks.clear()",
            "net{i}.linear._forward_hooks.clear()",
            "net{i}.shift = torch.full((3,), r.random())",
            "net{i}.shift.add_(1)",
            "net{i}._buffers['shift'] = torch.zeros(3)",
            "net{i}.stack.append(torch.nn.Sigmoid())",
            "net{i}.stack[0] = torch.nn.GELU()",
            "del net{i}.stack[len(net{i}.stack) // 2:]",
            "net{i}.table['a'] = torch.nn.Softplus()",
            "net{i}.drop.__class__ = torch.nn.Identity",
            "net{i}.forward = lambda t: t * 3",
            "net{i}.__dict__.pop('forward', None)",
            "Net{i}.forward = lambda self, t: self.linear(t) - 1",
            "net{i} = Net{i}()",
            "net{i}.linear.weight.data = net{i}.linear.weight.data.double(); net{i} = Net{i}()",
            "net{i}.__class__ = type('N', (Net{i},), {'forward': lambda self, t: t * 13})",
            "torch.nn.utils.parametrizations.weight_norm(net{i}.linear) "
            "if type(net{i}.linear) is torch.nn.Linear else None",
        ),
    ),
    Piece(
        "modes",
        "w{i} = torch.ones(3, 3)",
        """
        t = t + torch.ones(3).sum().to(t.dtype).to('cpu' if t.device.type == 'cpu' else t.device)
        t = t + (1 if torch.get_default_dtype() == torch.float32 else 2)
        if torch.is_grad_enabled(): t = t * 2
        if torch.is_inference_mode_enabled(): t = t * 3
        if torch.are_deterministic_algorithms_enabled(): t = t * 5
        if torch.is_autocast_enabled('cpu'): t = t * 7
        t = t + torch.mm(w{i}, w{i})[0]
        """,
        ("w{i} = w{i} * 2",),
    ),
    Piece(
        "threads",
        "v{i} = 1",
        "t = t * v{i} + torch.get_num_threads()",
        (
            "torch.set_num_threads(1)",
            "torch.set_num_threads(2)",
            "torch.set_num_threads(3)",
        ),
    ),
]


def chosen(r: Random, count: int) -> list[Piece]:
    """A random few, placed."""
    return [r.choice(PIECES).placed(i) for i in range(count)]


def function_text(pieces: list[Piece]) -> str:
    """A function of two tensors and a flag that holds all pieces."""
    body = "\n".join(piece.lines for piece in pieces)
    return "def f(t, u, flag=None, *rest, **named):\n" + textwrap.indent(
        f"{body}\n"
        "if t is u: t = t + 100\n"
        "t = t + u.sum() * (1 if flag is None else flag)\n"
        "for extra in rest: t = t - extra\n"
        "for name, value in named.items(): t = t + len(name) * value\n"
        "return t, u.shape, t.requires_grad\n",
        "    ",
    )
