"""Models with two losses, each with a backward of its own, on a GPU: recorded graphs keep what the
second backward reads until it has run."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import dovetail

pytestmark = pytest.mark.gpu

CALLS = 14


class ActorCritic(nn.Module):
    """Two towers that share nothing but their input, launch-bound."""

    def __init__(self) -> None:
        super().__init__()

        def tower(out: int) -> nn.Sequential:
            hidden = [m for _ in range(8) for m in (nn.Linear(64, 64), nn.GELU())]
            return nn.Sequential(*hidden, nn.LayerNorm(64), nn.Linear(64, out))

        self.actor, self.critic = tower(16), tower(1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(x).log_softmax(-1), self.critic(x)


def losses(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    policy, value = model(x)
    return -policy[:, 0].mean(), (value - 1).pow(2).mean()


def backward(pattern: str, call: int, actor: Tensor, critic: Tensor) -> None:
    if pattern == "critic first" or (pattern == "in turns" and call % 2):
        actor, critic = critic, actor
    if pattern == "one is enough" and call % 2:
        actor.backward()
        return
    if pattern == "together" and call % 2:
        (actor + critic).backward()
        return
    actor.backward()
    if pattern == "memory is used between":
        noise = [torch.full((1 << 16,), float("nan"), device="cuda") for _ in range(32)]
        del noise
    critic.backward()


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("pattern", ["actor first", "critic first", "in turns", "one is enough",
                                     "together", "memory is used between"])  # fmt: skip
def test_each_loss_has_its_own_backward(
    pattern: str, mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    torch.manual_seed(0)
    eager = ActorCritic().cuda()
    other = copy.deepcopy(eager)
    compiled = dovetail.compile(other, fullgraph=True, mode=mode)
    peaks = []
    for call in range(CALLS):
        x = torch.randn(32, 64, device="cuda")
        for model in (eager, compiled):
            torch.cuda.reset_peak_memory_stats()
            model.zero_grad()
            backward(pattern, call, *losses(model, x))
        peaks.append(torch.cuda.max_memory_allocated())
        pairs = zip(eager.named_parameters(), other.named_parameters(), strict=True)
        for (name, a), (_, b) in pairs:
            assert (a.grad is None) == (b.grad is None), name
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-5, msg=f"{call} {name}")
            with torch.no_grad():  # the same step for both
                a.sub_(0.05 * torch.sign(a.detach()))
                b.copy_(a)
    report = dovetail.report(compiled)
    assert not report.recompiles, report.as_text()
    assert report.cudagraphs >= 2 or mode is None, report.cudagraph_skips
    assert peaks[-1] <= peaks[-5] + (1 << 20)  # nothing is kept for longer


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_second_backward_of_one_loss_is_refused(mode: str | None) -> None:
    torch.manual_seed(0)
    compiled = dovetail.compile(ActorCritic().cuda(), fullgraph=True, mode=mode)
    for _ in range(6):
        actor, critic = losses(compiled, torch.randn(32, 64, device="cuda"))
        actor.backward()
        critic.backward()
    actor, critic = losses(compiled, torch.randn(32, 64, device="cuda"))
    actor.backward()
    with pytest.raises(RuntimeError, match="second time"):
        actor.backward()
    critic.backward()
