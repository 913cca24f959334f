"""Selective checkpointing: what a policy says is saved, and every number is eager's."""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_autograd_aot import JointGraph, PartitionedGraph, aot_compile, min_cut_partition
from dovetail_prims.decompositions import core_aten_table
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts as contexts

import dovetail

aten = torch.ops.aten
Call = Callable[..., Any]
BATCH, WIDTH, INNER = 16, 32, 128
PRODUCTS = [aten.addmm.default]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.up(self.norm(x)))
        return x + F.dropout(self.down(inner), 0.1, self.training)


def only(answer: CheckpointPolicy) -> Call:
    """A policy that gives `answer` for products."""

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return answer if op in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def by_truth(context: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
    return op in PRODUCTS


def with_a_default() -> Any:
    """A policy of its own that has a default, which it is never called with."""

    def policy(context: Any, op: Any, first: Any = None, *args: Any, **kwargs: Any) -> bool:
        return op in PRODUCTS

    return lambda: contexts(policy)


def second_of_two() -> Any:
    """Contexts of a function of its own, whose policy counts."""
    seen: dict[str, int] = defaultdict(int)

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        seen["products"] += op in PRODUCTS
        save = op in PRODUCTS and seen["products"] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    return contexts(policy)


def trained(context_fn: Any, depth: int = 3) -> tuple[PartitionedGraph, list[Any], list[Any]]:
    """How the graph was cut; the result and the gradients, compiled and eager."""
    torch.manual_seed(0)
    blocks = [Block() for _ in range(depth)]
    twins = copy.deepcopy(blocks)
    given = {} if context_fn is None else {"context_fn": context_fn}
    cuts: list[PartitionedGraph] = []

    def partition(joint: JointGraph) -> PartitionedGraph:
        cuts.append(min_cut_partition(joint))
        return cuts[-1]

    def backend(gm: torch.fx.GraphModule, examples: Any) -> Call:
        return aot_compile(
            gm, examples, forward_compiler=lambda graph, inputs: graph.forward,
            decompositions=core_aten_table(), partition=partition,
        )  # fmt: skip

    def network(x: Tensor, blocks: list[Block]) -> Tensor:
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False, **given)
        return x

    found = []
    x = torch.randn(BATCH, WIDTH)
    compiled = dovetail.compile(network, backend=backend, fullgraph=True)
    for call, layers in ((compiled, blocks), (network, twins)):
        torch.manual_seed(2)
        leaf = x.clone().requires_grad_()
        out = call(leaf, layers)
        out.square().mean().backward()
        found.append([out.detach(), leaf.grad, *(p.grad for b in layers for p in b.parameters())])
    (cut,) = cuts
    return cut, found[0], found[1]


PLAIN = 4 * BATCH * WIDTH * (2 + 3)  # between three blocks, and what each dropout drew
UP = 4 * BATCH * INNER * 3


@pytest.mark.parametrize(
    ("context_fn", "expected"),
    [
        (functools.partial(contexts, PRODUCTS), PLAIN + UP),
        (functools.partial(contexts, only(CheckpointPolicy.MUST_SAVE)), PLAIN + UP),
        (functools.partial(contexts, only(CheckpointPolicy.PREFER_SAVE)), PLAIN + UP),
        (functools.partial(contexts, only(CheckpointPolicy.MUST_RECOMPUTE)), PLAIN),
        (functools.partial(contexts, only(CheckpointPolicy.PREFER_RECOMPUTE)), PLAIN),
        (functools.partial(contexts, policy_fn_or_list=by_truth), PLAIN + UP),
        (functools.partial(contexts, [aten.mul.Tensor, aten.sin.default]), PLAIN),
        (lambda: contexts(by_truth), PLAIN + UP),
        (second_of_two, PLAIN + UP),
        (with_a_default(), PLAIN + UP),
        (None, PLAIN),
    ],
)
def test_what_a_policy_selects_is_saved(context_fn: Any, expected: int) -> None:
    cut, ours, theirs = trained(context_fn)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert cut.saved_bytes == expected
    again = [n for n in cut.backward.graph.nodes if n.target is aten.addmm.default]
    assert len(again) == (0 if expected > PLAIN else 3)


def test_a_policy_is_asked_what_eager_asks() -> None:
    asked: list[str] = []

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if not context.is_recompute:
            asked.append(f"{op} {[tuple(a.shape) for a in args if isinstance(a, Tensor)]}")
        return CheckpointPolicy.PREFER_RECOMPUTE

    block = Block()
    choose = functools.partial(contexts, policy)

    def step(x: Tensor) -> Tensor:
        return checkpoint(block, x, use_reentrant=False, context_fn=choose)

    x = torch.randn(2, 3, WIDTH, requires_grad=True)
    step(x).sum().backward()
    theirs = list(asked)
    asked.clear()
    dovetail.compile(step, fullgraph=True)(x).sum().backward()
    assert asked == theirs


def nested(x: Tensor, w: Tensor, first: Any, second: Any) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        return checkpoint(lambda t: (t @ w).sin().exp(), x, use_reentrant=False, **second)

    return checkpoint(lambda t: inner(inner(t).cos()), x.tanh(), use_reentrant=False, **first)


def views_and_writes(x: Tensor, w: Tensor, first: Any, second: Any) -> Tensor:
    def region(t: Tensor) -> Tensor:
        rows = (t @ w).t().reshape(-1, 2)
        rows = rows.sin().mul_(2).chunk(2)[1].exp()
        return rows.reshape(-1, 4).softmax(-1)

    return checkpoint(region, x, use_reentrant=False, **first)


@pytest.mark.parametrize("method", [nested, views_and_writes])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("ops", [[aten.mm.default], [aten.t.default, aten.exp.default], []])
def test_values_of_regions_that_select(method: Call, inside: bool, ops: list[Any]) -> None:
    select = {"context_fn": functools.partial(contexts, ops)}
    first, second = ({}, select) if inside else (select, {})
    found = []
    for call in (dovetail.compile(method, fullgraph=True), method):
        torch.manual_seed(0)
        x = torch.randn(8, 8, requires_grad=True)
        w = torch.randn(8, 8, requires_grad=True)
        out = call(x, w, first, second)
        out.square().sum().backward()
        found.append([out.detach(), x.grad, w.grad])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_random_numbers_of_a_region_are_eagers() -> None:
    torch.manual_seed(0)
    net = Block()
    choose = functools.partial(contexts, PRODUCTS)

    def step(x: Tensor) -> Tensor:
        return checkpoint(net, x, use_reentrant=False, context_fn=choose)

    found = []
    x = torch.randn(BATCH, WIDTH)
    for call in (dovetail.compile(step, options={"fallback_random": True}), step):
        torch.manual_seed(3)
        leaf = x.clone().requires_grad_()
        net.zero_grad()
        for _ in range(2):
            call(leaf).square().sum().backward()
        found.append([leaf.grad, *(p.grad.clone() for p in net.parameters())])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def other_contexts(x: Tensor) -> Tensor:
    def make() -> Any:
        return nullcontext(), nullcontext()

    return checkpoint(torch.sin, x, use_reentrant=False, context_fn=make)


def selects_by_what_is_wrong(x: Tensor) -> Tensor:
    choose = functools.partial(contexts, [aten.mm])
    return checkpoint(torch.sin, x, use_reentrant=False, context_fn=choose)


def reentrant(x: Tensor) -> Tensor:
    choose = functools.partial(contexts, [aten.mm.default])
    return checkpoint(torch.sin, x, use_reentrant=True, context_fn=choose)


@pytest.mark.parametrize(
    ("method", "reason", "error"),
    [
        (other_contexts, "contexts of its own", None),
        (selects_by_what_is_wrong, "is to save", "Expected op in `op_list`"),
        (reentrant, "only one with use_reentrant=False", "only supported when use_reentrant"),
    ],
)
def test_other_contexts_break_the_graph(method: Call, reason: str, error: str | None) -> None:
    x = torch.randn(4, requires_grad=True)
    call = dovetail.compile(method)
    if error is None:
        torch.testing.assert_close(call(x), method(x))
    else:
        for each in (method, call):
            with pytest.raises(ValueError, match=error):
                each(x)
    assert any(reason in b.reason for b in dovetail.report(call).breaks)


@pytest.mark.parametrize("early_stop", [True, False])
def test_a_checkpoint_around_a_compiled_model_counts_twice_as_eager_does(early_stop: bool) -> None:
    """Its recomputation ends where the last saved tensor was: after what batch norm counts."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Conv2d(4, 4, 3, bias=False))
    twin = copy.deepcopy(model)
    found = []
    for run, owner in ((model, model), (dovetail.compile(twin), twin)):
        x = torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8).requires_grad_()
        with torch.utils.checkpoint.set_checkpoint_early_stop(early_stop):
            out = torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False)
            out.square().sum().backward()
        assert x.grad is not None
        grads = [p.grad for p in owner.parameters() if p.grad is not None]
        found.append([*(b.float() for b in owner.buffers()), *grads, x.grad])
    for eager, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)
    assert int(twin[1].num_batches_tracked) == 2
