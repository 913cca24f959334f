"""`torch.distributions` with its validation: one graph, and eager's errors for what is invalid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributions as D
from torch import Tensor, nn

import dovetail


@pytest.fixture(autouse=True)
def _validation() -> Iterator[None]:
    """As it is by default: `torch.compile`, once imported, turns it off for the whole process."""
    before = D.Distribution._validate_args
    D.Distribution.set_default_validate_args(True)
    yield
    D.Distribution.set_default_validate_args(before)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 8), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        mean, log = self.encoder(x).chunk(2, -1)
        latent = D.Normal(mean, log.exp())
        seen = D.Bernoulli(logits=self.decoder(latent.rsample()))
        prior = D.Normal(torch.zeros_like(mean), torch.ones_like(log))
        return D.kl_divergence(latent, prior).sum() - seen.log_prob((x > 0).float()).sum()


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(8, 4), nn.Linear(8, 1)

    def forward(self, x: Tensor, action: Tensor, before: Tensor, gain: Tensor) -> Tensor:
        choice = D.Categorical(logits=self.actor(x))
        ratio = (choice.log_prob(action) - before).exp()
        clipped = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        return self.critic(x).pow(2).mean() - clipped.mean() - 0.01 * choice.entropy().mean()


def flow(x: Tensor, scale: Tensor) -> Tensor:
    prior = D.MultivariateNormal(torch.zeros(4), torch.eye(4))
    return prior.log_prob((x * scale.exp()).tanh()) + scale.sum()


def mixture(x: Tensor, mean: Tensor, scale: Tensor, logits: Tensor) -> Tensor:
    parts = D.Independent(D.Normal(mean, scale), 1)
    return D.MixtureSameFamily(D.Categorical(logits=logits), parts).log_prob(x)


def squashed(mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    base = D.TransformedDistribution(D.Normal(mean, scale), [D.TanhTransform(cache_size=1)])
    policy = D.Independent(base, 1)
    action = policy.rsample()
    return action, policy.log_prob(action)


def divergences(a: Tensor, b: Tensor) -> Tensor:
    gammas = D.kl_divergence(D.Gamma(a, b), D.Gamma(b, a))
    return gammas + D.kl_divergence(D.Beta(a, b), D.Beta(b, a))


def from_covariance(x: Tensor, factor: Tensor) -> Tensor:
    return D.MultivariateNormal(torch.zeros(3), factor @ factor.mT + factor).log_prob(x)


torch.manual_seed(0)
R, NAN = torch.rand, float("nan")
SYMMETRIC = R(3, 3) + R(3, 3).mT + torch.eye(3)
SYMMETRIC = SYMMETRIC + SYMMETRIC.mT
CASES: dict[str, tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = {
    "autoencoder": (Autoencoder(), (R(5, 8) - 0.5,), (R(5, 8) * NAN,)),
    "policy": (
        Policy(),
        (R(5, 8), torch.tensor([0, 1, 2, 3, 0]), R(5), R(5)),
        (R(5, 8), torch.tensor([0, 1, 2, 3, 9]), R(5), R(5)),
    ),
    "flow": (flow, (R(5, 4), R(4)), (R(5, 4) * NAN, R(4))),
    "mixture": (
        mixture,
        (R(5, 2), R(5, 3, 2), R(5, 3, 2) + 0.1, R(5, 3)),
        (R(5, 2), R(5, 3, 2), -R(5, 3, 2), R(5, 3)),
    ),
    "squashed": (squashed, (R(2, 3), R(2, 3) + 0.1), (R(2, 3), -R(2, 3))),
    "divergences": (divergences, (R(3) + 0.1, R(3) + 0.1), (R(3) + 0.1, -R(3))),
    "covariance": (from_covariance, (R(2, 3), SYMMETRIC), (R(2, 3), SYMMETRIC * 0)),
    "asymmetric": (from_covariance, (R(2, 3), SYMMETRIC), (R(2, 3), R(3, 3))),
    "dirichlet": (
        lambda c, x: D.Dirichlet(c).log_prob(x / x.sum()),
        (R(3) + 0.1, R(3) + 0.1),
        (-R(3), R(3) + 0.1),
    ),
    "bernoulli": (
        lambda p, x: D.Bernoulli(p).log_prob(x),
        (R(3), torch.ones(3)),
        (R(3), torch.ones(3) * 2),
    ),
}


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The results and gradients, or the error; and what follows from the generator."""
    torch.manual_seed(3)
    args = tuple(a.clone().requires_grad_() if a.is_floating_point() else a for a in args)
    try:
        results = function(*args)
    except ValueError as error:
        return str(error), torch.rand(2)
    results = results if isinstance(results, tuple) else (results,)
    wanted = [a for a in args if a.is_floating_point()]
    total = sum((r.sum() for r in results), torch.zeros(()))
    found = torch.autograd.grad(total, wanted, allow_unused=True)
    return [*results, *found], torch.rand(2)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", sorted(CASES))
def test_one_graph_and_eagers_errors(name: str, dynamic: bool) -> None:
    function, valid, invalid = CASES[name]
    compiled = dovetail.compile(function, fullgraph=True, dynamic=dynamic)
    for args in (valid, invalid, valid):
        wanted, after = outcome(function, args)
        found, found_after = outcome(compiled, args)
        torch.testing.assert_close(found_after, after)
        if isinstance(wanted, str):
            assert args is invalid
            assert found == wanted
        else:
            assert args is valid
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_training_step_is_not_left_half_done() -> None:
    """The statistics of a batch norm are written by the graph: its checks break it."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return D.Normal(self.head(self.norm(x)), x.abs()).log_prob(x).sum()

    torch.manual_seed(0)
    ours, plain = Net(), Net()
    ours.load_state_dict(plain.state_dict())
    compiled = dovetail.compile(ours)
    for factor in (1.0, 0.0, 2.0):  # a scale of zero is none
        x = torch.randn(5, 4) * factor
        found, wanted = outcome(compiled, (x,)), outcome(plain, (x,))
        if factor:
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        else:
            texts = [text.partition("grad_fn")[0] for text in (found[0], wanted[0])]
            assert texts[0] == texts[1]
        torch.testing.assert_close(ours.state_dict(), plain.state_dict())
