"""Behind a check on a GPU, what a GPU may not be given is harmless where the check fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_capture import optimize
from torch import Tensor
from torch.fx import GraphModule

META = torch.device("meta")  # not the CPU: captured as a GPU's tensors are
PLACES = torch.tensor([0, 1, 2], device=META)
TABLE = torch.rand(3, 4, device=META)


def checked(x: Tensor) -> None:
    if (x < 0).any():
        raise IndexError("negative")


def graphs_of(function: Callable[..., Any], *args: Tensor) -> list[GraphModule]:
    """The graphs; none of them can run on such tensors."""
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    with pytest.raises(RuntimeError):
        optimize(function, backend)(*args)
    return graphs


def by_index(i: Tensor, table: Tensor) -> Any:
    checked(i)
    return table[i], F.embedding(i, table), table.gather(0, i[:, None]), table[:, 1]


def by_class(i: Tensor, table: Tensor) -> Any:
    checked(i)
    return F.cross_entropy(table, i), F.nll_loss(table, target=i)


def by_chance(p: Tensor) -> Any:
    checked(p)
    return p.multinomial(1).T, torch.bernoulli(p)


@pytest.mark.parametrize(
    ("function", "args", "number"),
    [(by_index, (PLACES, TABLE), 0), (by_class, (PLACES, TABLE), 0), (by_chance, (TABLE,), 1)],
)
def test_arguments_are_harmless(function: Any, args: tuple[Tensor, ...], number: int) -> None:
    (gm,) = graphs_of(function, *args)
    replaced = gm.graph.find_nodes(op="call_function", target=torch.where)
    assert replaced
    assert {node.args[2] for node in replaced} == {number}
    given = [node for node in gm.graph.nodes if node.op == "placeholder"]
    unsafe = {"embedding", "gather", "cross_entropy", "nll_loss", "multinomial", "bernoulli"}
    for node in given[0].users:
        assert getattr(node.target, "__name__", node.target) not in unsafe


def test_what_is_not_known_breaks_the_graph() -> None:
    def function(i: Tensor, table: Tensor) -> Any:
        checked(i)
        return torch.take(table, i)

    (gm,) = graphs_of(function, PLACES, TABLE)
    assert not any(getattr(n.target, "__name__", "") == "take" for n in gm.graph.nodes)


def test_before_the_check_nothing_changes() -> None:
    def function(i: Tensor, table: Tensor) -> Any:
        found = table[i]
        checked(i)
        return found * 2

    (gm,) = graphs_of(function, PLACES, TABLE)
    assert not gm.graph.find_nodes(op="call_function", target=torch.where)
