"""`assert` and `if ...: raise` about the data of tensors: under fullgraph the graph checks them.

PYTEST_DONT_REWRITE: pytest would put code of its own into the assertions of the programs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from construct_cases import CountingBackend
from dovetail_capture import GraphBreakError, optimize


def of_a_number(x: torch.Tensor) -> torch.Tensor:
    assert x.max().item() <= 10
    return x + 1


def with_a_message(x: torch.Tensor) -> torch.Tensor:
    n = x.max().item()
    if n > 10:
        raise ValueError(f"too big: {n}")
    return x * n


def of_a_tensor(x: torch.Tensor) -> torch.Tensor:
    if not x.max() < 11:
        raise ValueError("too big")
    return x + 1


def of_all(x: torch.Tensor) -> torch.Tensor:
    assert (x < 11).all(), "too big"
    return x + 1


def of_any(x: torch.Tensor) -> torch.Tensor:
    if (x > 10).any():
        raise RuntimeError("too big")
    return x + 1


def of_an_item(x: torch.Tensor) -> torch.Tensor:
    assert (x < 11).all().item()
    assert bool((x < 12).all())
    return x + 1


@pytest.mark.parametrize(
    "f", [of_a_number, with_a_message, of_a_tensor, of_all, of_any, of_an_item]
)
def test_the_graph_checks(f: Callable[[torch.Tensor], torch.Tensor]) -> None:
    backend = CountingBackend()
    compiled = optimize(f, backend, fullgraph=True)
    good, bad = torch.tensor([1, 2, 3]), torch.tensor([1, 20, 3])
    for _ in range(2):
        assert torch.equal(compiled(good), f(good))
    raised = []
    for function in (f, compiled):  # what the program raises
        with pytest.raises((AssertionError, ValueError, RuntimeError)) as found:
            function(bad)
        raised.append((found.type, str(found.value)))
    assert raised[0] == raised[1]
    assert torch.equal(compiled(good), f(good))
    assert len(backend.graphs) == 1


def handled(x: torch.Tensor) -> torch.Tensor:
    try:
        assert (x > 0).all()
    except AssertionError:
        return x - 1
    return x + 1


def both_ways(x: torch.Tensor) -> torch.Tensor:
    if x.max().item() > 10:
        return x - 1
    return x + 1


def of_a_float(x: torch.Tensor) -> torch.Tensor:
    assert x.float().sum().item() > 0
    return x + 1


@pytest.mark.parametrize("f", [handled, both_ways, of_a_float])
def test_not_what_the_program_handles(f: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(GraphBreakError):
        optimize(f, CountingBackend(), fullgraph=True)(torch.tensor([1, 2]))
    compiled = optimize(f, CountingBackend())
    for x in (torch.tensor([1, 2]), torch.tensor([1, 20])):
        assert torch.equal(compiled(x), f(x))


def test_without_fullgraph_the_exception_is_the_programs() -> None:
    compiled = optimize(with_a_message, CountingBackend())
    with pytest.raises(ValueError, match="too big: 20"):
        compiled(torch.tensor([1, 20]))


def of_a_whole_tensor(x: torch.Tensor) -> torch.Tensor:
    torch._check_tensor_all(x < 11, lambda: "too big")
    torch._check_with(ValueError, x.max().item() < 11, lambda: "too big")
    return x + 1


def test_torchs_checks_of_tensors() -> None:
    backend = CountingBackend()
    compiled = optimize(of_a_whole_tensor, backend, fullgraph=True)
    good, bad = torch.tensor([1, 2, 3]), torch.tensor([1, 20, 3])
    for _ in range(2):
        assert torch.equal(compiled(good), of_a_whole_tensor(good))
    with pytest.raises(RuntimeError, match="too big"):
        compiled(bad)
    assert len(backend.graphs) == 1


def masked_sum(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[~m] += x[~m]
    return y


def split_by_counts(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    sizes = torch.stack([m.sum(), (~m).sum()]).tolist()
    first, second = x.split(sizes)
    return torch.cat([second, first * 2]) + sum(sizes)


@pytest.mark.parametrize("f", [masked_sum, split_by_counts])
def test_sizes_that_only_data_tells_agree(
    f: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    backend = CountingBackend()
    compiled = optimize(f, backend, fullgraph=True)
    x = torch.arange(5.0)
    for flags in ([1, 0, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 0]):
        m = torch.tensor(flags, dtype=torch.bool)
        assert torch.equal(compiled(x, m), f(x, m))
    assert len(backend.graphs) == 1


def test_sizes_that_do_not_agree_raise() -> None:
    def both(x: torch.Tensor, m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x[m] + x[n]

    compiled = optimize(both, CountingBackend(), fullgraph=True)
    x, m = torch.arange(4.0), torch.tensor([True, True, False, False])
    assert torch.equal(compiled(x, m, ~m), both(x, m, ~m))
    for function in (both, compiled):
        with pytest.raises(RuntimeError, match=r"must match the size"):
            function(x, m, torch.ones(4, dtype=torch.bool))


def seen_as_pairs(x: torch.Tensor) -> torch.Tensor:
    n, m = x.tolist()
    return torch.arange(n * m).reshape(n, m // 2, 2).transpose(0, 1) * 2


def test_operators_insist_on_their_sizes() -> None:
    backend = CountingBackend()
    compiled = optimize(seen_as_pairs, backend, fullgraph=True)
    for sizes in ([3, 4], [1, 6], [0, 2]):
        x = torch.tensor(sizes)
        assert torch.equal(compiled(x), seen_as_pairs(x))
    for bad in ([3, 5], [-1, 2]):
        for f in (seen_as_pairs, compiled):
            with pytest.raises(RuntimeError):
                f(torch.tensor(bad))
    assert len(backend.graphs) == 1


def padded_by_tensors(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    more = torch.ceil(x.max() / 2).long()
    y = torch.nn.functional.pad(x.float(), (1, 2 + more))
    return y, torch.arange(more) + 1, x.roll(more), torch.stack([more, more])


def test_tensors_given_for_numbers_are_items() -> None:
    backend = CountingBackend()
    compiled = optimize(padded_by_tensors, backend, fullgraph=True)
    for numbers in ([1, 2, 3], [5, 9, 1], [1, 1, 1]):
        x = torch.tensor(numbers)
        for found, wanted in zip(compiled(x), padded_by_tensors(x), strict=True):
            assert torch.equal(found, wanted)
    assert len(backend.graphs) == 1
