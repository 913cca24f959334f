"""Small nets, optimizers and layouts on a CPU: eager, torch.compile and Dovetail in turns.

    OMP_NUM_THREADS=1 python integration_tests/benchmarks/cpu_suite.py [CASE ...] [--seconds 3]

Prints a Markdown table of milliseconds, of all rounds the fastest, as other work on the machine
slows down any of them; then the geometric means. (The nets are so small that a run takes minutes,
most of them torch.compile's first calls.)
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from micro import cases as micro_cases
from timm import create_model
from torch import Tensor, nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

import dovetail
from dovetail.bench.table import machine

Call = Callable[[], Any]
Compile = Callable[[Any], Any]
Make = Callable[[Compile], Call]
SYSTEMS: dict[str, Compile] = {
    "eager": lambda f: f,
    "torch.compile": torch.compile,
    "dovetail": dovetail.compile,
}


class Block(nn.Module):
    """A block of a decoder, with causal attention."""

    def __init__(self, width: int = 256, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then two layers, each with a norm before and a sum behind."""
        b, t, d = x.shape
        heads = self.qkv(self.before(x)).view(b, t, 3, self.heads, d // self.heads)
        y = F.scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))


class Recurrent(nn.Module):
    """What a layer of `torch.nn` gives for each step."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(64, 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs without the state."""
        outputs: Tensor = self.layer(x)[0]
        return outputs


class Recommender(nn.Module):
    """DLRM: bags of embeddings, and the products of all pairs of them."""

    def __init__(self) -> None:
        super().__init__()
        bags = (nn.EmbeddingBag(10000, 64, mode="sum") for _ in range(8))
        self.bags = nn.ModuleList(bags)
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid())
        self.register_buffer("pairs", torch.tril_indices(9, 9, -1))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        """Of numbers and of places in the tables."""
        dense = self.bottom(x)
        rows = torch.stack([dense, *(bag(places[i]) for i, bag in enumerate(self.bags))], 1)
        products = (rows @ rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        result: Tensor = self.top(torch.cat([dense, products], 1))
        return result


def layers(*widths: int, norm: Callable[[int], nn.Module], act: type[nn.Module]) -> nn.Module:
    """Convolutions of 3 x 3, each with a norm and an activation."""
    found: list[nn.Module] = []
    for i, o in pairwise(widths):
        found += [nn.Conv2d(i, o, 3, padding=1), norm(o), act()]
    return nn.Sequential(*found)


class UNet(nn.Module):
    """Two levels down and up again."""

    def __init__(self, c: int = 16) -> None:
        super().__init__()
        kind: dict[str, Any] = {"norm": lambda o: nn.GroupNorm(8, o), "act": nn.SiLU}
        self.down = layers(3, c, c, **kind)
        self.lower, self.middle = layers(c, 2 * c, 2 * c, **kind), layers(2 * c, 4 * c, **kind)
        self.upper, self.up = layers(6 * c, 2 * c, **kind), layers(3 * c, c, **kind)
        self.last = nn.Conv2d(c, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Of the images' size."""
        a = self.down(x)
        b = self.lower(F.max_pool2d(a, 2))
        m = F.interpolate(self.middle(F.max_pool2d(b, 2)), scale_factor=2.0)
        u = F.interpolate(self.upper(torch.cat([m, b], 1)), scale_factor=2.0, mode="bilinear")
        result: Tensor = self.last(self.up(torch.cat([u, a], 1)))
        return result


class DeepLab(nn.Module):
    """Dilated convolutions beside a pooled branch."""

    def __init__(self, c: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, c, 3, 2, 1), nn.BatchNorm2d(c), nn.ReLU(),
            nn.Conv2d(c, 2 * c, 3, 2, 1), nn.BatchNorm2d(2 * c), nn.ReLU(),
        )  # fmt: skip
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(2 * c, c, 3, padding=d, dilation=d, bias=False),
                nn.BatchNorm2d(c),
                nn.ReLU(),
            )
            for d in (1, 6, 12)
        )
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(2 * c, c, 1), nn.ReLU())
        self.head = nn.Sequential(nn.Conv2d(4 * c, c, 1), nn.ReLU(), nn.Conv2d(c, 21, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Scores of 21 classes at each place."""
        y = self.stem(x)
        pooled = F.interpolate(self.pooled(y), size=y.shape[-2:], mode="bilinear")
        z = self.head(torch.cat([*(branch(y) for branch in self.branches), pooled], 1))
        return F.interpolate(z, size=x.shape[-2:], mode="bilinear")


def inference(net: nn.Module, *inputs: Tensor) -> Make:
    """A net's call without gradients."""

    def make(compiled: Compile) -> Call:
        return function(net.eval(), *inputs)(compiled)

    return make


def function(fn: Callable[..., Any], *inputs: Tensor) -> Make:
    """A function's call without gradients."""

    def make(compiled: Compile) -> Call:
        run = compiled(fn)

        def call() -> None:
            with torch.no_grad():
                run(*inputs)

        return call

    return make


def training(net: nn.Module, *inputs: Tensor) -> Make:
    """A net's forward, and the backward of its result's mean square."""

    def make(compiled: Compile) -> Call:
        own = copy.deepcopy(net).train()
        run = compiled(own)

        def call() -> None:
            out = run(*inputs)
            getattr(out, "last_hidden_state", out).square().mean().backward()
            own.zero_grad()

        return call

    return make


def stepping(kind: type[torch.optim.Optimizer], **options: float) -> Make:
    """An optimizer's step of eight layers of 256."""

    def make(compiled: Compile) -> Call:
        parameters = [nn.Parameter(torch.randn(256, 256)) for _ in range(8)]
        parameters += [nn.Parameter(torch.randn(256)) for _ in range(8)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        call: Call = compiled(kind(parameters, lr=1e-3, **options).step)  # type: ignore[arg-type]
        return call

    return make


def bert() -> nn.Module:
    """Four layers of 256."""
    return BertModel(
        BertConfig(
            hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
        )
    )


def llama() -> nn.Module:
    """Four layers of 256, without a cache."""
    config = LlamaConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=688, vocab_size=2000, use_cache=False,
    )  # fmt: skip
    return LlamaModel(config)


def nets() -> dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]]:
    """Each net, and what it is called with."""
    images = (torch.randn(2, 3, 224, 224),)
    steps, places = torch.randn(8, 32, 64), torch.randint(0, 10000, (8, 256, 4))
    perceptron = (nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU())
    return {
        "ResNet-18": lambda: (create_model("resnet18"), images),
        "BERT": lambda: (bert(), (torch.randint(0, 1000, (4, 128)),)),
        "Llama": lambda: (llama(), (torch.randint(0, 1000, (2, 128)),)),
        "GPT blocks": lambda: (
            nn.Sequential(*(Block() for _ in range(3))),
            (torch.randn(2, 256, 256),),
        ),
        "LSTM": lambda: (Recurrent(nn.LSTM), (steps,)),
        "GRU": lambda: (Recurrent(nn.GRU), (steps,)),
        "ViT": lambda: (create_model("vit_tiny_patch16_224"), images),
        "DLRM": lambda: (Recommender(), (torch.randn(256, 13), places)),
        "UNet": lambda: (UNet(), (torch.randn(2, 3, 64, 64),)),
        "ConvNeXt": lambda: (create_model("convnext_atto"), images),
        "DeepLab": lambda: (DeepLab(), (torch.randn(2, 3, 128, 128),)),
        "perceptron": lambda: (
            nn.Sequential(*perceptron, nn.Linear(1024, 10)),
            (torch.randn(128, 256),),
        ),
    }


def all_cases() -> dict[str, Callable[[], Make]]:
    """By name: nets, their training, optimizers' steps, copies in other layouts, micro kernels."""
    found: dict[str, Callable[[], Make]] = {}
    for name, new in nets().items():
        found[name] = lambda new=new: inference(new()[0], *new()[1])  # type: ignore[misc]
        found[f"{name} train"] = lambda new=new: training(new()[0], *new()[1])  # type: ignore[misc]
    found["AdamW"] = lambda: stepping(torch.optim.AdamW)
    found["SGD"] = lambda: stepping(torch.optim.SGD, momentum=0.9)
    matrix, images = torch.randn(1024, 1024), torch.randn(16, 128, 16, 32)
    last = images.to(memory_format=torch.channels_last)
    copies: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
        "transposed copy": (lambda x: x.t().contiguous(), matrix),
        "transposed copy bf16": (lambda x: x.t().contiguous(), matrix.bfloat16()),
        "to channels last": (lambda x: x.to(memory_format=torch.channels_last), images),
        "to channels first": (lambda x: x.contiguous() * 2, last),
        "dimensions reversed": (
            lambda x: x.permute(2, 1, 0).contiguous(),
            matrix.view(8, 128, 1024),
        ),
        "heads": (lambda x: x.view(8, 128, 8, -1).transpose(1, 2).contiguous(), matrix),
    }
    for name, (fn, x) in copies.items():
        found[name] = lambda fn=fn, x=x: function(fn, x)  # type: ignore[misc]
    for name, (fn, inputs) in micro_cases("cpu", torch.float32).items():
        found[name] = lambda fn=fn, inputs=inputs: function(fn, *inputs)  # type: ignore[misc]
    return found


def fastest(calls: list[Call], seconds: float) -> list[float]:
    """Of each call the fastest of two a round, in milliseconds; the calls take turns."""
    for _ in range(2):
        for call in calls:
            call()
    best = [math.inf] * len(calls)
    start, rounds = perf_counter(), 0
    while rounds < 4 or (perf_counter() - start < seconds and rounds < 1000):
        rounds += 1
        for i, call in enumerate(calls):
            call()
            for _ in range(2):
                begun = perf_counter()
                call()
                best[i] = min(best[i], (perf_counter() - begun) * 1e3)
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(f"{machine('cpu')}; {torch.get_num_threads()} threads\n")
    print(f"| case | {' | '.join(SYSTEMS)} | beside eager | beside torch.compile |")
    print("|---|" + "---|" * (len(SYSTEMS) + 2))
    cases = all_cases()
    logarithms = [0.0, 0.0]
    names = arguments.cases or list(cases)
    for name in names:
        torch.compiler.reset()
        make = cases[name]()
        eager, theirs, ours = fastest([make(c) for c in SYSTEMS.values()], arguments.seconds)
        ratios = (eager / ours, theirs / ours)
        logarithms = [a + math.log(b) for a, b in zip(logarithms, ratios, strict=True)]
        cells = [f"{t:.3g}" for t in (eager, theirs, ours)] + [f"{r:.2f}x" for r in ratios]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    means = " | ".join(f"{math.exp(total / len(names)):.2f}x" for total in logarithms)
    print(f"| geometric mean of {len(names)} | | | | {means} |")


if __name__ == "__main__":
    main()
