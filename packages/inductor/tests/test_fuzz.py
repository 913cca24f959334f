"""Random graphs against eager. A failure prints its seed; set SEEDS to replay one."""

import random

import pytest
import torch

SEEDS = range(12)


def random_function(seed):
    """A function of three tensors that applies random ops, and the inputs."""
    rng = random.Random(seed)
    a, b, c = (rng.choice([1, 3, 5, 16, 17]) for _ in range(3))
    generator = torch.Generator().manual_seed(seed)
    inputs = (
        torch.randn(a, b, c, generator=generator),
        torch.randn(b, c, generator=generator),
        torch.randn(c, b, a, generator=generator).permute(2, 1, 0),
    )
    plan = [(rng.randrange(16), rng.random(), rng.random(), rng.randrange(3)) for _ in range(12)]

    def fn(*tensors):
        values = list(tensors)
        for op, p, q, d in plan:
            x = values[int(p * len(values))]
            y = values[int(q * len(values))]
            dim = d % x.dim() if x.dim() else 0
            if op < 4:
                try:
                    torch.broadcast_shapes(x.shape, y.shape)
                except RuntimeError:
                    y = x
                values.append([x + y, x * y, torch.maximum(x, y), torch.where(x > y, x, y)][op])
            elif op == 4:
                values.append(torch.tanh(x))
            elif op == 5 and x.dim():
                values.append(x.sum(dim, keepdim=d != 1) * 0.1)
            elif op == 6 and x.dim():
                values.append(torch.softmax(x, dim))
            elif op == 7 and x.dim() > 1:
                values.append(x.transpose(0, dim))
            elif op == 8:
                values.append(x.reshape(-1))
            elif op == 9 and x.dim():
                values.append(torch.cat([x, x * 0.5], dim).narrow(dim, 0, x.shape[dim]))
            elif op == 10 and x.dim():
                values.append(x.flip(dim).contiguous())
            elif op == 11 and x.dim():
                values.append(x.amax(dim, keepdim=True) - x)
            elif op == 12 and x.dim():
                values.append(x - x.mean(dim, keepdim=True))
            elif op == 13 and x.dim():
                values.append(x.cumsum(dim) * 0.1)
            elif op == 14 and x.dim():
                values.append(x.flip(dim).logcumsumexp(dim).flip(dim))
            elif op == 15 and x.dim():
                values.append(x.cummax(dim)[0])
        return tuple(v + 0 for v in values[3:][-4:])

    return fn, inputs


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graph(check, seed):
    fn, inputs = random_function(seed)
    check(fn, *inputs, rtol=1e-4, atol=1e-4)
