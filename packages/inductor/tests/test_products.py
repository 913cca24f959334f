"""Products of matrices in kernels of ours: every form, run by Triton's interpreter, compiled for an
H100 and, where there is a GPU, run there; and the choice between forms by measured times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import DeviceTuner, InductorOptions, compile_graph
from dovetail_inductor.options import Gpu
from dovetail_inductor.products import choose_products
from dovetail_inductor.products.candidates import candidates
from dovetail_inductor.products.choose_products import Choice, Problem, fastest
from dovetail_inductor.scheduler.kernels import ProductTiles
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime import load
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.plan import CallAten, LaunchTriton, Plan, TritonKernel, View
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

GPU = InductorOptions(triton=True)
SMALL = ProductTiles(16, 32, 16, 4, 2)
PARTS = ProductTiles(16, 32, 16, 4, 2, parts=3)


class Chosen:
    """A tuner for which the plan numbered `wins` is the fastest; of a group it takes `group`."""

    def __init__(self, wins: int, group: float = 100.0, both: float = 100.0) -> None:
        self.wins = wins
        self.group = group
        self.both = both
        self.problems: list[Problem] = []
        self.choices: list[Choice] = []

    def measure(self, problems: Sequence[Problem]) -> list[tuple[float | None, ...]]:
        self.problems += problems

        def seconds(problem: Problem, plan: int) -> float:
            said = dict(problem.key)
            several = self.both if "both" in said else self.group
            if plan != self.wins:
                return 2.0 * int(said["products"])
            return 1.0 if said["products"] == "1" else several

        return [tuple(seconds(p, i) for i in range(len(p.names))) for p in problems]

    def note(self, choice: Choice) -> None:
        self.choices.append(choice)


DRAWN = torch.Generator().manual_seed(0)  # the same numbers, whatever else is imported


def half(*shape: int) -> Tensor:
    # not bfloat16: Triton's interpreter truncates to it, where a GPU rounds
    return torch.randn(*shape, generator=DRAWN).half() / 4


def gelu_mlp(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def gated(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.silu(x @ w.t()) * (x @ v.t())


def heads(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The result goes to other strides, with its loops cut in pieces."""
    y = F.linear(x, w, b).view(x.shape[0], x.shape[1], 4, -1).transpose(1, 2)
    return (y * 0.5).contiguous()


def kept(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.addmm(b, x, w)
    return y, torch.relu(y)


def columns(x: Tensor, w: Tensor) -> Tensor:
    return torch.sigmoid(x.t() @ w.t())


def residual_norm(x: Tensor, w: Tensor, b: Tensor, r: Tensor, g: Tensor) -> Tensor:
    """The result is reduced along its rows."""
    y = F.linear(x, w, b) + r
    return y * torch.rsqrt(y.float().pow(2).mean(-1, keepdim=True) + 1e-6).half() * g


def turned(x: Tensor, w: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Elements of the result are read beside others, as rotary embeddings read them."""
    y = F.linear(x, w, b)
    half_way = y.shape[-1] // 2
    return y * c + torch.cat([-y[..., half_way:], y[..., :half_way]], -1)


def attention_inputs(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """Products of different sizes that share an operand, with and without what follows."""
    q, qb, k, v, vb = weights
    return torch.tanh(F.linear(x, q, qb)), x @ k.t(), F.linear(x, v, vb)


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "gelu_mlp": (gelu_mlp, (half(2, 24, 48), half(64, 48), half(64))),
    "gated": (gated, (half(20, 36), half(40, 36), half(40, 36))),
    "residual": (lambda x, w, r: x @ w + r, (half(33, 50), half(50, 70), half(33, 70))),
    "heads": (heads, (half(2, 10, 32), half(48, 32), half(48))),
    "kept": (kept, (half(40, 32), half(32, 48), half(48))),
    "columns": (columns, (half(21, 19), half(45, 21))),
    "bare": (lambda x, w: x @ w, (half(16, 96), half(96, 35))),
    "added_matrix": (
        lambda c, x, w: torch.addmm(c, x, w),
        (half(18, 1), half(18, 16), half(16, 9)),
    ),
    "batches": (lambda x, w: torch.tanh(torch.bmm(x, w)) * 2, (half(3, 17, 24), half(3, 24, 20))),
    "batches_turned": (
        lambda x, w: torch.bmm(x.mT, w.mT).float(),
        (half(3, 24, 17), half(3, 20, 24)),
    ),
    "baddbmm": (
        lambda c, x, w: F.relu(torch.baddbmm(c, x, w)),
        (half(2, 1, 20), half(2, 17, 24), half(2, 24, 20)),
    ),
    "repeated_weight": (
        lambda x, w: torch.bmm(x, w.expand(3, 24, 20)) + 1,
        (half(3, 17, 24), half(24, 20)),
    ),
    "one_row": (gelu_mlp, (half(1, 48), half(40, 48), half(40))),
    "one_column": (lambda x, w: (x @ w).relu(), (half(33, 48), half(48, 1))),
    "one_batch": (lambda x, w: torch.bmm(x, w) * 2, (half(1, 17, 24), half(1, 24, 20))),
    "part_of_wider": (lambda x, w: F.gelu(x[:, 3:43] @ w[:, 2:34]), (half(17, 50), half(40, 40))),
}


def compiled(
    fn: Callable[..., Any], inputs: Sequence[Tensor], tuner: choose_products.Tuner | None
) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, list(inputs), options=GPU, tuner=tuner)


def products(plan: Plan) -> list[TritonKernel]:
    kernels = [k for k in plan.kernels if isinstance(k, TritonKernel)]
    return [k for k in kernels if k.symbol.startswith("product_")]


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> Callable[[ProductTiles], None]:
    """Makes these tiles the only candidate."""

    def set_to(only: ProductTiles) -> None:
        monkeypatch.setattr(choose_products, "candidates", lambda *sizes: [only])

    return set_to


def check(fn: Callable[..., Any], inputs: Sequence[Tensor], plan: Plan) -> None:
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    wanted = fn(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for mine, eager in zip(got, wanted, strict=True):
        assert isinstance(mine, Tensor)
        assert mine.dtype == eager.dtype and mine.stride() == eager.stride()
        torch.testing.assert_close(mine, eager, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("name", CASES)
def test_in_one_kernel(name: str, tiles: Callable[[ProductTiles], None]) -> None:
    fn, inputs = CASES[name]
    tiles(SMALL)
    plan = compiled(fn, inputs, Chosen(1))
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    launches = [s for s in plan.steps if isinstance(s, LaunchTriton)]
    assert len(launches) == (2 if name == "gated" else 1), "what follows is in the product's kernel"
    check(fn, inputs, plan)


ONE_PRODUCT = [n for n in CASES if "batch" not in n and n not in ("baddbmm", "repeated_weight")]


@pytest.mark.parametrize("name", ONE_PRODUCT)
def test_in_parts(name: str, tiles: Callable[[ProductTiles], None]) -> None:
    fn, inputs = CASES[name]
    tiles(PARTS)
    plan = compiled(fn, inputs, Chosen(1))
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    launches = [s for s in plan.steps if isinstance(s, LaunchTriton)]
    assert len(launches) == (4 if name == "gated" else 2)
    check(fn, inputs, plan)


READERS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "residual_norm": (
        residual_norm,
        (half(17, 40), half(64, 40), half(64), half(17, 64), half(64)),
    ),
    "turned": (turned, (half(18, 40), half(64, 40), half(64), half(18, 64))),
    "last_row": (lambda x, w: (x @ w)[-1:] * 2, (half(18, 40), half(40, 24))),
}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_adds_up_the_parts(name: str, tiles: Callable[[ProductTiles], None]) -> None:
    """Where a kernel reads elements of the product elsewhere than at the point it computes."""
    fn, inputs = READERS[name]
    tiles(PARTS)
    plan = compiled(fn, inputs, Chosen(1))
    steps = [s for s in plan.steps if not isinstance(s, View)]  # of where a reader begins
    assert len(steps) == 4 and len(plan.kernels) == 2  # two results, two launches
    check(fn, inputs, plan)
    tiles(SMALL)
    check(fn, inputs, compiled(fn, inputs, Chosen(1)))


@pytest.mark.parametrize("only", [SMALL, PARTS], ids=ProductTiles.as_text)
def test_products_of_one_operand_share_a_launch(
    only: ProductTiles, tiles: Callable[[ProductTiles], None]
) -> None:
    weights = (half(512, 32), half(512), half(256, 32), half(256, 32), half(256))
    inputs = (half(20, 32), *weights)
    tiles(only)
    tuner = Chosen(1, group=1.0)
    plan = compiled(attention_inputs, inputs, tuner)
    assert "3 in one launch" in tuner.choices[-1].what
    launches = [s.kernel for s in plan.steps if isinstance(s, LaunchTriton)]
    assert [name.partition("_")[0] for name in launches].count("products") == 1
    assert len(launches) <= 3 and not any(isinstance(s, CallAten) for s in plan.steps)
    check(attention_inputs, inputs, plan)
    fn, own = CASES["gated"]
    together = compiled(fn, own, Chosen(1, group=1.0))
    assert len([s for s in together.steps if isinstance(s, LaunchTriton)]) == 2
    check(fn, own, together)
    # faster each for itself than side by side
    apart = compiled(attention_inputs, inputs, Chosen(1, group=3.0))
    assert only is PARTS or not any(k.symbol.startswith("products") for k in apart.kernels)
    check(attention_inputs, inputs, apart)


def layers(x: Tensor, *weights: Tensor) -> Tensor:
    for w in weights:
        x = F.gelu(x @ w)
    return x


def test_equal_products_are_measured_once() -> None:
    inputs = (half(32, 256), *(half(256, 256) for _ in range(3)))
    tuner = Chosen(1)
    plan = compiled(layers, inputs, tuner)
    (problem,) = tuner.problems
    (choice,) = tuner.choices
    assert choice.count == 3 and choice.chosen == 1
    assert "3 x mm 32x256 by 256x256 and 1 that follow" in choice.as_text()
    assert len(problem.plans()) == len(problem.names) == len(choice.seconds)
    assert len(products(plan)) == 1
    again = Chosen(0)
    compiled(layers, inputs, again)
    assert again.problems[0].key == problem.key, "found again in the next process"
    other = Chosen(0)
    compiled(layers, (half(32, 256), half(256, 256).t()), other)
    assert other.problems[0].key != problem.key


def test_all_forms_of_a_problem_compute_the_same() -> None:
    """What the tuner is given to measure: each plan alone, from inputs to results."""
    tuner = Chosen(0)
    compiled(kept, (half(40, 512), half(512, 96), half(96)), tuner)
    (problem,) = tuner.problems
    plans = problem.plans()
    assert any("parts" in name for name in problem.names)
    made = [half(*i.spec.shape) for i in plans[0].inputs]  # type: ignore[union-attr, misc]
    results = [ReferenceExecutor(p, launch_triton=run_in_interpreter)(*made) for p in plans]
    for result in results[1:]:
        for mine, library in zip(result, results[0], strict=True):
            torch.testing.assert_close(mine, library, rtol=4e-3, atol=4e-3)


def test_the_library_stays_unless_it_loses_by_the_margin() -> None:
    assert fastest([1.0, 0.98, 1.2]) == 0
    assert fastest([1.0, 0.98, 0.9]) == 2
    assert fastest([1.0, None, None]) == 0
    assert fastest([None, 1.0]) == 0
    fn, inputs = CASES["gelu_mlp"]
    assert compiled(fn, inputs, Chosen(0)) == compiled(fn, inputs, None)


def test_others_that_read_the_product_find_it() -> None:
    """A reduction of it comes first, so that the product cannot wait for what follows."""

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        total = y.sum(0, keepdim=True)
        return torch.relu(y) * 2, total @ w

    inputs = (half(20, 24), half(24, 24))
    tuner = Chosen(1)
    check(fn, inputs, compiled(fn, inputs, tuner))
    assert tuner.choices[0].chosen == 1


@pytest.mark.parametrize(
    "fn, inputs",
    [
        (lambda x, w: x @ w + 1, (torch.randn(8, 8), torch.randn(8, 8))),
        (lambda x, w: torch.addmm(x, x, w, alpha=2), (half(8, 8), half(8, 8))),
        (lambda x, w: (x @ w).relu(), (half(8, 0), half(0, 8))),
    ],
    ids=["float32", "scaled", "empty"],
)
def test_what_stays_with_the_library(fn: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
    tuner = Chosen(1)
    plan = compiled(fn, inputs, tuner)
    assert not tuner.problems and not products(plan)


def test_a_cpu_graph_is_not_measured() -> None:
    fn, inputs = CASES["gelu_mlp"]
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    tuner = Chosen(1)
    assert compile_graph(gm, tuner=tuner) == compile_graph(gm)
    assert not tuner.problems


SIZES = [
    (1, 16, 8192, 2048),
    (1, 16, 128256, 2048),
    (1, 128, 768, 3072),
    (1, 12608, 3072, 768),
    (1, 32, 64, 48),
    (96, 197, 197, 64),
    (1, 7, 3, 100000),
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_candidates_fit(sizes: tuple[int, int, int, int]) -> None:
    found = candidates(sizes, True, Gpu())
    assert 1 <= len(found) <= 12
    assert len(set(found)) == len(found)
    for tiles in found:
        assert tiles.stages * tiles.k * (tiles.m + tiles.n) * 2 <= 220 * 1024
        assert sizes[0] == 1 or tiles.parts == 1


def test_a_large_product_alone_is_the_librarys() -> None:
    assert candidates((1, 8192, 8192, 8192), False, Gpu()) == []
    assert candidates((1, 8192, 8192, 8192), True, Gpu())


def test_candidates_compile_for_an_h100(build_for_h100: Any) -> None:
    """Of each table one shape, and what has edges."""

    def bf(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.bfloat16)

    kernels: list[TritonKernel] = []
    for fn, inputs in (
        (gelu_mlp, (bf(1, 128, 200), bf(96, 200), bf(96))),
        (gated, (bf(16, 1024), bf(96, 1024), bf(96, 1024))),
        (gelu_mlp, (bf(16, 520, 96), bf(4096, 96), bf(4096))),
    ):
        tuner = Chosen(0)
        compiled(fn, inputs, tuner)
        for problem in tuner.problems:
            plans = problem.plans()[1:2]
            kernels += [k for p in plans for k in p.kernels if isinstance(k, TritonKernel)]
    binaries = build_for_h100({k.symbol: k for k in kernels}.values())
    assert all(binary.shared_bytes <= 227 * 1024 for binary in binaries.values())


# --- on a GPU -------------------------------------------------------------------------------------


TILES = [
    ProductTiles(16, 32, 16, 4, 3),
    ProductTiles(64, 64, 32, 4, 4),
    ProductTiles(128, 64, 64, 8, 3),
]


def flat(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def check_on_gpu(
    fn: Callable[..., Any], inputs: Sequence[Tensor], tuner: choose_products.Tuner
) -> None:
    """At most a little further from float64 than eager is, on the CPU: so that a sanitizer sees no
    kernels but ours."""
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    artifact = load(compile_graph(gm, list(inputs), tuner=tuner))
    there = [t.cpu() for t in inputs]
    exact = flat(fn(*(t.double() for t in there)))
    for result, eager, wide in zip(artifact.run(*inputs), flat(fn(*there)), exact, strict=True):
        assert isinstance(result, Tensor)
        got = result.cpu()
        assert got.dtype == eager.dtype and got.stride() == eager.stride()
        scale = float(wide.abs().max())
        error = float((got.double() - wide).abs().max())
        assert error <= 1.5 * float((eager.double() - wide).abs().max()) + 1e-3 * scale


def on_gpu(inputs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The same values and layouts."""
    return [t.cuda().to(dtype) for t in inputs]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tiles", TILES, ids=ProductTiles.as_text)
@pytest.mark.parametrize("name", CASES)
def test_in_one_kernel_on_a_gpu(
    name: str, tiles: ProductTiles, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose_products, "candidates", lambda *sizes: [tiles])
    fn, inputs = CASES[name]
    tuner = Chosen(1)
    check_on_gpu(fn, on_gpu(inputs, dtype), tuner)
    assert tuner.choices


@pytest.mark.gpu
@pytest.mark.parametrize("name", ONE_PRODUCT)
def test_in_parts_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_products, "candidates", lambda *sizes: [PARTS])
    fn, inputs = CASES[name]
    check_on_gpu(fn, on_gpu(inputs, torch.bfloat16), Chosen(1))


MEASURED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "few rows": (gated, ((16, 512), (1024, 512), (1024, 512))),
    "some rows": (gelu_mlp, ((1, 128, 256), (512, 256), (512,))),
    "many rows": (gelu_mlp, ((8, 512, 256), (2048, 256), (2048,))),
    "edges": (kept, ((100, 120), (120, 77), (77,))),
    "batches": (lambda x, w: torch.bmm(x, w.mT) * 0.5, ((6, 40, 64), (6, 40, 64))),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", MEASURED)
def test_measured_on_a_gpu(name: str, tmp_path: Path) -> None:
    """Every candidate runs and is right; the times are found again; random numbers stay."""
    fn, sizes = MEASURED[name]
    inputs = [torch.randn(s, device="cuda", dtype=torch.bfloat16) / 4 for s in sizes]
    knobs = Knobs.from_environment({"DOVETAIL_CACHE_DIR": str(tmp_path)})
    before = torch.cuda.get_rng_state()
    tuner, again = DeviceTuner(knobs), DeviceTuner(knobs)
    check_on_gpu(fn, inputs, tuner)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert tuner.choices and not tuner.failures
    assert all(s is not None and s > 0 for choice in tuner.choices for s in choice.seconds)
    check_on_gpu(fn, inputs, again)
    assert again.choices == tuner.choices
