"""Steps of LBFGS and SparseAdam on a GPU, compiled as several graphs, against eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail

pytestmark = pytest.mark.gpu

MODES = ("default", "reduce-overhead")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_searches(search: str | None, mode: str) -> None:
    def run(wrap: Callable[[Any], Any]) -> tuple[list[float], Any, Any]:
        torch.manual_seed(0)
        layers = [nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)]
        net = nn.Sequential(*layers).double().cuda()
        x, y = (torch.randn(32, n, dtype=torch.float64).cuda() for n in (8, 4))
        optimizer = torch.optim.LBFGS(
            net.parameters(), lr=0.1, max_iter=4, history_size=21, line_search_fn=search
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            return loss

        step = wrap(optimizer.step)
        losses = [step(closure).item() for _ in range(15)]
        return losses, optimizer.state_dict()["state"][0], step

    losses, state, step = run(lambda step: dovetail.compile(step, mode=mode))
    their_losses, their_state, _ = run(lambda step: step)
    torch.testing.assert_close(losses, their_losses, rtol=1e-6, atol=0)
    assert state.keys() == their_state.keys()
    for name in ("old_dirs", "old_stps", "ro", "prev_flat_grad"):
        torch.testing.assert_close(state[name], their_state[name], rtol=1e-4, atol=1e-7)
    assert dovetail.report(step).graphs > 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [50, 30_000])
def test_rows_of_tables(rows: int, mode: str) -> None:
    def run(wrap: Callable[[Any], Any]) -> tuple[Tensor, dict[str, Any], Any]:
        torch.manual_seed(0)
        table = nn.EmbeddingBag(rows, 8, sparse=True, mode="sum", dtype=torch.float64).cuda()
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.01)
        step = wrap(optimizer.step)
        for _ in range(20):
            optimizer.zero_grad()
            table(torch.randint(0, rows, (40, 3)).cuda()).square().sum().backward()
            step()
        return table.weight.detach(), optimizer.state_dict()["state"][0], step

    ours, state, step = run(lambda step: dovetail.compile(step, mode=mode))
    theirs, their_state, _ = run(lambda step: step)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(state[name], their_state[name], rtol=1e-9, atol=1e-12)
    told = dovetail.report(step)
    assert told.graphs >= 2 and not told.extern_calls
