"""Further statements for the random programs: classes made in the function, jumps through `finally`,
generators, matching, star arguments, dict and set algebra, writes to tensors, floats, random numbers."""

# ruff: noqa: E501  (program text in rows)

from __future__ import annotations

from collections.abc import Callable

from random_statements import StatementParts

PRELUDE = """
import abc
import enum
import random
COUNT = 0

class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3

class Named:
    def __set_name__(self, owner, name):
        self.name = name
    def __get__(self, obj, cls=None):
        return self if obj is None else obj.__dict__.get(self.name, -1)
    def __set__(self, obj, value):
        obj.__dict__[self.name] = value * 2

class Shape(abc.ABC):
    __match_args__ = ("w", "h")
    size = Named()
    def __init__(self, w, h=2):
        self.w, self.h = w, h
        self.size = w
    @functools.cached_property
    def area(self):
        STATE["log"].append("area")
        return self.w * self.h
    @abc.abstractmethod
    def grow(self, by): ...
    def __lt__(self, other):
        return self.w < other.w
    def __iter__(self):
        yield self.w
        yield self.h
    def __contains__(self, item):
        return item in (self.w, self.h)
    def __repr__(self):
        return f"{type(self).__name__}({self.w}, {self.h})"

class Box(Shape):
    def grow(self, by):
        self.w += by
        return self

def jumpy(n, log):
    for i in range(4):
        try:
            if i == n:
                return "returned"
            if n > 6:
                break
            if i % 2:
                continue
            log.append(i)
        finally:
            log.append(-i)
    else:
        return "else"
    return "broke"

def shadowing(n):
    try:
        return n
    finally:
        if n > 2:
            return n + 10

def swallow(n):
    while True:
        try:
            raises(n)
        finally:
            break
    return n

def relay(n):
    try:
        got = yield from pair(n)
    except Oops:
        got = "caught"
    finally:
        held = n
    yield got
    return held

def pair(n):
    first = yield n
    second = yield (first or 0) + n
    return second

def spread(a, /, b, *rest, c=3, **named):
    return a + b * 2 + sum(rest) + c * 3 + len(named)

def loud_relay(t):
    for part in (t, t + 1):
        print("part")
        yield part
"""


class ConstructStatements(StatementParts):
    """Statements that `Generator` chooses from besides the others."""

    shout: Callable[[], str]
    raising: Callable[[], str]

    def real(self, depth: int = 0) -> str:
        """An expression that is a float, or an int."""
        r = self.random
        if depth > 1 or r.random() < 0.3:
            return r.choice(["scale", "0.5", "2.0", "scale"])
        inner, other = self.real(depth + 1), self.real(depth + 1)
        return r.choice([
            f"({inner} + {other})", f"({inner} * {self.number(1)})", f"abs({inner} - {other})",
            f"max({inner}, {other})", f"({inner} / 4)", f"round({inner}, 1)",
            f"({inner} if {inner} > {other} else 1.0)", f"float({self.number(1)})", f"({inner} ** 2)",
        ])  # fmt: skip

    def shout_inside(self) -> str:
        """A statement of an inner function that breaks the graph, and binds nothing."""
        if not self.breaks:
            return "pass"
        return self.random.choice(["print('inside', n)", "noisy(x)", "x.sum().item()", "pass"])

    def floats(self) -> None:
        r, t, i = self.random, self.pick(self.tensors), self.pick(self.ints)
        self.emit(
            r.choice([
                f"{t} = {self.tensor(1)} * {self.real()}", f"{t} = {t} + {self.real()}",
                f"STATE['log'].append(f'{{{self.real()}:.3f}}')", f"{i} = int({self.real()}) % 40",
                f"STATE['log'].append({self.real()} < {self.real()})",
                f"{t} = torch.full_like({t}, {self.real()})", f"{t} = {t}.clamp(-{abs(r.randint(0, 3))}.0, {self.real(1)} + 9)",
                f"{i} = 1 if {self.real()} >= 1 else {i}", f"{i} = len(word) + (word == 'b') + bool(flag)",
                f"{t} = {t} if flag else {t} - 1", f"STATE['log'].append(word.upper() * ({i} % 3))",
            ])
        )  # fmt: skip

    def writes(self) -> None:
        """Writes to tensors: of the arguments, of containers, through views."""
        r, t, i = self.random, self.pick(self.tensors), self.pick(self.ints)
        own = self.fresh("t")
        self.emit(
            r.choice([
                "x.add_(1)", "y.mul_(2)", "x[0] = y[1]", "y[:, 1] += 2", "x.copy_(y + 1)",
                f"x[{i} % 2] = {self.real(1)}", "x.view(-1)[0] = 3", "items[1].sub_(1)", "thing.v.add_(1)",
                f"{own} = {self.tensor(1)}.clone(); {own}.add_(x); {t} = {own}",
                f"{own} = {self.tensor(1)} + 0; {own}[:, 0] = {self.number(1)}; {t} = {own}",
                "x += 1", f"{own} = x.t(); {own}.mul_(2)", "x.zero_().add_(y)",
                f"{own} = x[1:]; {own} -= 1; STATE['kept'] = {own}", "table['t'] = x; table['t'].add_(1)",
                "STATE['kept'] = x; thing.kept = x", "items.append(x); items[-1].add_(1); items.pop()",
                "y.data.add_(1)", "torch.add(x, y, out=y)",
            ])
        )  # fmt: skip

    def random_numbers(self) -> None:
        r, t, i = self.random, self.pick(self.tensors), self.pick(self.ints)
        self.emit(
            r.choice([
                f"{t} = {t} + torch.rand_like({t})", f"{i} = random.randint(0, 5)",
                f"{i} = random.choice([1, 2, {i}])", f"{t} = torch.nn.functional.dropout({t}, 0.5)",
                "STATE['log'].append(round(random.random(), 3))", f"{t} = {t} * torch.randn(3)",
                f"{i} = random.sample(range(9), 2)[0]", f"{t} = {t} * random.random()",
                f"{t} = {t} + random.uniform(-1, {self.number(1)})", f"random.seed({self.number(1)})",
                f"{t} = {t} + random.randrange(1, 5) * random.gauss(0, 1)",
                f"STATE['log'].append(random.randint(0, 9) + {i})",
                f"if random.random() < 0.5: {t} = {t} - 1",
                "items.append(random.choice([0.5, 1.5]))",
                f"{i} = {i} + random.getrandbits(2)", "random.shuffle(STATE['log'])",
                "if random.random() < 0.3: random.setstate(random.getstate())",
                f"{t} = {t} * sum(random.choices([1, 2, 3], k=2))",
            ])
        )  # fmt: skip

    def local_class(self) -> None:
        r, name, o = self.random, self.fresh("K"), self.fresh("o")
        i, t = self.pick(self.ints), self.pick(self.tensors)
        base = r.choice(["", "(Base)", "(Thing)", "(Box)", "(dict)", "(torch.nn.Module)"])
        self.emit(f"class {name}{base}:")
        self.emit(f"    limit = {self.number(1)}")
        self.emit(f"    names = [f'n{{q}}' for q in range({r.randint(0, 3)})]")
        if base in ("(dict)", "(torch.nn.Module)", ""):
            self.emit("    def __init__(self, v=1):")
            self.emit("        super().__init__()")
            self.emit(f"        self.v = v + {i}")
        self.emit(
            f"    def scaled(self, t, by={self.number(2)}): return t * getattr(self, 'v', 2) + {i} + by"
        )
        if r.random() < 0.4:
            self.emit("    @property")
            self.emit("    def twice(self): return self.limit * 2")
        if r.random() < 0.4:
            self.emit("    @staticmethod")
            self.emit("    def still(a): return a + 1")
            self.emit("    @classmethod")
            self.emit("    def told(cls): return cls.limit + len(cls.names)")
            self.emit(f"{i} = {name}.still({name}.told()) % 40")
        self.emit(f"{o} = {name}({self.number(1)})")
        self.emit(f"{t} = {o}.scaled({t})")
        if base == "(torch.nn.Module)" and r.random() < 0.5:
            self.emit(f"{name}.forward = lambda self, t: t - 1")
            self.emit(f"{t} = {o}({t})")
        self.emit(
            r.choice([
                f"{i} = {name}.limit + isinstance({o}, {name})", f"STATE['log'].append(type({o}).__name__)",
                f"{o}.limit = {i}; {i} = {o}.limit - {name}.limit", self.shout(),
                f"STATE['log'].append({name}.__mro__[1].__name__)", f"{i} = getattr({o}, 'twice', 3)",
                f"STATE['log'].append(issubclass({name}, Base))",
            ])
        )  # fmt: skip

    def shapes(self) -> None:
        r, o, i = self.random, self.fresh("o"), self.pick(self.ints)
        self.emit(f"{o} = Box({self.number(1)}, {r.randint(1, 3)})")
        for _ in range(r.randint(1, 3)):
            self.emit(
                r.choice([
                    f"{i} = {o}.area % 50", f"{o}.grow({self.number(1)})", f"{i} = {o}.size + Box.size.name.count('s')",
                    f"{o}.size = {i}", f"{i} = sum({o}) % 60", f"STATE['log'].append(repr({o}))",
                    f"{i} = sorted([{o}, Box(1), Box({i})])[0].w", f"wide, high = {o}; {i} = wide - high",
                    f"STATE['log'].append({i} in {o})", f"{i} = max({o}, Box(2)).h",
                    f"try: {i} = Shape(1)\nexcept TypeError: {i} = 4", "STATE['log'].append(Level(3).name)",
                    f"{i} = Level.LOW + {i}", f"STATE['log'].append([level.name for level in Level if level > {i}])",
                    f"with contextlib.ExitStack() as stack: stack.callback(STATE['log'].append, {i}); stack.enter_context(thing)",
                ]).replace("\n", "\n" + "    " * self.depth)
            )  # fmt: skip

    def jumps(self) -> None:
        r, i, log = self.random, self.pick(self.ints), "STATE['log']"
        choice = r.randrange(3)
        if choice == 0:
            self.emit(
                r.choice([
                    f"{log}.append(jumpy({self.number(1)}, {log}))", f"{i} = shadowing({self.number(1)}) % 50",
                    f"{i} = swallow({self.number(1)})", f"{log}.append([jumpy(v, {log}) for v in (1, {i})])",
                ])
            )  # fmt: skip
            return
        name, v = self.fresh("f"), self.fresh("v")
        self.emit(f"def {name}({v}, t):")
        self.depth += 1
        self.emit(f"for q in {r.choice(['range(3)', '(4, 1, 2)', 'rows(0, 3)'])}:")
        self.depth += 1
        manager = choice == 2
        self.emit(
            f"with {r.choice(['thing', 'contextlib.suppress(Oops)', 'scope(' + log + ', True)'])}:"
            if manager
            else "try:"
        )
        self.depth += 1
        for _ in range(2):
            self.emit(
                f"if {v} == q + {r.randint(0, 2)}: {r.choice(['break', 'continue', 'return t + q', 'raise Oops(q)'])}"
            )
        self.emit(self.shout_inside())
        self.emit("t = t + q")
        self.depth -= 1
        if not manager:
            if r.random() < 0.5:
                self.emit("except Oops as oops:")
                self.emit(
                    f"    {log}.append(str(oops)); {r.choice(['continue', 'break', 'pass', 'return t'])}"
                )
            self.emit("finally:")
            self.emit(f"    {log}.append(q)")
            self.emit(f"    {self.shout_inside()}")
            if r.random() < 0.2:
                self.emit(f"    if q > 1: {r.choice(['break', 'continue', 'return t - 1'])}")
        self.depth -= 1
        if r.random() < 0.4:
            self.emit(f"else: {log}.append('else')")
        self.emit("return t * 2")
        self.depth -= 1
        t = self.pick(self.tensors)
        self.emit("try:")
        self.emit(f"    {t} = {name}({self.number(1)}, {self.tensor(1)})")
        self.emit("except Oops as oops:")
        self.emit(f"    {log}.append(repr(oops))")

    def relays(self) -> None:
        r, g, i, log = self.random, self.fresh("g"), self.pick(self.ints), "STATE['log']"
        t = self.pick(self.tensors)
        self.emit(f"{g} = relay({self.number(1)})")
        self.emit(
            r.choice([
                f"{i} = next({g}); {log}.append({g}.send({i})); {log}.append(next({g}))",
                f"next({g}); {log}.append({g}.throw(Oops('r')))", f"{log}.append(list({g}))",
                f"{log}.append([*zip({g}, range(2))])", f"next({g}); {g}.close(); {log}.append(next({g}, 'shut'))",
                f"{i} = next({g}); {self.shout()}; {log}.append({g}.send(2))" if self.breaks else f"{i} = next({g})",
                f"{t} = sum(loud_relay({t}))" if self.breaks else f"{t} = sum(rows({t}, 2))",
                f"{log}.append(dict(enumerate({g}, 3)))", f"{log}.append(any(v == {i} for v in {g}))",
            ])
        )  # fmt: skip

    def matching(self) -> None:
        r, i = self.random, self.pick(self.ints)
        subject = r.choice([
            f"Box({i}, 2)", f"[1, {i}, {{'k': ({self.number(1)}, 2)}}]", f"{{'kind': word, 'n': {i}}}",
            "word", "(flag, None)", f"Level(1 if {self.condition(1)} else 3)", self.pick(self.lists),
            f"(x.shape, {i})",
        ])  # fmt: skip
        self.emit(f"match {subject}:")
        rows = [
            f"case Box(w, h=2) if w > 2: {i} = w", f"case Box(w) | [w, *_, 7]: {i} = 8",
            f"case [1, a, {{'k': (b, 2) as c}}]: {i} = len(c) + (a == b)", f"case {{'kind': 'a' | 'b' as q, **more}}: {i} = len(more) + len(q)",
            f"case 'a': {i} = 3", f"case (True, None) | (False, None): {i} = 9", f"case Level.HIGH: {i} = 10",
            f"case [] | [_]: {i} = 11", f"case [int(), *more] if len(more) < 4: {i} = len(more)",
            f"case ((2, k), int(m)): {i} = k + (m > 2)",
        ]  # fmt: skip
        r.shuffle(rows)
        for row in rows[: r.randint(3, 8)]:
            self.emit("    " + row)
        self.emit("    case other:")
        self.emit(f"        {i} = 12")
        self.emit(f"        {self.shout()}")

    def stars(self) -> None:
        r, i, items = self.random, self.pick(self.ints), f"[{self.number(1)}, {self.number(1)}]"
        self.emit(
            r.choice([
                f"{i} = spread(1, *{items}) % 60", f"{i} = spread(*{items}, c={self.number(1)}, z=3) % 60",
                f"{i} = spread({i}, **{{'b': 2, 'c': {self.number(1)}}}) % 60", f"{i} = spread(1, 2, *(), **dict(q=1, w=2)) % 60",
                f"{i} = (lambda *a, **k: len(a) + len(k))(*range({i} % 4), **{{'p': 1}})",
                f"{i} = len([*{items}, *{self.pick(self.lists)}]) + len({{**{self.pick(self.dicts)}, 'zz': 1}})",
                f"head, *tail = [{i}, *{items}]; {i} = head + len(tail)", f"(*init, last), _ = {items}, 2; {i} = last",
                f"try: {i} = spread({i}, a=2)\nexcept TypeError as wrong: STATE['log'].append(str(wrong))",
            ]).replace("\n", "\n" + "    " * self.depth)
        )  # fmt: skip

    def algebra(self) -> None:
        r, i, d = self.random, self.pick(self.ints), self.pick(self.dicts)
        s, log = self.fresh("s"), "STATE['log']"
        keys = f"{{str(k): 1 for k in {d}}}"
        self.emit(
            r.choice([
                f"{s} = {{1, 2, {i}}}; {s} |= {{5}}; {s} -= {{2}}; {i} = len({s} ^ {{1, 9}})",
                f"{s} = frozenset(({i}, 3)); {log}.append(({s} <= {{3, {i}, 5}}, 3 in {s}, {s}.isdisjoint({{8}})))",
                f"{s} = {keys}; {s} |= {{'m': {i}}}; {log}.append(sorted({s}))", f"{log}.append(len({keys}.keys() - {{'a'}}))",
                f"{s} = {{(1, {i}): 'p', None: 'q', 2.5: 'r'}}; {log}.append([*{s}.values()]); {s}.popitem(); {i} = len({s})",
                f"for k, v in list({d}.items()): {log}.append(str(k))", f"{log}.append([*reversed({keys})])",
                f"{s} = {{}}; {s}.setdefault({i}, []).append(1); {s}.setdefault({i}, []).append(2); {log}.append({s})",
                f"{s} = dict.fromkeys('ab', {i}); del {s}['a']; {log}.append({s} == {{'b': {i}}})",
                f"{s} = collections.OrderedDict(a=1, b={i}); {s}.move_to_end('a'); {log}.append(list({s}))",
                f"{i} = len({{v % 2 for v in range({i} % 6)}}) + sum({{k: v for v, k in enumerate('abc') if v}}.values())",
                f"{s} = sorted([('b', {i}), ('a', 2), ('b', 1)], key=lambda p: (p[0], -p[1]), reverse={r.choice(['True', 'False'])}); {log}.append({s})",
                f"{s} = [{i}, 3, {self.number(1)}, 0]; {s}.sort(key=lambda v: v % 3); {log}.append({s})",
                f"{log}.append(sorted(['bb', 'a', word], key=len)); {i} = min([3, {i}], key=lambda v: -v)",
                f"{log}.append(list(itertools.groupby(sorted([1, {i}, 1]))) and 1)",
            ])
        )  # fmt: skip

    def formats(self) -> None:
        i, log = self.pick(self.ints), "STATE['log']"
        self.emit(
            self.random.choice([
                f"{log}.append(f'{{{i}:>{{n % 5 + 1}}}}|{{word!r:^6}}|{{scale:+.2e}}')", f"{log}.append(f'{{{i} = }}{{flag!s}}')",
                f"{log}.append(word.join(map(str, [{i}, 2])).split(word))", f"{log}.append(f'{{(lambda v: v + 1)({i})}}{{x.shape}}{{x.dtype}}')",
                f"{log}.append('%s-%05.1f-%x' % (word, scale, {i} % 16))", f"{log}.append('{{0}}{{1!r}}{{k[0]}}'.format({i}, word, k=[1]))",
            ])
        )  # fmt: skip

    def walrus(self) -> None:
        i, w, t = self.pick(self.ints), self.fresh("w"), self.pick(self.tensors)
        self.emit(
            self.random.choice([
                f"if ({w} := {self.number(1)}) > 2: {i} = {w}", f"{i} = ({w} := {i} % 3) + {w}",
                f"while ({i} := {i} - 3) > 3: {t} = {t} + {i}", f"{i} = len([{w} for q in range(3) if ({w} := q * {i}) < 5])",
                f"{t} = ({w} := {self.tensor(1)}) * {w}.shape[0]", f"{i} = [{w} := {i}, {w} + 1][1]",
            ])
        )  # fmt: skip

    def global_name(self) -> None:
        i, f = self.pick(self.ints), self.fresh("f")
        self.emit(f"def {f}(v):")
        self.emit("    global COUNT")
        self.emit(f"    COUNT {self.random.choice(['+=', '-=', '='])} v")
        self.emit(f"    {self.shout_inside()}")
        self.emit("    return COUNT")
        self.emit(f"{i} = {f}({self.number(1)}) % 30 + COUNT % 7")

    def deep_nonlocal(self) -> None:
        i, f, c, t = self.pick(self.ints), self.fresh("f"), self.fresh("c"), self.pick(self.tensors)
        self.emit(f"{c} = [{self.number(1)}]")
        self.emit(f"def {f}(v):")
        self.emit("    total = v")
        self.emit("    def inner(w):")
        self.emit("        nonlocal total")
        self.emit("        total += w")
        self.emit(f"        {c}.append(total)")
        self.emit(f"        {self.shout_inside()}")
        self.emit("        return inner if w < 2 else total")
        self.emit("    return inner")
        self.emit(f"{i} = {f}({self.number(1)})(1)(5) % 40 + len({c})")
        self.emit(f"{t} = {t} + {c}[-1]")
