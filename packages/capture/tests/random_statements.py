"""More statements for the random programs: exceptions, managers, generators, classes, closures."""

# ruff: noqa: E501  (program text in rows)

from __future__ import annotations

import random
from collections.abc import Callable

PRELUDE = """
import contextlib
import operator
import sys

class Noisy:
    def __init__(self, name, swallow=()):
        self.name, self.swallow = name, swallow
    def __enter__(self):
        print("enter", self.name)
        return self
    def __exit__(self, kind, error, tb):
        print("exit", self.name, kind and kind.__name__)
        return kind is not None and issubclass(kind, self.swallow)

@contextlib.contextmanager
def scope(log, quiet=False):
    log.append("in")
    try:
        yield len(log)
    except Oops:
        log.append("oops")
        if not quiet:
            raise
    finally:
        log.append("out")

class Base:
    kind = "base"
    def __init__(self, v):
        self.v = v
    def __call__(self, t):
        return t + self.v
    def __getitem__(self, i):
        return self.v + i
    def __len__(self):
        return 2
    def __add__(self, other):
        return type(self)(self.v + getattr(other, "v", other))
    def __eq__(self, other):
        return isinstance(other, Base) and self.v == other.v
    __hash__ = None
    @classmethod
    def make(cls, v):
        return cls(v)
    @staticmethod
    def twice(t):
        return t * 2
    def __getattr__(self, name):
        if name.startswith("get_"):
            return lambda: name[4:]
        raise AttributeError(name)

class Derived(Base):
    kind = "derived"
    __slots__ = ("extra",)
    def __init__(self, v, extra=1):
        super().__init__(v)
        self.extra = extra
    def __call__(self, t):
        return super().__call__(t) * self.extra
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
    @property
    def both(self):
        return self.v + self.extra
    @both.setter
    def both(self, value):
        self.v, self.extra = value, value + 1

def fussy(n, log):
    try:
        if n % 3 == 0:
            raise Oops(n)
        if n % 3 == 1:
            return n
        log.append("fell")
    except Oops as error:
        log.append(str(error))
        if n > 3:
            raise KeyError(n) from error
    else:
        log.append("else")
    finally:
        log.append("finally")
    return -n

def guarded(items):
    try:
        for item in items:
            got = yield item
            if got is not None:
                yield got + 1
    except Oops as error:
        yield 99
    finally:
        # Nothing that is seen: when an abandoned generator dies is not the same across a break.
        item = None

def delegating(n):
    total = yield from echo(n)
    yield total
    yield from (i for i in range(2))
"""


class StatementParts:
    """What the statements of all kinds are made with; `random_programs.Generator` gives it."""

    random: random.Random
    breaks: bool
    depth: int
    tensors: list[str]
    ints: list[str]
    lists: list[str]
    dicts: list[str]
    emit: Callable[[str], None]
    fresh: Callable[[str], str]
    pick: Callable[[list[str]], str]
    number: Callable[..., str]
    tensor: Callable[..., str]
    condition: Callable[..., str]
    block: Callable[[int], None]


class MoreStatements(StatementParts):
    """Statements that `Generator` chooses from besides its own."""

    def shout(self) -> str:
        """A statement that breaks the graph, or does nothing in programs without breaks."""
        if not self.breaks:
            return "pass"
        i, t = self.pick(self.ints), self.pick(self.tensors)
        return self.random.choice([
            f"print({i})", f"{t} = noisy({t})", f"{i} = int({t}.sum()) % 7",
            "print(repr(sys.exc_info()[1]), len(STATE['log']))",
        ])  # fmt: skip

    def raising(self) -> str:
        """A statement that may raise."""
        i = self.pick(self.ints)
        return self.random.choice([
            f"raises({self.number(1)})", f"fussy({self.number(1)}, STATE['log'])",
            f"{i} = fussy({i} % 5, STATE['log'])", f"{self.pick(self.dicts)}['none']",
            f"{i} = int('x' * ({i} % 2))", f"{i} = [4, 5][{i} % 4]",
            f"assert {self.condition(1)}, 'asserted'", f"({i}).nothing", "raise Oops('plain')",
            f"{i} = next(iter([{i}] * ({i} % 2)))",
        ])  # fmt: skip

    def nested_try(self) -> None:
        r, log = self.random, "STATE['log']"
        self.emit("try:")
        self.depth += 1
        self.emit("try:")
        self.block(1)
        self.depth += 1
        self.emit(self.raising())
        self.depth -= 1
        kinds = "(Oops, KeyError)" if r.random() < 0.6 else "ArithmeticError"
        self.emit(f"except {kinds} as first:")
        self.block(1)
        self.depth += 1
        self.emit(f"{log}.append((repr(first), repr(first.__context__)))")
        self.emit(self.shout())
        if r.random() < 0.5:
            self.emit(r.choice(["raise", "raise IndexError('new') from first", "raise first",
                                "raise KeyError('chain')", self.raising()]))  # fmt: skip
        self.depth -= 1
        if r.random() < 0.5:
            self.emit("else:")
            self.block(1)
        if r.random() < 0.6:
            self.emit("finally:")
            self.block(1)
            self.depth += 1
            self.emit(self.shout())
            self.depth -= 1
        self.depth -= 1
        self.emit("except Exception as outer:")
        self.depth += 1
        self.emit(f"{log}.append((type(outer), str(outer), repr(outer.__cause__)))")
        self.emit(self.shout())
        self.depth -= 1
        self.block(1)

    def loop_with_handlers(self) -> None:
        r, i = self.random, self.fresh("i")
        self.emit(f"for {i} in range({r.randint(1, 4)}):")
        self.ints.append(i)
        self.depth += 1
        self.emit("try:")
        self.block(1)
        self.depth += 1
        if r.random() < 0.4:
            self.emit(f"if {self.condition(1)}: {r.choice(['break', 'continue'])}")
        self.emit(self.raising())
        self.depth -= 1
        self.emit("except (ValueError, LookupError, AssertionError, AttributeError) as error:")
        self.depth += 1
        self.emit("STATE['log'].append(str(error))")
        self.emit(self.shout())
        self.emit(r.choice(["continue", "break", "pass", "del error; error = 1"]))
        self.depth -= 1
        if r.random() < 0.5:
            self.emit("finally:")
            self.block(1)
        self.depth -= 1
        self.ints.remove(i)
        if r.random() < 0.4:
            self.emit("else:")
            self.block(1)

    def managers(self) -> None:
        r, log = self.random, "STATE['log']"
        swallow = r.choice(["()", "(KeyError,)", "(Exception,)"])
        choices = [
            f"contextlib.suppress({r.choice(['Oops', 'KeyError, Oops', 'Exception'])})",
            f"scope({log}, {r.choice(['True', 'False'])})", "contextlib.nullcontext(3) as held",
            "torch.set_grad_enabled(False)", "thing as held",
        ]  # fmt: skip
        if self.breaks:
            choices += [f"Noisy('a', {swallow})", f"Noisy('b', {swallow}), thing"]
        self.emit("try:")
        self.depth += 1
        self.emit(f"with {r.choice(choices)}:")
        self.block(2)
        self.depth += 1
        self.emit(r.choice([self.raising(), self.shout(), "pass"]))
        self.depth -= 2
        self.emit("except Exception as error:")
        self.depth += 1
        self.emit(f"{log}.append(type(error).__name__)")
        self.depth -= 1

    def generators(self) -> None:
        r, g, i = self.random, self.fresh("g"), self.pick(self.ints)
        self.emit(
            r.choice([
                f"{g} = guarded([{self.number(1)}, 2, 3]); {i} = next({g}); {g}.close()",
                f"{g} = guarded([{self.number(1)}, 2]); next({g}); {i} = {g}.throw(Oops('t'))",
                f"{g} = guarded([1, 2, 3]); next({g}); {i} = {g}.send({self.number(1)}) % 40",
                f"{g} = delegating({self.number(1)}); {i} = ({g}.send(None) + {g}.send(3)) % 40",
                f"{i} = sum(guarded([{self.number(1)}, {i}])) % 40",
                f"{g} = (v * 2 for v in [1, {i}, 3] if v); {i} = next({g}) + sum({g})",
                f"{i} = max((len(str(v)) for v in guarded([{i}, 10])), default=0)",
            ])
        )  # fmt: skip
        if r.random() < 0.3:
            self.emit(self.shout())
            self.emit(f"STATE['log'].append(next({g}, 'no more'))" if g in self._last() else "pass")

    def _last(self) -> str:
        lines: list[str] = getattr(self, "lines")  # noqa: B009
        return "".join(lines[-2:])

    def classes(self) -> None:
        r, o, i, t = self.random, self.fresh("o"), self.pick(self.ints), self.pick(self.tensors)
        maker = r.choice([f"Base({i})", f"Derived({self.number(1)}, 2)", f"Derived.make({i})"])
        self.emit(f"{o} = {maker}")
        for _ in range(r.randint(1, 3)):
            self.emit(
                r.choice([
                    f"{t} = {o}({self.tensor(1)})", f"{i} = {o}[{self.number(1)}] % 60",
                    f"{o} = {o} + {self.number(1)}", f"{i} = len({o}) + ({o} == Base({i}))",
                    f"STATE['log'].append({o}.get_name() + {o}.kind)", f"{t} = {o}.twice({t})",
                    f"{o}.both = {self.number(1)}", f"{o}.v = {o}.v + 1",
                    f"{i} = getattr({o}, 'both', 4) if isinstance({o}, Derived) else 5",
                    f"{o} = {o} + Base(2)", f"STATE['log'].append(sorted(vars({o})))",
                ])
            )  # fmt: skip
        if self.breaks and r.random() < 0.15:
            name = self.fresh("K")
            self.emit(f"class {name}(Base):")
            self.emit(f"    limit = {self.number(1)}")
            self.emit(f"    def scaled(self, t): return t * self.v + {i}")
            self.emit(f"{t} = {name}({self.number(1)}).scaled({t}); {i} = {name}.limit")

    def closures(self) -> None:
        r, f, c, i = self.random, self.fresh("f"), self.fresh("c"), self.pick(self.ints)
        t = self.pick(self.tensors)
        self.emit(f"{c} = {self.number(1)}")
        self.emit(f"def {f}(v, *more, w={self.number(1)}, **named):")
        self.emit(f"    nonlocal {c}")
        if r.random() < 0.4:
            self.emit("    try:")
            self.emit(f"        {c} = {c} + v + len(more)")
            self.emit("        if v > 4: raise Oops(v)")
            self.emit("    except Oops:")
            self.emit("        pass")
            self.emit(f"        {c} = 1")
            self.emit("    finally:")
            self.emit(f"        {c} += 1")
        else:
            self.emit(f"    {c} += v + w + len(named)")
        self.emit(f"    return lambda u: u + {c} + v")
        self.emit(f"{t} = {f}({self.number(1)}, *{self.pick(self.lists)}[:2], z=1)({t})")
        if r.random() < 0.5:
            self.emit(self.shout())
            self.emit(f"{c} = {c} * 2")
        self.emit(f"{t} = {f}(1, **{{'w': {self.number(1)}}})({self.tensor(1)}); {i} = {c} % 30")

    def comprehensions(self) -> None:
        r, name, i = self.random, self.fresh("l"), self.pick(self.ints)
        loud = "noisy" if self.breaks and r.random() < 0.3 else "torch.relu"
        self.emit(
            r.choice([
                f"{name} = [{loud}({self.tensor(1)}) for _ in range({r.randint(0, 3)})]",
                f"{name} = [a * b for a in range(3) if a != {i} for b in (a, {i})]",
                f"{name} = list({{k: v for k, v in zip('abc', [{self.number(1)}, {i}, 3])}}.items())",
                f"{name} = [y1 for v in (1, {i}) if (y1 := v + 1) > 1]",
                f"{name} = [(lambda: v + w)() for v in range(2) for w in [{i}]]",
                f"{name} = [g() for g in [lambda: v for v in range({r.randint(1, 3)})]]",
                f"{name} = [[w for w in range(v)] for v in range(3)][-1]",
                f"{name} = sorted({{v % 3 for v in ({i}, 4, {self.number(1)})}})",
                f"{name} = [{loud}(t1).sum() for t1 in ({self.tensor(1)}, {self.tensor(1)})]",
            ])
        )  # fmt: skip
        self.lists.append(name)

    def stepping(self) -> None:
        """A loop over an iterator that is begun before, with breaks before and inside of it."""
        r, i, t = self.random, self.pick(self.ints), self.pick(self.tensors)
        it, items, log = self.fresh("it"), self.fresh("l"), "STATE['log']"
        self.emit(f"{items} = [1, {i}, {self.number(1)}, 4]")
        inner = [
            f"iter({items})", f"reversed({items})", f"iter(range({r.randint(0, 6)}))",
            f"iter({{'a': {i}, 'b': 2, 'c': 3}}.items())", "iter({3, 1, 2})", f"iter(tuple({items}))",
            "reversed({'x': 1, 'y': 2})", f"itertools.repeat({i}, 3)", "iter('pqrs')",
            f"(v + 1 for v in {items})",
        ]  # fmt: skip
        a, b = r.choice(inner), r.choice(inner)
        outer = [
            a, f"enumerate({a}, {self.number(2)})", f"zip({a}, {b})", f"enumerate(zip({a}, {b}))",
            f"map(lambda v, w: (v, w, {i}), {a}, {b})", f"filter(None, {a})",
            f"zip({a}, {b}, strict=True)", f"zip(enumerate({a}), {b})", f"itertools.chain({a}, {b})",
            f"itertools.islice({a}, 3)",
        ]  # fmt: skip
        self.emit(f"{it} = {r.choice(outer)}")
        self.emit("try:")
        if r.random() < 0.6:
            self.emit(f"    {log}.append(next({it}, 'none'))")
        self.emit(f"    {self.shout()}")
        self.emit(f"    for v in {it}:")
        self.emit(f"        {log}.append(v); {t} = {t} + 1")
        for line in r.sample([
            f"if {self.condition(1)}: {self.shout()}", f"if len({items}) < 6: {items}.append(9)",
            f"if len({log}) % 3 == 1: break", f"if {items}: {items}.pop()", f"next({it}, None)",
            self.shout(), f"{items}[0:1] = [7]",
        ], r.randint(0, 2)):  # fmt: skip
            self.emit(f"        {line}")
        self.emit("except (RuntimeError, ValueError) as error:")
        self.emit(f"    {log}.append(str(error))")
        if r.random() < 0.5:
            self.emit(f"{i} = sum(1 for _ in {it}); {log}.append(next({it}, None))")
        self.lists.append(items)

    def deleting(self) -> None:
        name, i = self.fresh("d"), self.pick(self.ints)
        self.emit(f"{name} = {self.number(1)}")
        self.emit(f"if {self.condition(1)}: del {name}")
        self.emit("try:")
        self.emit(f"    {i} = {name} + 1")
        self.emit("except UnboundLocalError:")
        self.emit(f"    {self.shout()}")
        self.emit(f"    {i} = 0")

    def operators(self) -> None:
        r, i, d = self.random, self.pick(self.ints), self.pick(self.dicts)
        self.emit(
            r.choice([
                f"{i} = operator.itemgetter(1)([1, {i}]) + operator.add({i}, 1)",
                f"{i} = len(list(itertools.chain([{i}], range(2), {self.pick(self.lists)})))",
                f"{i} = list(itertools.islice(itertools.count({i}), 3))[-1] % 50",
                f"{i} = sum(map(operator.mul, [1, {i}], (2, 3))) % 50",
                f"{i} = collections.Counter([{i}, 1, 1])[1]",
                f"{i} = functools.partial(min, {i})(3, 4)",
                f"{i} = dict(zip(['p', 'q'], ({i}, 2)))['p']; {d} = dict({d}, p={i})",
                f"{i} = len({d} | {{'m': 1}}) + len({d}.keys() & {{'a', 'm'}})",
                f"STATE['log'].append('{{:>3}}|{{!r}}'.format({i}, 'a') + '%d' % {i})",
                f"{i} = [*map(str, range({i} % 4)), 'end'].index('end')",
                f"{i} = divmod({i}, 3)[0] + round({i} / 2) + abs({i}) + ({i} ** 2) % 7",
                f"{i} = 1 if 0 < {i} <= 5 != 3 else ({i} if {i} is not None else 2)",
                f"first1, *rest1 = [{i}, *range(2)]; {i} = first1 + len(rest1)",
            ])
        )  # fmt: skip
