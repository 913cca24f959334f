"""Random small programs over shapes: `program(seed)` is a function of one rank-3 tensor that is
valid for any sizes. `python integration_tests/shape_programs.py SEED` replays one seed."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Step = Callable[[Tensor], Tensor]


def _rows(x: Tensor) -> Tensor:
    b, t, d = x.shape
    return x.reshape(b * t, d).sin().view(b, -1, d)


def _mask(x: Tensor) -> Tensor:
    n, m = x.size(1), x.size(2)
    return x.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(1), -1.0)


def _branch(x: Tensor) -> Tensor:
    return x + 1 if x.size(0) > 3 else x * 0.5


def _drop_first(x: Tensor) -> Tensor:
    return x[:, 1:] if x.size(1) > 2 else x


def _halves(x: Tensor) -> Tensor:
    half = (x.size(2) + 1) // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def _positions(x: Tensor) -> Tensor:
    return x + torch.arange(x.size(1))[:, None] / x.size(1)


def _window(x: Tensor) -> Tensor:
    at = torch.arange(x.size(2))
    return torch.where(at < x.size(2) // 2, x, -x)


def _text(x: Tensor) -> Tensor:
    return x + len(f"{x.dim()}")


STEPS: dict[str, Step] = {
    "rows": _rows,
    "swap": lambda x: x.transpose(0, 1),
    "swap_copy": lambda x: x.transpose(1, 2).contiguous(),
    "permute": lambda x: x.permute(2, 0, 1) * 2,
    "drop_first": _drop_first,
    "part": lambda x: x[:, : x.size(1) // 2 + 1],
    "every_second": lambda x: x[:, :, ::2],
    "cat": lambda x: torch.cat([x, x.cos()], 1),
    "cat_rows": lambda x: torch.cat([x[:1], x], 0),
    "pad": lambda x: F.pad(x, (1, 2)),
    "scale": lambda x: x * x.size(1) / (x.size(0) + x.numel()),
    "softmax": lambda x: x.softmax(-1),
    "softmax_middle": lambda x: x.softmax(1),
    "centre": lambda x: x - x.mean(1, keepdim=True),
    "normed": lambda x: F.layer_norm(x, x.shape[-1:]),
    "variance": lambda x: x / (x.var(2, keepdim=True, unbiased=False) + 1),
    "largest": lambda x: x - x.amax((0, 2), keepdim=True),
    "gram": lambda x: (x @ x.transpose(1, 2)).tanh(),
    "expand": lambda x: x[:1].expand(x.size(0), -1, -1) + x,
    "positions": _positions,
    "window": _window,
    "mask": _mask,
    "flat": lambda x: x.flatten(1).cos().unflatten(1, (x.size(1), x.size(2))),
    "halves": _halves,
    "repeat": lambda x: x.repeat(1, 2, 1),
    "chunk": lambda x: x.chunk(2, 1)[0],
    "flip": lambda x: x.flip(1),
    "branch": _branch,
    "text": _text,
    "total": lambda x: x / (x.abs().sum() + 1),
    "running": lambda x: x.cumsum(1).tanh(),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "unsqueezed": lambda x: (x[:, None] * x[:, :, None]).sum(2),
    "index": lambda x: x[:, torch.arange(x.size(1) - 1, -1, -1)],
    "gelu": F.gelu,
}


def program(seed: int) -> tuple[Step, list[str]]:
    """The program of a seed, and the names of its steps."""
    rng = random.Random(seed)
    names = [rng.choice(sorted(STEPS)) for _ in range(rng.randint(2, 6))]

    def run(x: Tensor) -> Tensor:
        for name in names:
            x = STEPS[name](x)
        return x

    return run, names


def shapes(seed: int, count: int = 5) -> list[tuple[int, int, int]]:
    """Input shapes for a seed's program; some dimensions stay as they are."""
    rng = random.Random(-seed - 1)
    fixed = [rng.random() < 0.25 for _ in range(3)]
    first = [rng.randint(2, 9) for _ in range(3)]
    found = [tuple(first)]
    for _ in range(count - 1):
        found.append(
            tuple(
                n if keep else rng.choice([1, 2, 3, 4, 5, 7, 8, 16, 17, 33])
                for n, keep in zip(first, fixed, strict=True)
            )
        )
    return found  # type: ignore[return-value]


def _after(what: str) -> Callable[[str], str]:
    return lambda message: f"{what}\n{message}"


def check(seed: int, *, grad: bool, dynamic: bool | None = None) -> int:
    """Compare a seed's program, compiled, with eager at each shape; gives the number of graphs."""
    import dovetail

    eager, names = program(seed)
    compiled = dovetail.compile(
        eager, dynamic=dynamic, fullgraph=True, options={"recompile_limit": 32}
    )
    for shape in shapes(seed):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        ours = x.clone().requires_grad_(grad)
        theirs = x.clone().requires_grad_(grad)
        what = f"seed {seed}, steps {names}, shape {shape}, grad {grad}, dynamic {dynamic}"
        wanted, got = eager(theirs), compiled(ours)
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4, msg=_after(what))
        for size, mine, eagers in zip(got.shape, got.stride(), wanted.stride(), strict=True):
            assert size == 1 or mine == eagers, what
        if grad and wanted.requires_grad:
            wanted.sin().sum().backward()
            got.sin().sum().backward()
            torch.testing.assert_close(
                ours.grad, theirs.grad, atol=1e-3, rtol=1e-3, msg=_after(what)
            )
    return dovetail.report(compiled).graphs


if __name__ == "__main__":
    for text in sys.argv[1:]:
        for with_grad in (False, True):
            print(text, with_grad, check(int(text), grad=with_grad), program(int(text))[1])
