"""Random programs that pass values on, look at some of them, and are called with others each time.

`python tests/passed_values.py 0 2000` compares the programs of 2,000 seeds with Python, and prints
those that differ or take more graphs than the values they look at call for.
"""

# ruff: noqa: E501  (program text in rows)

from __future__ import annotations

import random
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from dovetail_capture import graph_break, optimize
from torch.fx import GraphModule


class Settings:
    """An object with attributes."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def get(self, name: str) -> Any:
        return getattr(self, name)


def helper(x: torch.Tensor, value: Any, *more: Any, **named: Any) -> tuple[Any, ...]:
    return x + 1, value, more, named


def first_of(value: Any, other: Any = None) -> Any:
    return value


# What a step does with the value `v` (and another, `w`): it makes the value `r` of it.
PASSES = (
    "r = v", "r = [v, w][0]", "r = (w, v)[1]", "r = {'k': v, 'l': w}['k']", "r, _ = v, w",
    "x, r, _, _ = helper(x, v, w)", "x, _, r, _ = helper(x, w, v)", "x, _, _, r = helper(x, w, z=v)",
    "r = (lambda: v)()", "r = first_of(v)", "r = first_of(other=w, value=v)", "r = [v for _ in range(2)]",
    "s = Settings(a=v, b=w); r = s.a", "s = Settings(); s.c = v; r = s.get('c')", "given.stored = v; r = given.stored",
    "items.append(v); r = items[-1]", "r = [*items, v][-1]", "r = {**table, 'n': v}['n']", "table['n'] = v; r = table['n']",
    "r = dict(a=v)['a']", "r = list((v, w))[0]", "r = tuple([w, v])[-1]", "r = next(iter([v]))", "r = [a for a, b in [(v, w)]][0]",
    "r = [b for a, b in zip([w], [v])][0]", "r = v if x.dim() == 1 else w", "r = max([0], key=lambda _: 0) or v",
    "for r in (w, v): x = x + 1", "r = {'a': [v]}", "r = Settings(inner=v)", "global kept; kept = v; r = kept",
    "r = v if isinstance(v, object) else w", "r = w if v is None else v", "graph_break(); r = v", "r = getattr(given, 'label')",
    "r = given.nested.label", "r = pairs[0][1]", "r = pairs[-1]", "r = list(table.values())[0]", "r = [b for a, b in table.items()]",
    "r = (lambda q=v: q)()", "r = functools.partial(first_of, v)()", "(r, *_), _ = [v, w], 1", "r = constant", "r = enclosed",
    "given.label, items[0] = items[0], given.label; r = items[0]", "table['t'], r = v, table['t']",
    "given.label, r = v, given.label; items[0] = r", "items[:] = [v, w]; r = items", "r = items.pop(); items.append(v)",
    "given.nested, given.other = Settings(label=v), given.nested; r = given.other.label",
)  # fmt: skip
# What looks at the value.
LOOKS = (
    "r = f'{v}'", "r = v == w", "r = v != 3", "r = bool(v)", "r = 1 if v else 2", "r = hash(v) == hash(v)", "r = {v: 1}",
    "r = str(v) + '!'", "r = v in (1, 'a', 2.5, None)", "r = (v, w) == (w, v)", "r = repr(v)", "r = [v, w].index(v)",
    "x = x * (2 if v == w else 3); r = v", "r = {w, v} == {v}", "r = table.get(v, w)", "r = '%s' % (v,)",
    "x = x + len(str(v)); r = v", "r = [v].count(w)", "r = sorted([str(v), str(w)])", "r = v is w",
    "x = x + (v if type(v) in (int, float) else 1); r = v", "r = v * 2 if type(v) in (int, float, str) else w",
    "r = not v", "r = v and w", "r = v or w",
)  # fmt: skip
KINDS: tuple[Callable[[random.Random], Any], ...] = (
    lambda r: f"s{r.randint(0, 3)}", lambda r: r.randint(-1, 4), lambda r: r.choice((0.5, 1.0, 2.5, -0.0, 0.0)),
    lambda r: r.random() < 0.5, lambda r: b"%d" % r.randint(0, 3), lambda r: complex(r.randint(0, 2), 1),
    lambda r: r.choice((torch.float32, torch.int64)), lambda r: torch.device(r.choice(("cpu", "meta"))),
)  # fmt: skip


@dataclass
class Program:
    """The function of one seed, and what makes the arguments of its calls."""

    seed: int
    text: str = ""
    looks: bool = False
    breaks: bool = False
    namespace: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(seed: int) -> Program:
        r = random.Random(seed)
        made, names = Program(seed), ["a", "b", "c", "pairs[0][0]", "given.label"]
        lines = []
        for step in range(r.randint(1, 6)):
            looks = r.random() < 0.25
            line = r.choice(LOOKS if looks else PASSES)
            made.looks |= looks
            made.breaks |= "graph_break" in line
            lines += [f"v, w = {r.choice(names)}, {r.choice(names)}", line, f"t{step} = r"]
            names.append(f"t{step}")
        results = ", ".join([*names[5:], r.choice(names)])
        body = textwrap.indent("\n".join(["x = x + 1", *lines]), "        ")
        made.text = (
            "def outer(enclosed):\n"
            "    def program(x, a, b, c, pairs, given, items, table):\n"
            f"        global kept\n{body.replace('global kept; ', '')}\n"
            f"        return x, ({results},)\n"
            "    return program\n"
        )
        return made

    def arguments(self, call: int) -> tuple[Any, ...]:
        """Those of a call: of the same types each time."""
        kinds = random.Random(self.seed)
        picked = [kinds.choice(KINDS) for _ in range(9)]
        r = random.Random(self.seed * 31 + call)
        a, b, c, d, e, f, g, h, i = (make(r) for make in picked)
        given = Settings(label=d, nested=Settings(label=e))
        self.namespace["constant"] = i
        return torch.ones(2), a, b, c, [(d, e), f], given, [g], {"t": h}

    def function(self) -> Callable[..., Any]:
        import functools

        names = {"helper": helper, "first_of": first_of, "Settings": Settings}
        self.namespace.update(names, graph_break=graph_break, functools=functools, constant=0)
        exec(self.text, self.namespace)
        made: Callable[..., Any] = self.namespace["outer"](7.5)
        return made


def seen(value: Any, around: tuple[int, ...] = ()) -> Any:
    """What a value is, for comparison: with types, and signs of zeros. `around` are the ids of the
    containers that it is in, one of which it may be."""
    if id(value) in around:
        return "around", around.index(id(value))
    inside = (*around, id(value))
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Settings):
        return {k: seen(v, inside) for k, v in vars(value).items()}
    if isinstance(value, (list, tuple)):
        return type(value), [seen(v, inside) for v in value]
    if isinstance(value, dict):
        return [(seen(k), seen(v, inside)) for k, v in value.items()]
    return type(value), repr(value)


def outcome(fn: Callable[..., Any], program: Program, call: int) -> Any:
    arguments = program.arguments(call)
    program.namespace["kept"] = None
    try:
        result = fn(*arguments)
    except Exception as error:
        return type(error)
    return seen((result, arguments, program.namespace["kept"]))


def check(seed: int, calls: int = 5) -> int:
    """Compare a program with Python; gives the number of graphs. Raises AssertionError."""
    program = Program.of(seed)
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, examples: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    plain = program.function()
    compiled = optimize(plain, backend, recompile_limit=64)
    after_first = 0
    for call in range(calls):
        wanted, got = outcome(plain, program, call), outcome(compiled, program, call)
        assert got == wanted, f"{program.text}\ncall {call}: {got}\nbut: {wanted}"
        after_first = after_first or len(graphs)
    if not program.looks:
        log = compiled.capture_context.recompiles()
        assert len(graphs) == after_first, f"{program.text}\n{len(graphs)} graphs\n{log}"
    return len(graphs)


def main(first: int, count: int) -> None:
    failed = 0
    for seed in range(first, first + count):
        try:
            check(seed)
        except AssertionError as error:
            failed += 1
            print(f"seed {seed}: {error}", flush=True)
        except Exception as error:
            failed += 1
            print(f"seed {seed}: {error!r}\n{Program.of(seed).text}", flush=True)
    print(f"{count} programs from seed {first}: {failed} differ")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
