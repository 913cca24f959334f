"""Sizes that change from call to call: models and random programs, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import shape_programs
import torch
from torch import Tensor, nn

import dovetail

SIZES = [(4, 16), (3, 12), (2, 9), (8, 20), (5, 5), (7, 33), (2, 2), (6, 40), (9, 3), (3, 64)]


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=64, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertModel(config, add_pooling_layer=False)


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=64, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def call(model: nn.Module, name: str, batch: int, length: int) -> Tensor:
    ids = torch.randint(0, 100, (batch, length), generator=torch.Generator().manual_seed(length))
    if name == "bert":
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[:, length // 2 + 1 :] = 0
        return model(input_ids=ids, attention_mask=mask).last_hidden_state
    if model.training:
        return model(input_ids=ids, labels=ids).loss
    return model(input_ids=ids).logits


@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.parametrize("training", [False, True])
def test_batch_and_length_vary(name: str, training: bool) -> None:
    torch.manual_seed(0)
    model = {"bert": bert, "llama": llama}[name]().train(training)
    compiled = dovetail.compile(model, fullgraph=name == "bert")
    for batch, length in SIZES:
        with torch.set_grad_enabled(training):
            wanted, got = call(model, name, batch, length), call(compiled, name, batch, length)
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
        assert got.stride() == wanted.stride()
        if training:
            parameters = list(model.parameters())
            expected = torch.autograd.grad(wanted.square().sum(), parameters, allow_unused=True)
            found = torch.autograd.grad(got.square().sum(), parameters, allow_unused=True)
            for mine, eagers in zip(found, expected, strict=True):
                assert (mine is None) == (eagers is None)
                if mine is not None:
                    torch.testing.assert_close(mine, eagers, atol=1e-3, rtol=1e-2)
    report = dovetail.report(compiled)
    assert report.graphs == 2 and len(report.recompiles) == 1
    assert not report.per_size_compiles
    # Size 1: a version more only where the program asks (Llama's masks do, of the batch).
    with torch.no_grad() if not training else torch.enable_grad():
        for batch, length in ((1, 10), (1, 20)):
            wanted, got = call(model, name, batch, length), call(compiled, name, batch, length)
            torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
    assert dovetail.report(compiled).graphs == (2 if name == "bert" else 3)


def test_the_report_shows_shape_guards() -> None:
    compiled = dovetail.compile(lambda x: x * 2 if x.size(0) <= 128 else x, dynamic=True)
    compiled(torch.ones(9, 4))
    assert "shape guard: x.size(0) <= 128" in dovetail.report(compiled).as_text()
    assert (
        "x.size(0) <= 128"
        in dovetail.explain(lambda x: x if x.size(0) <= 128 else -x, dynamic=True)(
            torch.ones(9, 4)
        ).as_text()
    )


@pytest.fixture
def no_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code generation gives up on symbols."""
    from dovetail import pipeline

    known = pipeline.compile_graph

    def fussy(gm, inputs, **kwargs):
        if pipeline.is_symbolic(gm):
            raise RuntimeError("no loops for this")
        return known(gm, inputs, **kwargs)

    monkeypatch.setattr(pipeline, "compile_graph", fussy)


@pytest.mark.usefixtures("no_symbols")
def test_what_is_compiled_per_size_tells_zeros_of_either_sign_apart() -> None:
    compiled = dovetail.compile(lambda x, s: x / s, dynamic=True)
    x = torch.tensor([1.0, -2.0])
    for number in (2.0, 0.0, -0.0, 3.0):
        assert torch.equal(compiled(x, number), x / number)
    assert any("no loops" in reason for reason in dovetail.report(compiled).per_size_compiles)


@pytest.mark.usefixtures("no_symbols")
def test_floats_among_the_results_of_what_is_compiled_per_size() -> None:
    """They are plain numbers there, of either sign and not numbers at all."""

    def program(x: Tensor, n: int, s: float) -> tuple[Tensor, float, float]:
        whole, part = x * n, (2 - n) / 0.3
        dovetail.graph_break()
        return whole + part, s * 2.0, part

    compiled = dovetail.compile(program, dynamic=True)
    for n, s in ((3, -0.0), (5, 0.5), (7, float("inf"))):
        x = torch.randn(2)
        got, wanted = compiled(x, n, s), program(x, n, s)
        assert torch.equal(got[0], wanted[0]) and repr(got[1:]) == repr(wanted[1:])
    assert dovetail.report(compiled).per_size_compiles


@pytest.mark.usefixtures("no_symbols")
def test_a_graph_whose_loops_need_numbers_is_compiled_per_size() -> None:
    """Where code generation gives up on symbols, each size is compiled, and the report says so."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).softmax(-1).sum(0) * x.shape[0]

    compiled = dovetail.compile(fn, dynamic=True)
    for n, m in ((4, 5), (6, 7), (6, 7), (3, 9)):
        x, w = torch.randn(n, m, requires_grad=True), torch.randn(m, 3, requires_grad=True)
        wanted, got = fn(x, w), compiled(x, w)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(
            torch.autograd.grad(got.sin().sum(), [x, w]),
            torch.autograd.grad(wanted.sin().sum(), [x, w]),
            atol=1e-4, rtol=1e-4,
        )  # fmt: skip
    reasons = dovetail.report(compiled).per_size_compiles
    assert len(reasons) == 6 and "no loops for this" in reasons[0] and "(4, 5)" in reasons[0]


@pytest.mark.parametrize("seed", range(100, 112))
def test_random_programs(seed: int) -> None:
    shape_programs.check(seed, grad=seed % 2 == 0, dynamic=True if seed % 3 == 0 else None)


@pytest.mark.parametrize("in_place", [False, True])
def test_an_output_without_gradient_whose_size_nothing_tells(in_place: bool) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x.mul_(2), y.mul_(3)) if in_place else (x * 2, y * 3)

    compiled = dovetail.compile(f, dynamic=True, fullgraph=True, backend="aot_eager")
    for n, m in ((5, 7), (4, 3)):
        x, y = torch.randn(n, requires_grad=True), torch.randn(m, requires_grad=True)
        doubled, _ = compiled(x * 1, y * 1)
        gradients = torch.autograd.grad(doubled.sum(), [x, y], allow_unused=True)
        assert gradients[1] is None and torch.equal(gradients[0], torch.full((n,), 2.0))


def test_views_of_what_may_be_empty() -> None:
    def tail(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, 4:].view(len(x), -1, 4), x[:, 4:, ::2].reshape(-1) + 1

    compiled = dovetail.compile(tail, fullgraph=True, dynamic=True)
    for shape in ((4, 4, 4, 4), (3, 4, 2, 4), (3, 5, 1, 4)):
        x = torch.randn(shape)
        for mine, theirs in zip(compiled(x), tail(x), strict=True):
            assert mine.stride() == theirs.stride()
            torch.testing.assert_close(mine, theirs)


def spread(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.var(1, correction=c) for c in (0, 1, 1.3, 3, 40)) + torch.std_mean(x)


def test_variances_are_one_program_for_all_sizes() -> None:
    compiled = dovetail.compile(spread, fullgraph=True, dynamic=True)
    for shape in ((4, 6), (5, 18), (3, 12)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), spread(x), equal_nan=True)
    report = dovetail.report(compiled)
    assert report.graphs == 1 and not report.per_size_compiles, report.as_text()


def test_a_view_of_one_row_is_broadcast() -> None:
    def rows(x: Tensor, y: Tensor) -> Tensor:
        return x.view(-1, 4) * y.view(-1, 4)

    compiled = dovetail.compile(rows, dynamic=True)
    for m, n in ((4, 8), (4, 12), (8, 8), (12, 4)):
        x, y = torch.randn(m), torch.randn(n)
        torch.testing.assert_close(compiled(x, y), rows(x, y))


def cut_by_numbers(x: Tensor, rows: int) -> tuple[Tensor, ...]:
    pairs = (x + 1).view(-1, 1, 2)
    sixths = x.reshape(-1).view(int(x.numel() / 6), 6).sum(1)
    heads = x.view(rows, 3, -1).transpose(0, 1).softmax(-1)
    return pairs, sixths, heads, (heads * 2).reshape(x.size(0), -1)


def beams(scores: Tensor, batch: int) -> tuple[Tensor, ...]:
    width, tokens = 3, scores.size(1)
    best, found = scores.view(batch, width * tokens).topk(width, -1)
    rows = (found // tokens + torch.arange(batch)[:, None] * width).view(-1)
    return best.view(-1), scores[rows], (found % tokens).view(-1, 1)


@pytest.mark.parametrize("fn", [cut_by_numbers, beams])
def test_views_whose_sizes_only_guards_relate(fn) -> None:
    compiled = dovetail.compile(fn, fullgraph=True, dynamic=True)
    for rows, columns in ((4, 12), (5, 18), (3, 24)):
        x = torch.randn(rows * 3 if fn is beams else rows, columns)
        for mine, theirs in zip(compiled(x, rows), fn(x, rows), strict=True):
            assert mine.stride() == theirs.stride()
            torch.testing.assert_close(mine, theirs)
    report = dovetail.report(compiled)
    assert report.graphs == 1 and not report.per_size_compiles, report.as_text()


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_grids_of_images_of_any_size(align_corners: bool, autocast: bool) -> None:
    def grid(x: Tensor, theta: Tensor) -> Tensor:
        return nn.functional.affine_grid(theta, x.size(), align_corners=align_corners)

    compiled = dovetail.compile(grid, fullgraph=True, dynamic=True)
    for shape in ((2, 4, 5, 6), (3, 4, 7, 5), (2, 1, 3, 4, 5)):
        x, size = torch.randn(shape), len(shape) - 1
        thetas = [torch.randn(shape[0], size - 1, size, requires_grad=True)]
        thetas.append(thetas[0].detach().clone().requires_grad_())
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            mine, theirs = compiled(x, thetas[0]), grid(x, thetas[1])
        torch.testing.assert_close(mine, theirs)
        direction = torch.randn_like(theirs)
        gradients = [
            torch.autograd.grad(o, t, direction)[0]
            for o, t in ((mine, thetas[0]), (theirs, thetas[1]))
        ]
        torch.testing.assert_close(
            *gradients, rtol=2e-2 if autocast else 1e-4, atol=1e-1 if autocast else 1e-5
        )
    assert not dovetail.report(compiled).per_size_compiles


@pytest.mark.parametrize("training", [False, True])
def test_sizes_that_conditions_make_one_are_broadcast(training: bool) -> None:
    def step(x: Tensor, y: Tensor) -> Tensor:
        return x[::4] * y

    def pool(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(x[None], 4)[0] * y

    for f, shapes in (
        (step, [((4, 3), (5, 3)), ((3, 3), (7, 3)), ((8, 3), (2, 3))]),
        (pool, [((5, 6), (5, 4)), ((4, 7), (6, 3)), ((8, 9), (2, 2))]),
    ):
        compiled = dovetail.compile(f, fullgraph=True, dynamic=True)
        for a, b in shapes:
            x = torch.randn(a, requires_grad=training)
            y = torch.randn(b, requires_grad=training)
            got, expected = compiled(x, y), f(x, y)
            torch.testing.assert_close(got, expected)
            if training:
                torch.testing.assert_close(
                    torch.autograd.grad(got.sum(), (x, y)),
                    torch.autograd.grad(expected.sum(), (x, y)),
                )


def test_signals_of_any_length_there_and_back() -> None:
    window = torch.hann_window(16)

    def loss(x: Tensor) -> Tensor:
        spectra = torch.stft(x, 16, 4, window=window, return_complex=True)
        back = torch.istft(spectra * 2, 16, 4, window=window, length=x.shape[-1])
        return spectra.abs().clamp(min=1e-5).log().mean() + (back - x.sin()).square().mean()

    compiled = dovetail.compile(loss, fullgraph=True)
    for batch, length in ((2, 64), (3, 80), (4, 97), (5, 48)):
        given = [torch.randn(batch, length).requires_grad_()]
        given.append(given[0].detach().clone().requires_grad_())
        wanted, found = loss(given[0]), compiled(given[1])
        torch.testing.assert_close(found, wanted)
        wanted.backward()
        found.backward()
        torch.testing.assert_close(given[1].grad, given[0].grad, rtol=1e-4, atol=1e-5)
    assert dovetail.report(compiled).graphs == 2


def test_padding_to_a_multiple_takes_one_graph_for_all_lengths() -> None:
    """Also for those where nothing is added, as to a mask whose rows are to be aligned."""

    def padded(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, -x.shape[-1] % 16)).cumsum(-1)

    compiled = dovetail.compile(padded, fullgraph=True)
    for rows, length in ((2, 20), (3, 12), (5, 64), (4, 33), (7, 48)):
        x = torch.randn(rows, length)
        got = compiled(x)
        torch.testing.assert_close(got, padded(x))
        assert got.stride() == padded(x).stride()
    assert dovetail.report(compiled).graphs == 2


@pytest.mark.parametrize(
    "fn",
    [lambda x, n: x * (n**5 % 97), lambda x, n: x * (n * n * n % 1009), lambda x, n: (x, n**4)],
)
def test_numbers_of_more_than_64_bits(fn: Callable[[Tensor, int], Any]) -> None:
    """Python's have no bounds; what is compiled computes in 64 bits."""
    compiled = dovetail.compile(fn)
    x = torch.tensor([1.0, 2.0])
    for number in (3, 4, 5, -7, 2**31, 2**33 + 1, 123456789012):
        assert str(compiled(x, number)) == str(fn(x, number))


@pytest.mark.parametrize("dynamic", [None, True])
def test_numbers_of_objects_that_change_become_symbols(dynamic: bool | None) -> None:
    """Counters and rates that a program keeps: they were constants of each version where
    `dynamic=True` had sizes be symbols from the first."""
    state, rates = {"step": 1}, [0.5]

    def function(x: torch.Tensor) -> torch.Tensor:
        state["step"] += 1
        return x * state["step"] + rates[0]

    compiled = dovetail.compile(function, dynamic=dynamic, backend="aot_eager")
    for n in range(4, 16):
        rates[0] = 1 / n
        found = compiled(torch.ones(n))
        torch.testing.assert_close(found, torch.full((n,), float(state["step"]) + rates[0]))
    report = dovetail.report(compiled)
    assert report.graphs <= 3 and not report.plain_frames


def test_results_of_lists_of_tensors_of_any_size() -> None:
    """Operators of lists that have no rule for lists: by those of one tensor."""

    def largest(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [m * 2 for m in torch._foreach_max(tensors)]

    compiled = dovetail.compile(largest, fullgraph=True, dynamic=True)
    for size in (4, 7):
        tensors = [torch.randn(size), torch.randn(size, 3)]
        torch.testing.assert_close(compiled(tensors), largest(tensors))
    assert dovetail.report(compiled).graphs == 1


def test_a_size_that_is_the_rest() -> None:
    def fn(x: Tensor, rows: int, columns: int) -> Tensor:
        return x.reshape(rows, columns) * 2

    compiled = dovetail.compile(fn, fullgraph=True)
    x = torch.randn(24)
    for sizes in ((2, 12), (4, 6), (3, 8), (-1, 2), (4, -1), (-1, 3)):
        torch.testing.assert_close(compiled(x, *sizes), fn(x, *sizes))
    with pytest.raises(RuntimeError):
        compiled(x, -1, 5)


class Encoder(nn.Module):
    """A transformer that asks nothing of its sizes, with a mask; `decoder`: a causal one."""

    def __init__(self, decoder: bool) -> None:
        super().__init__()
        self.decoder, self.words = decoder, nn.Embedding(100, 32)
        self.parts = nn.ModuleList(
            nn.ModuleList([nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)])
            for _ in range(2)
        )
        self.register_buffer("positions", torch.randn(64, 32))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        batch, length = ids.shape
        x = self.words(ids) + self.positions[:length]
        for qkv, out, norm in self.parts:
            q, k, v = qkv(x).view(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
            if self.decoder:
                y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                scores = q @ k.transpose(-1, -2) / 8**0.5
                y = scores.masked_fill(~mask[:, None, None], -1e4).softmax(-1) @ v
            x = norm(x + out(y.transpose(1, 2).contiguous().view(batch, length, 32)))
        return x


MIXES = [
    [(8, 20), (8, 1), (4, 24), (1, 32), (4, 1), (1, 1), (2, 2), (3, 64)],
    [(1, 1), (1, 5), (3, 6), (4, 1), (1, 1), (6, 40)],
    [(1, 9), (3, 9), (5, 7), (1, 1), (1, 3), (9, 1)],
]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("mix", range(len(MIXES)))
def test_a_mix_of_batches_and_lengths_takes_three_graphs(
    mix: int, decoder: bool, training: bool
) -> None:
    torch.manual_seed(0)
    model = Encoder(decoder).train(training)
    compiled = dovetail.compile(model, fullgraph=True)
    parameters = list(model.parameters())
    for batch, length in MIXES[mix]:
        ids = torch.randint(0, 100, (batch, length))
        mask = torch.arange(length)[None] <= torch.arange(batch)[:, None]
        with torch.set_grad_enabled(training):
            wanted, got = model(ids, mask), compiled(ids, mask)
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
        assert got.stride() == wanted.stride()
        if training:
            expected = torch.autograd.grad(wanted.sin().sum(), parameters)
            found = torch.autograd.grad(got.sin().sum(), parameters)
            for mine, eagers in zip(found, expected, strict=True):
                torch.testing.assert_close(mine, eagers, atol=1e-3, rtol=1e-2)
                assert mine.stride() == eagers.stride()
    report = dovetail.report(compiled)
    assert report.graphs <= 3 and not report.per_size_compiles
