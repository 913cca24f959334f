"""Random Python programs over tensors, and the comparison of each captured with CPython's own run.

`python tests/random_programs.py --first 0 --count 5000 --seconds 270 --show` runs many (about 0.15 s
each) and prints the seeds, and with `--show` the programs, for which captured and eager differ. One
seed always gives one program. Each is called five times, the numbers, words, sizes and flags among
its arguments changing between calls; compared are the result, the exception, what was printed, what
became of the arguments and of global state, gradients, which objects are the same, and the states
of the random number generators.
"""

# ruff: noqa: E501  (program text in rows)

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import io
import random
import signal
import sys
import time
import warnings
from typing import Any

import random_constructs
import random_statements
import torch
from construct_cases import CountingBackend, same, told
from dovetail_capture import optimize

PRELUDE = """
import collections
import functools
import itertools
import traceback
from dataclasses import dataclass
import torch
STATE = {"n": 0, "log": []}

class Thing:
    scale = 2
    def __init__(self, v):
        self.v = v
        self.seen = []
    @property
    def double(self):
        return self.v * 2
    def push(self, item):
        self.seen.append(item)
        return len(self.seen)
    def __enter__(self):
        self.push("in")
        return self
    def __exit__(self, kind, error, tb):
        self.push("out" if kind is None else kind.__name__)
        return kind is KeyError

class Oops(ValueError):
    pass

def helper(t, k=2, *rest, flag=False):
    if flag:
        return t - k
    return t * k + len(rest)

def noisy(t):
    print("noisy")
    return t + 1

def raises(n):
    if n % 2:
        raise Oops(f"odd {n}")
    return n

@dataclass
class Pair:
    left: object
    right: int = 1

    def total(self):
        return self.left * self.right

class Bag(dict):
    def __missing__(self, key):
        return 7

def count_down(t, n):
    return t if n <= 0 else count_down(t + n, n - 1)

def scaled(factor):
    def apply(t, *extra):
        return t * factor + sum(extra)
    return apply

def echo(start):
    got = start
    while True:
        got = yield got * 2
        if got is None:
            return "done"

def rows(t, n):
    for i in range(n):
        yield t + i
"""


PRELUDE += random_statements.PRELUDE + random_constructs.PRELUDE
_PRELUDE_CODE = compile(PRELUDE, "<prelude>", "exec")


class Generator(random_statements.MoreStatements, random_constructs.ConstructStatements):
    """Writes one program. Names in scope are kept by kind: tensors, ints, lists, dicts."""

    def __init__(self, seed: int, breaks: bool) -> None:
        self.random = random.Random(seed)
        self.breaks = breaks
        self.writing = seed % 4 == 0  # may write to its arguments
        self.lines: list[str] = []
        self.depth = 1
        self.budget = self.random.randint(4, 12)
        self.loops = 0
        self.counter = 0
        self.tensors = ["x", "y"]
        self.ints = ["n"]
        self.lists = ["items"]
        self.dicts = ["table"]

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def pick(self, names: list[str]) -> str:
        return self.random.choice(names)

    # --- expressions -----------------------------------------------------------------------------

    def number(self, depth: int = 0) -> str:
        r = self.random
        choice = r.randrange(9 if depth < 2 else 3)
        if choice == 0:
            return str(r.randint(-3, 9))
        if choice in (1, 2):
            return self.pick(self.ints)
        if choice == 3:
            op = r.choice(["+", "-", "*", "%", "//"])
            right = self.number(depth + 1)
            if op in "%//":
                right = str(r.choice([2, 3, 5]))
            return f"({self.number(depth + 1)} {op} {right})"
        if choice == 4:
            return f"len({self.pick(self.lists)})"
        if choice == 5:
            return f"{self.pick(self.tensors)}.shape[{r.choice([0, 1, -1])}]"
        if choice == 6:
            return f'{self.pick(self.dicts)}.get("{r.choice(["a", "b", "zz"])}", {r.randint(0, 3)})'
        if choice == 7:
            return f"min({self.number(depth + 1)}, {self.number(depth + 1)})"
        return f"(1 if {self.condition(depth + 1)} else {self.number(depth + 1)})"

    def condition(self, depth: int = 0) -> str:
        r = self.random
        choice = r.randrange(8)
        if choice < 3:
            op = r.choice(["<", ">", "==", "!=", "<="])
            return f"{self.number(depth + 1)} {op} {self.number(depth + 1)}"
        if choice == 3:
            return f"{self.pick(self.lists)}"
        if choice == 4:
            return f'"{r.choice(["a", "zz"])}" in {self.pick(self.dicts)}'
        if choice == 5:
            return f"isinstance({self.pick(self.tensors)}, torch.Tensor)"
        if choice == 6 and depth < 2:
            joint = r.choice(["and", "or"])
            return f"({self.condition(depth + 1)} {joint} not {self.condition(depth + 1)})"
        if self.breaks and choice == 7 and r.random() < 0.3:
            return f"({self.pick(self.tensors)}.sum() > {r.randint(-5, 20)})"
        return f"{self.pick(self.tensors)}.dim() == 2"

    def tensor(self, depth: int = 0) -> str:
        r = self.random
        name = self.pick(self.tensors)
        if depth > 1:
            return name
        inner = lambda: self.tensor(depth + 1)  # noqa: E731
        options = [
            lambda: f"({inner()} + {inner()})",
            lambda: f"({inner()} * {r.randint(1, 3)})",
            lambda: f"({inner()} - {self.number(1)})",
            lambda: f"torch.relu({inner()})",
            lambda: f"helper({inner()}, {self.number(1)})",
            lambda: f"helper({inner()}, k={r.randint(1, 3)}, flag={self.condition(1)})",
            lambda: f"helper({inner()}, 2, *{self.pick(self.lists)})",
            lambda: f"thing.double.reshape(1, 1) + {inner()}",
            lambda: f"(lambda t: t * {self.pick(self.ints)})({inner()})",
            lambda: f"torch.where({inner()} > 0, {inner()}, {name})",
            lambda: f"sum([{inner()} for _ in range({r.randint(1, 3)})])",
            lambda: f"{inner()}.clamp(max={r.randint(1, 50)})",
            lambda: f"({inner()} if {self.condition(1)} else {name})",
            lambda: name,
        ]
        if self.breaks and r.random() < 0.08:
            return f"noisy({inner()})"
        return r.choice(options)()

    # --- statements ------------------------------------------------------------------------------

    def block(self, size: int) -> None:
        """An indented block; what it defines is not known to be bound after it."""
        self.depth += 1
        kept = [list(k) for k in (self.tensors, self.ints, self.lists, self.dicts)]
        before = len(self.lines)
        for _ in range(size):
            self.statement()
        if len(self.lines) == before:
            self.emit("pass")
        self.tensors, self.ints, self.lists, self.dicts = kept
        self.depth -= 1

    def statement(self) -> None:
        self.budget -= 1
        if self.budget < 0:
            return
        r = self.random
        simple = [
            self.assign_tensor, self.assign_tensor, self.assign_tensor, self.assign_int,
            self.assign_int, self.list_effect, self.dict_effect, self.thing_effect, self.unpack,
            self.global_effect, self.comprehension, self.text, self.function, self.in_place,
            self.nonlocal_, self.collection, self.match_, self.higher_order, self.generator_,
            self.generators, self.classes, self.closures, self.comprehensions, self.deleting,
            self.stepping, self.stepping,
            self.operators, self.operators, self.floats, self.floats, self.random_numbers,
            self.local_class, self.shapes, self.relays, self.matching, self.stars, self.algebra,
            self.algebra, self.formats, self.walrus, self.global_name, self.deep_nonlocal,
            self.writes if self.writing else self.floats,
        ]  # fmt: skip
        compound = [
            self.if_, self.for_, self.while_, self.try_, self.with_, self.nested_try,
            self.loop_with_handlers, self.managers, self.jumps,
        ]  # fmt: skip
        if self.breaks and r.random() < 0.12:
            self.emit(r.choice([f"print('p', {self.number(1)})", "print(len(STATE['log']))",
                                f"{self.pick(self.ints)} = int({self.pick(self.tensors)}.sum().item()) % 5"]))  # fmt: skip
        elif self.depth < 4 and r.random() < 0.35:
            r.choice(compound)()
        else:
            r.choice(simple)()

    def assign_tensor(self) -> None:
        r = self.random
        value = self.tensor()
        name = self.pick(self.tensors) if r.random() < 0.5 else self.fresh("t")
        if name in self.tensors and r.random() < 0.3:
            self.emit(f"{name} = {name} {r.choice('+-*')} {value}")
        else:
            self.emit(f"{name} = {value}")
        if name not in self.tensors:
            self.tensors.append(name)

    def in_place(self) -> None:
        name = self.pick(self.tensors)
        self.emit(f"{name} = {name}.clone()")
        self.emit(f"{name}{self.random.choice(['.add_(1)', '.mul_(2)', '[0] = 3', '[:, 0] += 1'])}")

    def assign_int(self) -> None:
        name = self.pick(self.ints) if self.random.random() < 0.4 else self.fresh("i")
        op = self.random.choice(["=", "=", "+=", "-="]) if name in self.ints else "="
        self.emit(f"{name} {op} {self.number()}")
        if name not in self.ints:
            self.ints.append(name)

    def list_effect(self) -> None:
        r, name = self.random, self.pick(self.lists)
        value = r.choice([self.number, self.tensor])()
        self.emit(
            r.choice([
                f"{name}.append({value})", f"{name}.insert(0, {value})", f"{name} += [{value}]",
                f"{name}[len({name}):] = [{value}, 1]", f"{name}.extend((1, {value}))",
                f"{name}.append({name}.pop()) if {name} else None", f"{name}.reverse()",
                f"del {name}[3:]",
            ])
        )  # fmt: skip

    def dict_effect(self) -> None:
        r, name, key = self.random, self.pick(self.dicts), self.random.choice("abc")
        self.emit(
            r.choice([
                f"{name}[{key!r}] = {self.number()}", f"{name}.pop({key!r}, None)",
                f"{name}.setdefault({key!r}, {self.number(1)})", f"{name}.update(z={self.number(1)})",
                f"{name} = {{**{name}, 'q': {self.number(1)}}}",
            ])
        )  # fmt: skip

    def thing_effect(self) -> None:
        r = self.random
        self.emit(
            r.choice([
                f"thing.v = thing.v + {self.number(1)}", f"thing.push({self.number(1)})",
                f"thing.extra = {self.tensor()}", "Thing.scale = Thing.scale",
                f"{self.pick(self.ints)} = thing.push('s') + getattr(thing, 'missing', 3)",
                f"setattr(thing, 'a{r.randint(0, 2)}', {self.number(1)})",
            ])
        )  # fmt: skip

    def unpack(self) -> None:
        a, b = self.fresh("t"), self.fresh("i")
        choice = self.random.randrange(3)
        if choice == 0:
            self.emit(f"{a}, {b} = {self.tensor()}, {self.number()}")
        elif choice == 1:
            self.emit(f"{a}, *_, {b} = {self.tensor()}, 1, 2, {self.number()}")
        else:
            self.emit(f"({a}, {b}), _ = ({self.tensor()}, {self.number()}), {self.number()}")
        self.tensors.append(a)
        self.ints.append(b)

    def global_effect(self) -> None:
        self.emit(
            self.random.choice([
                f"STATE['n'] += {self.number(1)}", f"STATE['log'].append({self.number(1)})",
                f"{self.pick(self.ints)} = STATE['n'] + 1",
            ])
        )  # fmt: skip

    def comprehension(self) -> None:
        r, name = self.random, self.fresh("l")
        self.emit(
            r.choice([
                f"{name} = [v * 2 for v in ({self.tensor()}, {self.number()})]",
                f"{name} = [i for i in range({r.randint(0, 5)}) if i % 2 == {r.randint(0, 1)}]",
                f"{name} = list(zip({self.pick(self.lists)}, range(3)))",
                f"{name} = [t.sum() for t in rows({self.tensor(1)}, {r.randint(0, 3)})]",
                f"{name} = sorted([{self.number(1)}, {self.number(1)}, {self.number(1)}])",
                f"{name} = [*enumerate({self.pick(self.lists)}, {self.number(2)})]",
                f"{name} = list({{{self.number(1)}, {self.number(1)}, 5}})",
                f"{name} = [k for k in {self.pick(self.dicts)}]",
            ])
        )  # fmt: skip
        self.lists.append(name)

    def text(self) -> None:
        name = self.fresh("s")
        self.emit(f"{name} = f'{{{self.number(1)}!r:>4}}-{{{self.pick(self.tensors)}.dim()}}'")
        self.emit(f"STATE['log'].append({name})")

    def function(self) -> None:
        name, r = self.fresh("f"), self.random
        captured = self.pick(self.ints)
        self.emit(f"def {name}(t, k={self.number(2)}):")
        if r.random() < 0.4:
            self.emit(f"    nonlocal_free = {self.pick(self.tensors)} + k")
            self.emit("    return t + nonlocal_free")
        else:
            self.emit(f"    return t * {captured} + k")
        target = self.pick(self.tensors)
        self.emit(f"{target} = {name}({self.tensor()})")

    def nonlocal_(self) -> None:
        name, cell = self.fresh("f"), self.fresh("c")
        target = self.pick(self.ints)
        self.emit(f"{cell} = {self.number(1)}")
        self.emit(f"def {name}(v):")
        self.emit(f"    nonlocal {cell}")
        self.emit(f"    {cell} += v")
        if self.breaks and self.random.random() < 0.2:
            self.emit(f"    print('in closure', {cell})")
        self.emit(f"    return {cell}")
        for _ in range(self.random.randint(1, 2)):
            self.emit(f"{target} = {name}({self.number(1)}) % 50")

    def collection(self) -> None:
        r, i = self.random, self.pick(self.ints)
        kind = self.fresh("d")
        self.emit(
            r.choice(
                [
                    f"{kind} = collections.deque([{self.number(1)}, {self.number(1)}], maxlen=2); {kind}.append({i}); {kind}.rotate(1); {i} = {kind}[0]",
                    f"{kind} = collections.defaultdict(list); {kind}[{self.number(1)}].append({i}); {i} = len({kind}) + len({kind}[3])",
                    f"{kind} = Bag(a={self.number(1)}); {kind}['b'] = {i}; {i} = {kind}['a'] + {kind}['nope'] + len({kind})",
                    f"{kind} = {{{self.number(1)}, {self.number(1)}}} | {{1, 2}}; {kind}.discard(1); {i} = sum({kind}) + (2 in {kind})",
                    f"{kind} = Pair({self.number(1)}); {kind}.right += {self.number(1)}; {i} = {kind}.total() % 40; STATE['log'].append(repr({kind}))",
                    f"{kind} = list(range({r.randint(2, 8)})); {kind}[1:2] = [{i}] * {r.randint(0, 2)}; {i} = {kind}[-1] + len({kind}[::2])",
                    f"{i} = [*itertools.accumulate([1, {self.number(1)}, 2])][-1] % 30",
                    f"{i} = sum(a * b for a, b in itertools.zip_longest([1, {i}], (2, 3, 4), fillvalue=1)) % 30",
                    f"{i} = functools.reduce(lambda a, b: a + b, [{self.number(1)}, {i}], 1) % 30",
                ]
            )
        )

    def match_(self) -> None:
        i = self.pick(self.ints)
        subject = self.random.choice([
            self.number(1), f"({self.number(1)}, {i})", f"{{'k': {i}, 'z': 1}}", f"Pair({i}, 2)",
            f"[{i}, *{self.pick(self.lists)}]",
        ])  # fmt: skip
        self.emit(f"match {subject}:")
        for case in (f"case 0 | 1: {i} = 1", f"case int(v) if v > 3: {i} = v - 1",
                     f"case (a, b) if not isinstance(a, torch.Tensor): {i} = 2 if b else 5",
                     f"case {{'k': int(v), **rest}}: {i} = v + len(rest)",
                     f"case Pair(left=v, right=2): {i} = v", f"case _: {i} = 3"):  # fmt: skip
            self.emit("    " + case)

    def higher_order(self) -> None:
        r, t = self.random, self.pick(self.tensors)
        self.emit(
            r.choice(
                [
                    f"{t} = scaled({self.number(1)})({self.tensor(1)}, *[1] * {r.randint(0, 2)})",
                    f"{t} = count_down({self.tensor(1)}, {r.randint(0, 3)})",
                    f"{t} = functools.partial(helper, k={self.number(1)})({self.tensor(1)})",
                    f"{t} = list(map(scaled(2), [{self.tensor(1)}, {t}]))[-1]",
                    f"{t} = max([{self.tensor(1)}, {t}], key=lambda v: v.dim())",
                    f"{t} = (w := {self.tensor(1)}) + w",
                    f"{t} = torch.stack([*rows({t}, 2)]).sum(0)",
                    f"{t} = [{t}, {self.tensor(1)}][{r.randint(-2, 1)}]",
                ]
            )
        )

    def generator_(self) -> None:
        g, i = self.fresh("g"), self.pick(self.ints)
        self.emit(f"{g} = echo({self.number(1)})")
        self.emit(f"{i} = next({g})")
        if self.random.random() < 0.5:
            self.statement()
        self.emit(f"{i} = ({i} + {g}.send({i})) % 40")
        self.emit(f"STATE['log'].append(next({g}, 'over'))")

    def if_(self) -> None:
        self.emit(f"if {self.condition()}:")
        self.block(2)
        if self.random.random() < 0.6:
            self.emit("else:")
            self.block(2)

    def for_(self) -> None:
        r, i = self.random, self.fresh("i")
        source = r.choice([
            f"range({r.randint(0, 4)})", "[3, 1, 2]", "(n, 2)", f"range(n, n + {r.randint(0, 3)})",
            "sorted({4, 2})",
        ])  # fmt: skip
        self.emit(f"for {i} in {source}:")
        self.loops += 1
        self.ints.append(i)
        self.block(3)
        if r.random() < 0.3:
            self.depth += 1
            self.emit(f"if {self.condition()}: {r.choice(['break', 'continue'])}")
            self.depth -= 1
        self.ints.remove(i)
        self.loops -= 1
        if r.random() < 0.2:
            self.emit("else:")
            self.block(1)

    def while_(self) -> None:
        w = self.fresh("w")
        self.emit(f"{w} = 0")
        self.emit(f"while {w} < {self.random.randint(1, 3)}:")
        self.depth += 1
        self.emit(f"{w} += 1")
        self.depth -= 1
        self.block(2)

    def try_(self) -> None:
        r = self.random
        self.emit("try:")
        self.block(2)
        self.depth += 1
        self.emit(
            r.choice([f"raises({self.number(1)})", f"{self.pick(self.lists)}[{self.number(1)}]",
                      f"{self.pick(self.dicts)}['nope']", "pass", f"{self.number(1)} // ({self.pick(self.ints)} % 2)"])
        )  # fmt: skip
        self.depth -= 1
        self.emit(
            f"except {r.choice(['Oops', '(KeyError, Oops)', 'Exception', 'LookupError'])} as error:"
        )
        self.depth += 1
        self.emit("STATE['log'].append((type(error).__name__, str(error)))")
        if self.breaks and r.random() < 0.3:
            self.emit("print([place[:3] for place in traceback.extract_tb(error.__traceback__)])")
        self.depth -= 1
        self.block(1)
        if r.random() < 0.4:
            self.emit("finally:")
            self.block(1)

    def with_(self) -> None:
        r = self.random
        manager = r.choice(["thing", "torch.no_grad()", "Thing(1) as other"])
        self.emit(f"with {manager}:")
        self.block(2)
        if r.random() < 0.3:
            self.depth += 1
            self.emit(r.choice([f"raises({self.number(1)})", "{}['k']"]))
            self.depth -= 1

    def source(self) -> str:
        """The whole program."""
        self.emit("'''one'''")
        while self.budget > 0:
            self.statement()
        names = [*self.tensors, *self.ints, *self.lists, *self.dicts]
        self.emit(f"return {', '.join(names)}, thing")
        head = "def program(x, y, n, items, table, thing, scale, flag, word):"
        return "\n".join([head, *self.lines]) + "\n"


def _arguments(namespace: dict[str, Any], variant: int, needs_grad: bool) -> tuple[Any, ...]:
    """Arguments of a call; tensors, their sizes, numbers and words change with the variant."""
    rows = 4 if variant == 2 else 2
    x = torch.arange(3.0 * rows).reshape(rows, 3) - variant
    y = torch.full((rows, 3), 1.5, requires_grad=needs_grad)
    items, table = [1, torch.ones(rows, 3)], {"a": 1, "b": 2}
    thing = namespace["Thing"](torch.ones(()))
    scale, flag, word = (1.5, 0.25, 3.0)[variant], variant != 1, "ab"[variant % 2]
    return x, y, 3 + variant, items, table, thing, scale, flag, word


def _run(call: Any, namespace: dict[str, Any], calls: list[int], needs_grad: bool) -> list[Any]:
    namespace["STATE"].clear()
    namespace["STATE"].update(n=0, log=[])
    namespace["COUNT"] = 0
    random.seed(0)
    torch.manual_seed(0)
    seen = []
    for variant in calls:
        arguments = _arguments(namespace, variant, needs_grad)
        printed, result, error, gradient = io.StringIO(), None, None, None
        with contextlib.redirect_stdout(printed):
            try:
                result = call(*arguments)
            except Exception as raised:
                if "dovetail" in type(raised).__module__ or isinstance(raised, Warning):
                    raise
                error = told(raised, 1)
        gc.collect(0)  # what died in a cycle has its last word
        if needs_grad and result is not None:
            gradient = _gradient(result, arguments[1])
        state = namespace["STATE"]
        everything = (result, arguments, state)
        seen.append(
            (error, result, printed.getvalue(), arguments, gradient, identities(everything),
             copy.deepcopy({k: v for k, v in state.items() if k != "kept"}), namespace["COUNT"],
             random.getstate()[1][:3], torch.random.get_rng_state().tolist()[:20])
        )  # fmt: skip
        torch.set_grad_enabled(True)
    return seen


_PARTS = ("error", "result", "printed", "arguments", "gradient", "identities", "state", "count",
          "random state", "torch's random state")  # fmt: skip


def _gradient(result: tuple[Any, ...], of: torch.Tensor) -> torch.Tensor | str | None:
    found = [v for v in result if isinstance(v, torch.Tensor) and v.requires_grad]
    if not found:
        return None
    try:
        sum(v.sum() for v in found).backward()  # type: ignore[union-attr]
    except RuntimeError as error:  # a tensor that the gradient needs was written to
        return type(error).__name__
    return of.grad


def identities(value: Any) -> list[int]:
    """Which of the tensors, containers and objects inside of `value` are one and the same: the
    number that each place's object got when it was first met."""
    numbers: dict[int, int] = {}
    found: list[int] = []

    def walk(item: Any) -> None:
        if isinstance(item, tuple):
            for part in item:
                walk(part)
            return
        if not isinstance(item, (torch.Tensor, list, dict)) and not hasattr(item, "seen"):
            return
        known = id(item) in numbers
        found.append(numbers.setdefault(id(item), len(numbers)))
        if known or isinstance(item, torch.Tensor):
            return
        parts = item if isinstance(item, list) else item if isinstance(item, dict) else vars(item)
        for part in parts.values() if isinstance(parts, dict) else parts:
            walk(part)

    walk(value)
    return found


def program_of(seed: int) -> str:
    """The source text of a seed's program; two in three may break the graph."""
    return Generator(seed, breaks=seed % 3 != 0).source()


def check(seed: int) -> str | None:
    """None, or how captured and eager differ."""
    # Cycles through the frames of replaced code die when they are collected: after each call.
    gc.disable()
    try:
        return _check(seed)
    finally:
        gc.enable()


def _check(seed: int) -> str | None:
    namespace: dict[str, Any] = {}
    exec(_PRELUDE_CODE, namespace)
    exec(compile(program_of(seed), f"<program {seed}>", "exec"), namespace)
    calls, needs_grad = [0, 0, 1, 2, 0], seed % 5 == 0
    expected = _run(namespace["program"], namespace, calls, needs_grad)
    captured = optimize(namespace["program"], CountingBackend())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="(?s).*Please report this.*")
        warnings.filterwarnings("ignore", message="(?s).*recompile limit.*")
        try:
            got = _run(captured, namespace, calls, needs_grad)
        except Exception as error:
            return f"seed {seed}: {type(error).__name__}: {error}"
    for call, (wanted, seen) in enumerate(zip(expected, got, strict=True)):
        for part, a, b in zip(_PARTS, wanted, seen, strict=True):
            if not same(a, b):
                return f"seed {seed}, call {call}, {part}:\n  eager    {a}\n  captured {b}"
    return None


def main() -> int:
    """Run a range of seeds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--show", action="store_true", help="print the program of each failure")
    options = parser.parse_args()
    started, failures, done = time.perf_counter(), 0, 0
    stopped: list[int] = []

    def stop(number: int, frame: Any) -> None:
        stopped.append(number)
        signal.alarm(20)  # a program that does not end is not waited for

    signal.signal(signal.SIGTERM, stop)
    for seed in range(options.first, options.first + options.count):
        if stopped or time.perf_counter() - started > options.seconds:
            break
        difference = check(seed)
        done += 1
        if done % 50 == 0:  # what a first collection frees of tensors, a second one may free
            gc.collect()
            gc.collect()
        if difference is not None:
            failures += 1
            print(difference[:1500], flush=True)
            if options.show:
                print(program_of(seed), flush=True)
    each = (time.perf_counter() - started) / max(done, 1)
    print(
        f"CPython {sys.version.split()[0]}, seeds {options.first} to {options.first + done - 1}: "
        f"{done} programs, {failures} differ, {each:.3f} s each"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
