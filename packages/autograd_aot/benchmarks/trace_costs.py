"""How long tracing and partitioning take: `python packages/autograd_aot/benchmarks/trace_costs.py`.

A language model (tied embedding, cross-entropy) of 4 and of 12 layers, with and without
decompositions; then what a call and an output cost besides the compiled code. CPU time, so that a
busy machine counts less.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from dovetail_autograd_aot.joint.joint_trace import trace_joint
from dovetail_autograd_aot.partition.min_cut import default_partition, min_cut_partition
from dovetail_autograd_aot.pipeline import aot_compile
from dovetail_prims.decompositions import core_aten_table
from torch import Tensor, nn
from torch.fx import Graph, GraphModule


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, width))
        hidden = F.gelu(self.up(self.norm2(x)))
        return x + F.dropout(self.down(hidden), 0.1, self.training)


class LanguageModel(nn.Module):
    """Embedding, blocks, tied output, loss."""

    def __init__(self, layers: int = 4, width: int = 64, vocabulary: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width, 4) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.embed.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def lifted(module: nn.Module, *inputs: Any) -> tuple[GraphModule, list[Any]]:
    """A one-call graph of a module over its parameters, buffers and inputs; and its inputs."""
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    names = list(named)

    def call(*flat: Any) -> tuple[Any, ...]:
        state = dict(zip(names, flat, strict=False))
        result = torch.func.functional_call(module, state, flat[len(names) :])
        return result if isinstance(result, tuple) else (result,)

    flat = [*named.values(), *inputs]
    graph = Graph()
    graph.output(
        graph.call_function(call, tuple(graph.placeholder(f"arg{i}") for i in range(len(flat))))
    )
    return GraphModule(nn.Module(), graph), flat


def _best(run: Callable[[], Any], repeat: int = 5) -> tuple[float, Any]:
    times = []
    for _ in range(repeat):
        start = time.process_time()
        result = run()
        times.append(time.process_time() - start)
    return min(times) * 1e3, result


def _report(label: str, gm: GraphModule, flat: list[Any], table: Mapping[Any, Any]) -> None:
    first, _ = _best(lambda: trace_joint(gm, flat, decompositions=table), 1)
    trace, joint = _best(lambda: trace_joint(gm, flat, decompositions=table))
    cut, parts = _best(lambda: min_cut_partition(joint))
    _, plain = _best(lambda: default_partition(joint))
    nodes = len(joint.gm.graph.nodes)
    print(
        f"{label:20} joint trace {trace:7.1f} ms (first {first:.1f}), {nodes} nodes, "
        f"{trace * 1e3 / nodes:5.1f} us a node; partition {cut:6.1f} ms; saved "
        f"{parts.saved_bytes:,} B (default partition {plain.saved_bytes:,} B)"
    )


def _overhead() -> None:
    def call(a: Tensor, b: Tensor) -> tuple[Tensor]:
        return (a + b,)

    graph = Graph()
    graph.output(graph.call_function(call, (graph.placeholder("a"), graph.placeholder("b"))))
    a, b = torch.randn(4), torch.randn(4)
    constant = (torch.randn(4),)
    for label, inputs in (("inference", (a, b)), ("training", (a.clone().requires_grad_(), b))):
        run = aot_compile(
            GraphModule(nn.Module(), graph),
            inputs,
            forward_compiler=lambda gm, examples: lambda *args: constant,
        )
        elapsed, _ = _best(functools.partial(_call_often, run, inputs), 3)
        print(f"wrapper cost per call, {label}: {elapsed * 1e3 / _CALLS:.2f} us")


_CALLS = 20000


def _call_often(run: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
    for _ in range(_CALLS):
        run(*inputs)


def _outputs() -> None:
    costs = []
    for count in (1, 1 + _MORE):
        graph = Graph()
        graph.output(graph.call_function(_chain, (graph.placeholder("a"), count)))
        a = torch.randn((), requires_grad=True)
        run = aot_compile(GraphModule(nn.Module(), graph), (a,), forward_compiler=_nothing)
        forward, last = _best(functools.partial(_last_outputs, run, a))
        costs.append((forward, _best(functools.partial(_gradients, last, a))[0]))
    (forward, backward), (forward_more, backward_more) = costs
    each = 1e3 / _OUTPUTS / _MORE
    print(
        f"cost per further output that is computed from the one before, operators apart: forward "
        f"{(forward_more - forward) * each:.2f} us, backward "
        f"{(backward_more - backward) * each:.2f} us"
    )


_MORE, _OUTPUTS = 20, 1000


def _chain(a: Tensor, count: int) -> tuple[Tensor, ...]:
    found = [a]
    for _ in range(count):
        found.append(found[-1].sin())
    return tuple(found[1:])


def _nothing(gm: GraphModule, examples: list[Any]) -> Callable[..., list[Tensor]]:
    """What gives tensors that are there already."""
    results = next(n for n in gm.graph.nodes if n.op == "output").args[0]
    ready = [torch.zeros(()) for _ in results]
    return lambda *args: [tensor.detach() for tensor in ready]


def _last_outputs(run: Callable[..., Any], a: Tensor) -> list[Tensor]:
    return [run(a)[-1] for _ in range(_OUTPUTS)]


def _gradients(outputs: list[Tensor], a: Tensor) -> None:
    for output in outputs:
        torch.autograd.grad(output, a, retain_graph=True)


def main() -> None:
    """Print the measurements."""
    tokens = torch.randint(0, 128, (4, 16))
    for layers in (4, 12):
        gm, flat = lifted(LanguageModel(layers), tokens, tokens)
        _report(f"ATEN, {layers} layers", gm, flat, {})
        _report(f"CORE_ATEN, {layers} layers", gm, flat, core_aten_table())
    _overhead()
    _outputs()


if __name__ == "__main__":
    main()
