"""One token of a language model of a billion weights, kept in 16, 8 or 4 bits.

    python integration_tests/benchmarks/decoding.py [--weights bf16 int8 ...] [--rows N]
        [--systems dovetail dovetail:reduce-overhead torch.compile torch.compile:max-autotune ...]
        [--small] [--profile] [--json FILE]

The shape is Llama 3.2's of 1B (16 layers of 2048, 32 heads of 64 on 8 of keys, 8192 in between,
128,256 tokens), with a static cache of `--context` places that each step writes in place. A time is
that of one step among many in a row, with the device's work. `tokens/s` is of a loop that feeds
each step's likeliest token to the next. The error is the largest difference from the logits of the
same weights in float32, in parts of their deviation: eager has one, too.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.bench.table import machine

KINDS = ("bf16", "int8", "int4", "fp8")
GROUP = 128


@dataclass(frozen=True)
class Shape:
    """Of a decoder: layers, width, heads, heads of keys, width in between, tokens, places."""

    layers: int
    width: int
    heads: int
    key_heads: int
    between: int
    tokens: int
    context: int

    @property
    def head(self) -> int:
        """Numbers of a head."""
        return self.width // self.heads


class Linear(nn.Module):
    """A matrix of weights as it is kept, with scales."""

    def __init__(self, kind: str, outputs: int, inputs: int) -> None:
        super().__init__()
        self.kind = kind
        scale = 1 / inputs**0.5
        if kind == "bf16":
            kept = torch.randn(outputs, inputs, dtype=torch.bfloat16) * scale
        elif kind == "int8":
            kept = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
            self.register_buffer("scales", _scales(outputs) * (scale / 73))
        elif kind == "fp8":
            kept = torch.randn(outputs, inputs).to(torch.float8_e4m3fn)
            self.register_buffer("scales", _scales(outputs) * scale)
        else:
            kept = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8)
            groups = _scales(outputs, inputs // min(GROUP, inputs))
            self.register_buffer("scales", groups * (scale / 4.6))
        self.register_buffer("weight", kept)

    def forward(self, x: Tensor) -> Tensor:
        """Of rows of inputs those of outputs."""
        if self.kind == "bf16":
            return F.linear(x, self.weight)
        if self.kind in ("int8", "fp8"):
            return F.linear(x, self.weight.to(x.dtype)) * self.scales
        halves = torch.stack((self.weight & 15, self.weight >> 4), -1)
        whole = halves.view(*self.scales.shape, -1).to(x.dtype) - 8
        return F.linear(x, (whole * self.scales[..., None]).flatten(1))


def _scales(*shape: int) -> Tensor:
    return torch.rand(*shape).add(0.5).to(torch.bfloat16)


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * weight


def _turned(x: Tensor, turns: Tensor) -> Tensor:
    """The rotary embedding of (rows, heads, head), of pairs of neighbours."""
    pairs = x.float().unflatten(-1, (-1, 2))
    real, imaginary = pairs.unbind(-1)
    cos, sin = turns.unbind(-1)
    return (
        torch.stack((real * cos - imaginary * sin, imaginary * cos + real * sin), -1)
        .flatten(-2)
        .type_as(x)
    )


class Layer(nn.Module):
    """Attention over a cache, and a gated product."""

    def __init__(self, kind: str, shape: Shape, rows: int) -> None:
        super().__init__()
        self.shape = shape
        width, keys = shape.width, shape.key_heads * shape.head
        self.inputs = Linear(kind, width + 2 * keys, width)
        self.output = Linear(kind, width, width)
        self.gate, self.up = (Linear(kind, shape.between, width) for _ in range(2))
        self.down = Linear(kind, width, shape.between)
        for name in ("first", "second"):
            self.register_buffer(name, torch.ones(width, dtype=torch.bfloat16))
        cache = torch.zeros(rows, shape.key_heads, shape.context, shape.head, dtype=torch.bfloat16)
        self.register_buffer("keys", cache)
        self.register_buffer("values", cache.clone())

    def forward(self, x: Tensor, place: Tensor, turns: Tensor, mask: Tensor) -> Tensor:
        """(rows, width) to (rows, width)."""
        shape, rows = self.shape, x.shape[0]
        keys = shape.key_heads * shape.head
        every = self.inputs(_normed(x, self.first)).split([shape.width, keys, keys], -1)
        q, k, v = (t.view(rows, -1, shape.head) for t in every)
        q, k = _turned(q, turns), _turned(k, turns)
        self.keys[:, :, place] = k[:, :, None]
        self.values[:, :, place] = v[:, :, None]
        found = F.scaled_dot_product_attention(
            q[:, :, None], self.keys, self.values, attn_mask=mask, enable_gqa=True
        )
        x = x + self.output(found.flatten(1))
        y = _normed(x, self.second)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """One step of decoding."""

    def __init__(self, kind: str, shape: Shape, rows: int) -> None:
        super().__init__()
        embedding = torch.randn(shape.tokens, shape.width, dtype=torch.bfloat16)
        self.register_buffer("embedding", embedding)
        self.layers = nn.ModuleList(Layer(kind, shape, rows) for _ in range(shape.layers))
        self.register_buffer("last", torch.ones(shape.width, dtype=torch.bfloat16))
        self.head = Linear(kind, shape.tokens, shape.width)
        angles = torch.outer(
            torch.arange(shape.context), 5e5 ** -torch.linspace(0, 1, shape.head // 2)
        )
        self.register_buffer("turns", torch.stack((angles.cos(), angles.sin()), -1))
        self.register_buffer("mask", torch.ones(shape.context, shape.context).tril().bool())

    def forward(self, token: Tensor, place: Tensor) -> Tensor:
        """Tokens (rows,) at a place (1,) to logits (rows, tokens)."""
        x = F.embedding(token, self.embedding)
        turns, mask = self.turns[place], self.mask[place]
        for layer in self.layers:
            x = layer(x, place, turns, mask)
        return self.head(_normed(x, self.last))


@dataclass(frozen=True)
class Line:
    """One system: milliseconds of a step, tokens a second of a loop, seconds of the first call."""

    weights: str
    rows: int
    system: str
    step_ms: float
    tokens_s: float
    error: float
    first_s: float


def _compiled(system: str, model: nn.Module) -> Callable[..., Tensor]:
    name, _, mode = system.partition(":")
    if name == "eager":
        return model
    own = {"mode": mode} if mode else {}
    if name == "dovetail":
        return dovetail.compile(model, dynamic=False, **own)
    return torch.compile(model, dynamic=False, **own)


def _seconds(step: Callable[[], Any], count: int) -> float:
    """Of one of so many steps in a row; the least of five tries."""
    tries = []
    for _ in range(5):
        _finish()
        start = time.perf_counter()
        for _ in range(count):
            step()
        _finish()
        tries.append((time.perf_counter() - start) / count)
    return min(tries)


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measured(kind: str, shape: Shape, options: Any) -> list[Line]:
    """All systems on one kind of weights."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = Decoder(kind, shape, options.rows)
        token = torch.arange(options.rows)
        places = [torch.tensor([p]) for p in range(shape.context)]
    held = sum(t.nbytes for n, t in model.named_buffers() if "weight" in n or "scales" in n)
    print(f"{kind}: {held / 1e9:.3f} GB of weights", file=sys.stderr)
    lines = []
    with torch.no_grad():
        exact = copy.deepcopy(model).float()
        wanted = exact(token, places[-1])
        del exact
        for system in ("eager", *options.systems):
            torch.compiler.reset()
            for layer in model.layers:
                layer.keys.zero_(), layer.values.zero_()
            start = time.perf_counter()
            compiled = _compiled(system, model)
            got = compiled(token, places[-1]).float()
            _finish()
            first = time.perf_counter() - start
            error = float((got - wanted).abs().max() / wanted.std())
            for _ in range(4):
                compiled(token, places[-1])
            count = 3 if options.small else 30
            step = _seconds(lambda: compiled(token, places[-1]), count)  # noqa: B023
            if options.profile and system != "eager":
                _profile(lambda: compiled(token, places[-1]))  # noqa: B023

            def loop() -> None:
                fed = token
                for place in places[-count:]:  # noqa: B023
                    fed = compiled(fed, place).argmax(-1)  # noqa: B023

            loop()
            whole = options.rows * count / _seconds(loop, 1)
            lines.append(Line(kind, options.rows, system, step * 1e3, whole, error, first))
            print(asdict(lines[-1]), file=sys.stderr, flush=True)
    return lines


def _profile(step: Callable[[], Any]) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        for _ in range(5):
            step()
        _finish()
    events = sorted(
        (e for e in prof.events() if e.device_type == torch.autograd.DeviceType.CUDA),
        key=lambda e: e.time_range.start,
    )
    busy: dict[str, list[float]] = {}
    for event in events:
        busy.setdefault(event.name, []).append(event.time_range.elapsed_us())
    span = (events[-1].time_range.end - events[0].time_range.start) / 5
    total = sum(map(sum, busy.values())) / 5
    print(f"one step: {span:.0f} us, kernels {total:.0f} us, {len(events) / 5:.0f} launches")
    for name, times in sorted(busy.items(), key=lambda item: -sum(item[1]))[:24]:
        each = sum(times) / len(times)
        print(f"{sum(times) / 5:8.1f} us  {len(times) / 5:5.0f} x {each:6.2f} us  {name[:90]}")


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--systems", nargs="+", default=["dovetail"])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    shape = Shape(16, 2048, 32, 8, 8192, 128256, options.context)
    if options.small:
        shape = Shape(2, 256, 8, 2, 512, 1000, 128)
    lines = [line for kind in options.weights for line in measured(kind, shape, options)]
    print(machine("cuda" if torch.cuda.is_available() else "cpu"))
    print(
        "| weights | rows | system | step ms | tokens/s | error | first call |\n"
        + "| --- " * 7
        + "|"
    )
    for x in lines:
        print(
            f"| {x.weights} | {x.rows} | {x.system} | {x.step_ms:.3f} | {x.tokens_s:.0f} "
            f"| {x.error:.3f} | {x.first_s:.1f} s |"
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(line) for line in lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
