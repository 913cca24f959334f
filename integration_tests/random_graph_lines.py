"""Lines of the random programs of `random_graphs.py`: calls of torch on values made before.

Long for being a table: each method is a family of operators, each row of it the text of a call.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
INTEGERS = {
    "I8": torch.int8, "U8": torch.uint8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64,
}  # fmt: skip
DTYPES = {**FLOATS, **INTEGERS, "BOOL": torch.bool}
# Functions of which a rounding error of the argument may make an infinity, or NaN.
_POLES = ("rsqrt", "sqrt", "log1p", "log", "reciprocal", "log2")
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Maker:
    """Makes lines for values that exist; `values` are eager's, `exact` has those without rounding
    error. (`self.grad`: a gradient is taken, so kinks need exact values, too.)"""

    def __init__(self, rng: random.Random, grad: bool) -> None:
        self.rng = rng
        self.grad = grad
        self.values: dict[str, Tensor] = {}
        self.exact: set[str] = set()

    def pick(self, kinds: str = "fib", exact: bool = False, rank: int = 0) -> str:
        """A value: of a float, integer or bool dtype, new ones more often."""
        fits = [
            name
            for name, t in self.values.items()
            if ("f" if t.is_floating_point() else "b" if t.dtype is torch.bool else "i") in kinds
            and (not exact or name in self.exact)
            and t.dim() >= rank
        ]
        if not fits:
            raise LookupError(kinds)
        return fits[int(len(fits) * self.rng.random() ** 0.4)]

    def like(self, name: str, kinds: str = "fib", exact: bool = False) -> str:
        """A value that broadcasts with another."""
        for _ in range(8):
            other = self.pick(kinds, exact)
            a, b = self.values[name].shape, self.values[other].shape
            if all(m == n or 1 in (m, n) for m, n in zip(a[::-1], b[::-1], strict=False)):
                return other
        raise LookupError("like")

    def dim(self, name: str) -> int:
        rank = self.values[name].dim()
        return self.rng.randrange(-rank, rank) if rank else self.rng.choice([0, -1])

    def choose(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def number(self) -> Any:
        return self.choose(0, 1, 2, -1, 3, 0.5, 1.5, -2.0, True)

    # Each family gives the line's text and whether the line rounds (nothing else but float
    # arithmetic that is not exact does).

    def smooth(self) -> tuple[str, bool]:
        f = self.choose(
            "sin",
            "cos",
            "exp",
            "tanh",
            "sigmoid",
            "erf",
            "expm1",
            "atan",
            "rsqrt",
            "sqrt",
            "log1p",
            "log",
            "asinh",
            "reciprocal",
            "exp2",
            "sinc",
            "log2",
        )
        return f"torch.{f}({self.pick('fib', exact=f in _POLES)})", True

    def activation(self) -> tuple[str, bool]:
        x = self.pick("f")
        f = self.choose("gelu", "silu", "softplus", "mish", "logsigmoid", "tanhshrink", "softsign")
        return f"F.{f}({x})", True

    def kinked(self) -> tuple[str, bool]:
        x = self.pick("f", exact=self.grad)
        low, high = sorted([self.choose(-1, 0, 0.5), self.choose(1, 2, 1.5)])
        return self.choose(
            (f"torch.relu({x})", False),
            (f"torch.abs({x})", False),
            (f"torch.clamp({x}, {low}, {high})", False),
            (f"torch.clamp({x}, max={high})", False),
            (f"F.leaky_relu({x}, 0.25)", False),
            (f"F.hardtanh({x}, {low}, {high})", False),
            (f"F.hardswish({x})", True),
            (f"F.hardsigmoid({x})", True),
            (f"F.elu({x})", True),
            (f"F.relu6({x})", False),
            (f"F.softshrink({x}, 0.5)", False),
            (f"F.selu({x})", True),
            (f"F.threshold({x}, 0.5, -1.0)", False),
            (f"F.celu({x}, 2.0)", True),
        )

    def jump(self) -> tuple[str, bool]:
        x = self.pick("f", exact=True)
        f = self.choose(
            "floor",
            "ceil",
            "round",
            "trunc",
            "frac",
            "sign",
            "isnan",
            "isfinite",
            "isinf",
            "signbit",
            "logical_not",
            "isneginf",
            "isposinf",
        )
        return f"torch.{f}({x})", False

    def integer(self) -> tuple[str, bool]:
        x = self.pick("i")
        y = self.like(x, "i")
        n = self.choose(1, 2, 3, 5, -3, 7)
        op = self.choose("&", "|", "^", "+", "-", "*", "//", "%", "<<", ">>")
        if op in ("<<", ">>"):
            return self.choose((f"{x} {op} {abs(n)}", False), (f"{x} {op} ({y} & 3)", False))
        if op in ("//", "%"):
            f = {"//": "floor_divide", "%": "remainder"}[op]
            return self.choose(
                (f"{x} {op} {n}", False),
                (f"torch.{f}({x}, ({y} | 1))", False),
                (f"torch.fmod({x}, {n})", False),
                (f"torch.fmod({x}, ({y} | 1))", False),
                (f"torch.div({x}, {n}, rounding_mode='trunc')", False),
                (f"torch.div({x}, ({y} | 1), rounding_mode='floor')", False),
                (f"{n} % ({x} | 1)", False),
                (f"{n} // ({x} | 1)", False),
            )
        return self.choose(
            (f"{x} {op} {y}", False),
            (f"{x} {op} {n}", False),
            (f"~{x}", False),
            (f"-{x}", False),
            (f"torch.abs({x})", False),
            (f"torch.sign({x})", False),
            (f"{x} ** 2", False),
            (f"torch.clamp({x}, -3, 4)", False),
            (f"torch.gcd({x}, {y})", False),
            (f"torch.bitwise_not({x})", False),
            (f"torch.square({x})", False),
        )

    def binary(self) -> tuple[str, bool]:
        x = self.pick("fib")
        y = self.choose(self.like(x), self.number())
        op = self.choose("+", "-", "*", "*", "+", "/")
        if op == "/" and not all(v in self.exact or not isinstance(v, str) for v in (x, y)):
            # (a rounding error by zero, or anything by one, may be either infinity, or NaN)
            return self.choose((f"{x} / ({y} * {y} + 1)", True), (f"{y} / ({x} * {x} + 1)", True))
        return self.choose((f"{x} {op} {y}", op == "/"), (f"{y} {op} {x}", op == "/"))

    def binary_more(self) -> tuple[str, bool]:
        x = self.pick("f")
        y = self.like(x, "f")
        z = self.like(x, "f")
        if self.rng.random() < 0.15:  # what has poles or a jump at zero
            x = self.pick("f", exact=True)
            y = self.like(x, "f", exact=True)
            return self.choose(
                (f"torch.atan2({x}, {y})", True), (f"{x} ** -1", True), (f"{x} ** 0.5", True)
            )
        return self.choose(
            (f"torch.add({x}, {y}, alpha=2)", False),
            (f"torch.rsub({x}, {y})", False),
            (f"torch.hypot({x}, {y})", True),
            (f"torch.lerp({x}, {y}, 0.25)", True),
            (f"torch.addcmul({x}, {y}, {z}, value=0.5)", True),
            (f"torch.addcdiv({x}, {y}, {z} * {z} + 1)", True),
            (f"torch.logaddexp({x}, {y})", True),
            (f"torch.pow({x} * {x} + 1, {y})", True),
            (f"{x} ** 2", False),
            (f"{x} ** 3", True),
            (f"torch.xlogy({x}, {y} * {y} + 1)", True),
            (f"2 ** {x}", True),
            (f"torch.mul({x}, {self.values[x].dim()})", False),
        )

    def extreme(self) -> tuple[str, bool]:
        x = self.pick("fi", exact=self.grad)
        y = self.like(x, "fi", exact=self.grad)
        f = self.choose("maximum", "minimum", "fmax", "fmin")
        return f"torch.{f}({x}, {y})", False

    def modulo(self) -> tuple[str, bool]:
        x = self.pick("f", exact=True)
        y = self.choose(self.like(x, "fi", exact=True), 2, -1.5, 3)
        return self.choose(
            (f"torch.remainder({x}, {y})", False),
            (f"torch.fmod({x}, {y})", False),
            (
                f"torch.floor_divide({x}.detach(), {y})"
                if isinstance(y, (int, float))
                else f"torch.floor_divide({x}.detach(), {y}.detach())",
                False,
            ),
            (f"{x} % {y}", False),
            (f"torch.div({x}, {y}, rounding_mode='trunc')", False),
            (f"torch.copysign({x}, {y})", False),
            (f"torch.heaviside({x}.detach(), {x}.detach())", False),
        )

    def compare(self) -> tuple[str, bool]:
        x = self.pick("fib", exact=True)
        y = self.choose(self.like(x, exact=True), self.number())
        op = self.choose("==", "!=", "<", "<=", ">", ">=")
        return f"{x} {op} {y}", False

    def logical(self) -> tuple[str, bool]:
        x = self.pick("b")
        y = self.like(x, "b")
        return self.choose(
            (f"{x} & {y}", False),
            (f"{x} | {y}", False),
            (f"~{x}", False),
            (f"{x} ^ {y}", False),
            (f"torch.logical_xor({x}, {self.like(x, exact=True)})", False),
        )

    def select(self) -> tuple[str, bool]:
        c = self.pick("b")
        x = self.like(c)
        y = self.choose(self.like(c), self.number())
        return self.choose(
            (f"torch.where({c}, {x}, {y})", False),
            (f"torch.where({c}, {y}, {x})", False),
            (f"{x}.masked_fill({c}, {self.choose(0, -1, 1)})", False),
        )

    def cast(self) -> tuple[str, bool]:
        target = self.choose(*DTYPES)
        x = self.pick("fib", exact=target not in FLOATS)
        t = self.values[x]
        if t.is_floating_point() and target not in (*FLOATS, "BOOL"):
            low = 0 if target == "U8" else -100
            # (what lies outside the integers' range is another number on each machine)
            return (
                f"torch.clamp({x}.nan_to_num(3.0), {low}, 100).to({target})",
                False,
            )
        return f"{x}.to({target})", False

    def reduce(self) -> tuple[str, bool]:
        x = self.pick("fib")
        t = self.values[x]
        d, keep = self.dim(x), self.choose(True, False)
        if t.dim() > 1 and self.rng.random() < 0.3:
            d = tuple(self.rng.sample(range(t.dim()), self.rng.randint(1, t.dim())))  # type: ignore[assignment]
        tail = f"dim={d}, keepdim={keep}"
        if not t.is_floating_point():
            return self.choose(
                (f"torch.sum({x}, {tail})", False),
                (f"torch.amax({x}, {tail})", False),
                (f"torch.sum({x})", False),
                (f"torch.sum({x}, {tail}, dtype=F32)", False),
                (f"torch.any({x}, {tail})", False),
                (f"torch.all({x}, {tail})", False),
                (f"torch.count_nonzero({x}, dim={d})", False),
                (f"torch.amin({x}, {tail})", False),
                (f"torch.prod({x})", False),
                (f"torch.mean({x}, {tail}, dtype=F64)", True),
            )
        return self.choose(
            (f"torch.sum({x}, {tail})", False),
            (f"torch.sum({x})", False),
            (f"torch.mean({x}, {tail})", True),
            (f"torch.logsumexp({x}, {tail})", True),
            (f"torch.var({x}, {tail}, correction={self.choose(0, 1, 0.5)})", True),
            (f"torch.std({x} + torch.arange({x}.numel()).view({x}.shape), {tail})", True),
            (f"torch.sum({x}, {tail}, dtype=F64)", False),
            (f"torch.mean({x}, {tail}, dtype=F32)", True),
            (f"torch.linalg.vector_norm({x}, 2, {tail})", True),
            (f"torch.nansum({x}, {tail})", False),
            (f"torch.var_mean({x}, {tail}, correction=0)[{self.choose(0, 1)}]", True),
        )

    def reduce_kinked(self) -> tuple[str, bool]:
        x = self.pick("f", exact=True)
        d, keep = self.dim(x), self.choose(True, False)
        return self.choose(
            (f"torch.amax({x}, {d}, {keep})", False),
            (f"torch.amin({x}, {d}, {keep})", False),
            (f"torch.max({x}, {d}, {keep})[{self.choose(0, 0, 1)}]", False),
            (f"torch.max({x})", False),
            (f"torch.argmax({x}, {d}, {keep})", False),
            (f"torch.argmin({x}, {d}, {keep})", False),
            (f"torch.min({x}, {d}, {keep})[{self.choose(0, 1)}]", False),
            (f"torch.argmax({x})", False),
            (f"torch.any({x}, {d}, {keep})", False),
            (f"torch.all({x}, {d})", False),
            (f"torch.linalg.vector_norm({x}, 1, {d}, {keep})", False),
            (f"torch.linalg.vector_norm({x}, float('inf'), {d}, {keep})", False),
            (f"torch.cummax({x}, {d})[{self.choose(0, 1)}]", False),
            (f"torch.aminmax({x}, dim={d})[1]", False),
            (f"torch.sort({x}, dim={d}, stable=True)[{self.choose(0, 1)}]", False),
            (f"torch.argsort({x}, dim={d}, descending=True, stable=True)", False),
            (f"torch.median({x}, {d})[0]", False),
            (f"torch.topk({x}, 1, {d})[0]", False),
            (f"torch.searchsorted(torch.sort({x}, -1)[0], {x})", False),
        )

    def scan(self) -> tuple[str, bool]:
        x = self.pick("fi")
        d = self.dim(x)
        return self.choose(
            (f"torch.cumsum({x}, {d})", False),
            (f"torch.flip({x}, [{d}])", False),
            (f"torch.cumsum({x}, {d}, dtype=F64)", False),
            (f"torch.roll({x}, 2, {d})", False),
            (f"torch.diff({x}, dim={d})", False),
            (f"torch.cumprod({x} * 0.5, {d})", True),
            (f"torch.logcumsumexp({x} * 1.0, {d})", True),
        )

    def normalise(self) -> tuple[str, bool]:
        x = self.pick("f", rank=1)
        d = self.dim(x)
        size = f"({x}.shape[-1],)"
        return self.choose(
            (f"torch.softmax({x}, {d})", True),
            (f"torch.log_softmax({x}, {d})", True),
            (f"F.layer_norm({x}, {size})", True),
            (f"F.normalize({x} + 0.25, dim={d})", True),
            (f"torch.softmax({x}, {d}, dtype=F32)", True),
            (f"{x} - {x}.mean({d}, keepdim=True)", True),
            (f"F.rms_norm({x}, {size})", True),
            (f"F.glu(torch.cat([{x}, {x}], {d}), {d})", True),
            (
                f"{x} / (1 + {x}.abs().sum({d}, keepdim=True))"
                if not self.grad
                else f"F.softmin({x}, {d})",
                True,
            ),
        )

    def view(self) -> tuple[str, bool]:
        x = self.pick(rank=1)
        rank = self.values[x].dim()
        d, e = self.dim(x), self.dim(x)
        order = self.rng.sample(range(rank), rank)
        return self.choose(
            (f"{x}.permute({order})", False),
            (f"{x}.transpose({d}, {e})", False),
            (f"{x}.unsqueeze({self.rng.randrange(rank + 1)})", False),
            (f"{x}.squeeze({d})", False),
            (f"{x}.reshape(-1)", False),
            (f"{x}[..., 1:]", False),
            (f"{x}[::2]", False),
            (f"{x}[-1]", False),
            (f"{x}[..., -1:]", False),
            (f"{x}.narrow({d}, 0, 1)", False),
            (f"{x}[: ({x}.shape[0] + 1) // 2]", False),
            (f"{x}.flatten()[:, None]", False),
            (f"{x}.unfold({d}, {x}.shape[{d}] // 2 + 1, 1)", False),
            (f"{x}[None]", False),
            (f"{x}.reshape({x}.shape[0], -1)", False),
            (f"{x}.movedim({d}, {e})", False),
            (f"{x}.diagonal()", False),
            (f"{x}.chunk(2, {d})[0]", False),
            (f"{x}.contiguous()", False),
            (f"{x}.reshape({x}.shape[-1], -1)", False),
            (f"{x}.expand(2, *{x}.shape)", False),
            (f"{x}.clone(memory_format=torch.contiguous_format)", False),
            (f"{x}.mT", False),
            (f"{x}.tensor_split(2, {d})[-1]", False),
            (f"{x}.unbind({d})[0]", False),
        )

    def join(self) -> tuple[str, bool]:
        x = self.pick()
        rank = self.values[x].dim()
        d = self.dim(x)
        same = [n for n, t in self.values.items() if t.shape == self.values[x].shape]
        y, z = self.rng.choice(same), self.rng.choice(same)
        pad = self.choose("(1, 2)", "(0, 1)", "(-1, 2)", "(2, -1)", "(1, 0, 2, 1)")
        return self.choose(
            (f"torch.cat([{x}, {y}, {z}], {d})", False),
            (f"torch.stack([{x}, {y}], {self.rng.randrange(rank + 1)})", False),
            (f"torch.cat([{x}, {y}[..., :1]], -1)", False),
            (f"F.pad({x}, {pad})", False),
            (f"F.pad({x}, {pad}, value=1)", False),
            (f"{x}.repeat(2, *[1] * {rank})", False),
            (f"torch.tile({x}, (2,))", False),
            (f"{x}.repeat_interleave(2, {d})", False),
            (f"torch.cat([{x}[:0], {y}], 0)", False),
            (f"F.pad({x}[None], (1, 1), mode='replicate')", False),
            (f"F.pad({x}[None, None], (1, 0), mode='reflect')", False),
            (f"torch.tril({x})", False),
            (f"torch.triu({x}, 1)", False),
            (f"torch.hstack([{x}, {y}])", False),
            (f"torch.meshgrid({x}.reshape(-1), {y}.reshape(-1), indexing='ij')[0]", False),
        )

    def index(self) -> tuple[str, bool]:
        x = self.pick(rank=1)
        i = self.pick("i")
        d = self.dim(x)
        at = f"torch.remainder({i}.long(), {x}.shape[{d}])"
        first = f"torch.remainder({i}.long(), {x}.shape[0])"
        y = self.choose(*[n for n, t in self.values.items() if t.dtype == self.values[x].dtype])
        wide = f"torch.remainder(torch.arange({x}.numel()).view({x}.shape), {x}.shape[{d}])"
        reduce = self.choose("sum", "amax", "prod", "mean", "amin")
        own = self.choose(True, False)
        if self.grad:
            reduce = self.choose("sum", "mean")
        return self.choose(
            (f"{x}[{first}]", False),
            (f"{x}.index_select({d}, {at}.reshape(-1))", False),
            (f"{x}[{first} - {x}.shape[0]]", False),
            (f"{x}[..., torch.remainder({i}.long(), {x}.shape[-1])]", False),
            (f"torch.gather({x}, {d}, {wide})", False),
            (f"torch.take({x}, {first})", False),
            (f"{x}.scatter_add({d}, {wide}, {x})", False),
            (
                f"{x}.scatter_reduce({d}, {wide}, {x}, '{reduce}', include_self={own})",
                reduce in ("prod", "mean"),
            ),
            (
                f"{x}.index_add({d}, {at}.reshape(-1), {x}.index_select({d}, {at}.reshape(-1)))",
                False,
            ),
            (f"torch.index_put({x}, ({first},), {x}[{first}], accumulate=True)", False),
            (f"{x}.index_fill({d}, {at}.reshape(-1), 1)", False),
            (
                f"torch.zeros_like({x}).index_copy({d}, torch.arange({x}.shape[{d}]).flip(0), {y})",
                False,
            ),
            (f"torch.take_along_dim({x}, {wide}, {d})", False),
            (f"{x}.select_scatter({x}.select({d}, 0), {d}, -1)", False),
            (f"{x}.slice_scatter({x}.narrow({d}, 0, 1), {d}, 0, 1)", False),
            (f"{x}.diagonal_scatter({x}.diagonal())", False),
        )

    def create(self) -> tuple[str, bool]:
        x = self.pick(rank=1)
        d = self.dim(x)
        return self.choose(
            (f"torch.arange({x}.shape[{d}])", False),
            (f"torch.full_like({x}, 2)", False),
            (f"torch.ones({x}.shape, dtype={self.choose(*DTYPES)})", False),
            (f"torch.zeros_like({x}, dtype={self.choose(*DTYPES)})", False),
            (f"torch.arange({x}.shape[{d}], dtype=F32) * 0.5", False),
            (f"{x} + {x}.shape[{d}]", False),
            (f"{x} / {x}.shape[{d}]", True),
            (f"torch.tensor(1.5, dtype={self.choose(*FLOATS)})", False),
            (f"torch.eye({x}.shape[{d}])", False),
            (f"torch.full({x}.shape, {x}.shape[0])", False),
            (f"torch.linspace(0, {x}.shape[0], {x}.shape[{d}])", True),
            (f"torch.ones({x}.shape[{d}], 1).bool()", False),
        )

    def product(self) -> tuple[str, bool]:
        x = self.pick("f", rank=2)
        return self.choose(
            (f"{x} @ {x}.mT", True),
            (f"torch.einsum('...ij,...ik->...jk', {x}, {x})", True),
            (f"{x} @ {x}[..., :1, :].mT", True),
            (f"F.linear({x}, {x}.reshape(-1, {x}.shape[-1]))", True),
            (f"F.avg_pool1d({x}.reshape(1, -1, {x}.shape[-1]), 2, 1, 1)", True),
            (f"F.max_pool1d({x}.reshape(1, -1, {x}.shape[-1]), 2, 1, ceil_mode=True)", True),
            (f"F.interpolate({x}.reshape(1, -1, {x}.shape[-1]), scale_factor=2.0)", False),
            (f"F.adaptive_avg_pool1d({x}.reshape(1, -1, {x}.shape[-1]), 2)", True),
            (
                f"F.embedding(torch.arange({x}.shape[0]).flip(0), {x}.reshape({x}.shape[0], -1))",
                False,
            ),
        )

    def write(self) -> tuple[str, bool]:
        x = self.pick()
        t = self.values[x]
        y = self.like(x)
        c = self.like(x, "b")
        if t.is_floating_point() and self.rng.random() < 0.5:
            y = self.like(x, "f")
        d = self.dim(x)
        return self.choose(
            (f"{x}.add_({y})", False),
            (f"{x}.mul_({self.number()})", False),
            (f"{x}.copy_({y})", False),
            (f"{x}.masked_fill_({c}, 1)", False),
            (f"{x}.select({d}, 0).zero_()", False),
            (f"{x}[..., :1].add_(1)", False),
            (f"{x}.transpose(0, -1).mul_(2)", False),
            (f"{x}.zero_()", False),
            (f"torch.add({x}, {y}, out={x})", False),
        )


Families = tuple[tuple[Callable[[Any], tuple[str, bool]], int], ...]

FAMILIES: Families = (
    (Maker.smooth, 4),
    (Maker.activation, 2),
    (Maker.kinked, 3),
    (Maker.jump, 2),
    (Maker.integer, 4),
    (Maker.binary, 6),
    (Maker.binary_more, 4),
    (Maker.extreme, 2),
    (Maker.modulo, 2),
    (Maker.compare, 3),
    (Maker.logical, 1),
    (Maker.select, 4),
    (Maker.cast, 5),
    (Maker.reduce, 7),
    (Maker.reduce_kinked, 4),
    (Maker.scan, 3),
    (Maker.normalise, 4),
    (Maker.view, 10),
    (Maker.join, 6),
    (Maker.index, 5),
    (Maker.create, 3),
    (Maker.product, 2),
    (Maker.write, 3),
)

REFUSALS = (
    RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, LookupError,
    AttributeError, AssertionError,
)  # fmt: skip
