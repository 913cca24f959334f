"""Compile a random function, change something that it reads, call it again: is it eager's answer?

`python guard_fuzz.py FIRST_SEED COUNT` runs seeds and prints what differs. One seed is one
function of a few `guard_pieces`, some forty changes (to what the pieces read, to the arguments, to
torch's modes), and two compiled calls after each: the first must give what the function gives
uncompiled, the second must find what the first has compiled.
"""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from types import FunctionType
from typing import Any

import torch
from dovetail_capture import optimize, run_graph
from guard_pieces import Namespace, Piece, chosen, function_text

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Sub(torch.Tensor):
    """A tensor subclass."""


def _both(t: torch.Tensor) -> Arguments:
    return (t, t), {}


def _view(t: torch.Tensor) -> Arguments:
    return (t, t[0]), {}


ARGUMENTS: dict[str, Callable[[], Arguments]] = {
    "plain": lambda: ((torch.ones(2, 3), torch.ones(3)), {}),
    "the same": lambda: ((torch.ones(2, 3), torch.ones(3)), {}),
    "double": lambda: ((torch.ones(2, 3).double(), torch.ones(3)), {}),
    "half": lambda: ((torch.ones(2, 3), torch.ones(3).half()), {}),
    "requires grad": lambda: ((torch.ones(2, 3, requires_grad=True), torch.ones(3)), {}),
    "the other requires grad": lambda: ((torch.ones(2, 3), torch.ones(3).requires_grad_()), {}),
    "parameter": lambda: ((torch.nn.Parameter(torch.ones(2, 3)), torch.ones(3)), {}),
    "subclass": lambda: ((torch.ones(2, 3).as_subclass(Sub), torch.ones(3)), {}),
    "rows": lambda: ((torch.ones(4, 3), torch.ones(3)), {}),
    "one row": lambda: ((torch.ones(1, 3), torch.ones(3)), {}),
    "rank": lambda: ((torch.ones(2, 2, 3), torch.ones(3)), {}),
    "strides": lambda: ((torch.ones(3, 2).t(), torch.ones(6)[::2]), {}),
    "length": lambda: ((torch.ones(2, 3), torch.ones(5)), {}),
    "one object": lambda: _both(torch.ones(2, 3)),
    "a view": lambda: _view(torch.ones(2, 3)),
    "flag": lambda: ((torch.ones(2, 3), torch.ones(3), 2), {}),
    "flag as float": lambda: ((torch.ones(2, 3), torch.ones(3), 2.0), {}),
    "flag as bool": lambda: ((torch.ones(2, 3), torch.ones(3), True), {}),
    "rest": lambda: ((torch.ones(2, 3), torch.ones(3), 1, 2, torch.ones(3)), {}),
    "keywords": lambda: ((torch.ones(2, 3), torch.ones(3)), {"flag": 3, "a": 1, "bb": 2}),
    "keywords turned": lambda: ((torch.ones(2, 3), torch.ones(3)), {"bb": 1, "a": 2, "flag": 3}),
    "conjugate": lambda: ((torch.ones(2, 3), torch.ones(3, dtype=torch.complex64).conj()), {}),
}


@contextlib.contextmanager
def _set(setter: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    setter(value)
    try:
        yield
    finally:
        setter(before)


_deterministic: Any = torch._C._set_deterministic_algorithms

MODES: dict[str, Callable[[], Any]] = {
    "none": contextlib.nullcontext,
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast half": lambda: torch.autocast("cpu", dtype=torch.float16),
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
    "autocast without a cache": lambda: torch.autocast("cpu", cache_enabled=False),
    "default dtype": lambda: _set(torch.set_default_dtype, torch.float64, torch.float32),
    "default device": lambda: torch.device("meta"),
    "deterministic": lambda: _set(_deterministic, True, False),
}


@dataclass
class Tally:
    """What a run of seeds did."""

    calls: int = 0
    compiles: int = 0
    changes: int = 0
    plain: int = 0  # seeds whose function was given up: their later calls prove nothing
    wrong: list[str] = field(default_factory=list)


def _answer(function: Callable[..., Any], arguments: Arguments) -> tuple[Any, Any]:
    args, kwargs = arguments
    try:
        return function(*args, **kwargs), args
    except Exception as error:
        return type(error), args


def _bytes(t: torch.Tensor) -> torch.Tensor:
    return t.detach().resolve_conj().contiguous().view(-1).view(torch.uint8)


def same(a: Any, b: Any) -> bool:
    """Equal in all that a user can see."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if not isinstance(a, torch.Tensor):
        return bool(a == b)
    meta = [
        (x.dtype, x.device, x.shape, x.requires_grad, x.layout, x.stride(), x.is_conj())
        for x in (a, b)
    ]
    if meta[0] != meta[1]:
        return False
    if a.device.type == "meta":
        return True
    return torch.equal(_bytes(a), _bytes(b))


class Run:
    """One seed."""

    def __init__(self, seed: int, tally: Tally, pieces: list[Piece] | None = None) -> None:
        self.seed, self.tally = seed, tally
        self.random = Random(seed)
        torch.manual_seed(seed)
        self.pieces = pieces or chosen(self.random, self.random.randrange(1, 5))
        self.text = function_text(self.pieces)
        if not pieces and self.random.random() < 0.2:  # a write that other arguments may see
            self.text = self.text.replace("if t is u", "u.add_(1)\n    if t is u")
        self.space: Namespace = {"torch": torch, "r": self.random, "__name__": __name__}
        for piece in self.pieces:
            self.execute(piece.setup)
        self.execute(self.text)
        self.function: FunctionType = self.space["f"]
        dynamic = None if pieces else self.random.choice((None, None, False, True))
        self.compiled = optimize(self.function, run_graph, recompile_limit=10**6, dynamic=dynamic)
        self.context = self.compiled.capture_context
        self.arguments, self.mode = "plain", "none"
        self.history: list[str] = []

    def execute(self, text: str) -> None:
        """Run statements in the function's globals."""
        name = f"<seed {self.seed}>"
        exec(compile(text, name, "exec", dont_inherit=True), self.space)

    def change(self) -> None:
        """Something that the function may read."""
        r = self.random
        self.tally.changes += 1
        kind = r.random()
        if kind < 0.15:
            self.arguments = r.choice(list(ARGUMENTS))
            self.history.append(f"arguments: {self.arguments}")
        elif kind < 0.3:
            self.mode = r.choice(list(MODES))
            self.history.append(f"mode: {self.mode}")
        else:
            piece: Piece = r.choice(self.pieces)
            statement = r.choice(piece.changes)
            try:
                self.execute(statement)
            except Exception as error:  # not after what was changed before
                statement += f"  # {error!r}"
            self.history.append(statement)

    def compare(self) -> bool:
        """Call eager, and compiled twice; False when something is wrong."""
        make = ARGUMENTS[self.arguments]
        with MODES[self.mode]():
            with torch.device("cpu"):
                inputs = [make() for _ in range(4)]
            expected = _answer(self.function, inputs[0])
            again = _answer(self.function, inputs[1])
            if not same(expected, again):
                return True  # the function itself answers at random
            found = [_answer(self.compiled, inputs[2])]
            frames = self.compiles()
            found.append(_answer(self.compiled, inputs[3]))
        self.tally.calls += 2
        if self.compiles() != frames:
            return self._say("the second call compiled again")
        for attempt, answer in enumerate(found):
            if not same(expected, answer):
                return self._say(f"call {attempt}: {answer[0]!r} instead of {expected[0]!r}")
        return True

    def compiles(self) -> int:
        """How often something was captured so far."""
        counters = self.context.log.counters
        return sum(counters[kind] for kind in ("frame", "no graph", "plain"))

    def _say(self, what: str) -> bool:
        history = "\n  ".join(self.history[-8:])
        modes = f"arguments {self.arguments}, mode {self.mode}"
        self.tally.wrong.append(f"seed {self.seed}, {modes}: {what}\n  {history}\n{self.text}")
        return False

    def run(self, steps: int) -> None:
        """Change and compare, until the first difference."""
        for _ in range(steps):
            if not self.compare():
                break
            for _ in range(self.random.choice((1, 1, 2))):
                self.change()
        self.tally.compiles += self.compiles()
        self.tally.plain += self.context.hook.is_closed(self.function.__code__)


def run_seeds(seeds: range, steps: int = 40) -> Tally:
    """Run them all."""
    tally = Tally()
    threads = torch.get_num_threads()
    for seed in seeds:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                Run(seed, tally).run(steps)
        finally:
            torch.set_num_threads(threads)
    return tally


def main() -> int:
    """Run the seeds asked for."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    start = time.perf_counter()
    tally = run_seeds(range(first, first + count))
    for text in tally.wrong:
        print(text)
    print(
        f"seeds {first} to {first + count - 1}: {tally.changes} changes, {tally.calls} calls, "
        f"{tally.compiles} compiles, {tally.plain} given up, {len(tally.wrong)} wrong, "
        f"{time.perf_counter() - start:.0f} s"
    )
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
