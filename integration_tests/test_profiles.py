"""What PyTorch's profilers show of compiled code: regions and kernels by readable names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import dovetail
from dovetail.show import show

FILE = Path(__file__).name


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.linear(x), -1) * x.sin()


def _seen(run: object, *activities: ProfilerActivity) -> list[str]:
    with profile(activities=activities or [ProfilerActivity.CPU]) as seen:
        run()  # type: ignore[operator]
    return [event.name for event in seen.events()]


def test_regions_and_kernels_have_names() -> None:
    compiled = dovetail.compile(Gated())
    x = torch.randn(8, 16)
    compiled(x).sum().backward()
    names = _seen(lambda: compiled(x).sum().backward())
    line = Gated.forward.__code__.co_firstlineno + 1
    assert f"dovetail: forward of Gated ({FILE}:{line})" in names
    assert any(name.startswith("dovetail: backward of Gated (") for name in names)
    assert any("softmax" in name and f"({FILE}:{line})" in name for name in names)
    assert "aten::mm" in names or "aten::addmm" in names


def _broken(x: Tensor) -> Tensor:
    y = x.sin() + 1
    print(end="")
    return y.cos() * 2


def test_each_part_of_a_broken_function_has_its_name() -> None:
    compiled = dovetail.compile(_broken)
    x = torch.randn(8)
    compiled(x)
    line = _broken.__code__.co_firstlineno
    found = [name for name in _seen(lambda: compiled(x)) if name.startswith("dovetail: ")]
    assert found == [f"dovetail: forward of _broken ({FILE}:{line + n})" for n in (1, 3)]


def test_an_error_in_a_profiled_call_ends_its_ranges() -> None:
    compiled = dovetail.compile(lambda x, index: x[index] * 2)
    x = torch.randn(8)
    compiled(x, torch.tensor([1]))

    def run() -> None:
        with pytest.raises(IndexError):
            compiled(x, torch.tensor([99]))
        compiled(x, torch.tensor([2]))

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    first, second = (e.time_range for e in seen.events() if e.name.startswith("dovetail: "))
    assert first.end <= second.start


def test_a_compiled_function_says_what_it_is() -> None:
    compiled = dovetail.compile(_broken, mode="reduce-overhead", isolate_recompiles=True)
    told = f"<compiled function _broken ({FILE}:{_broken.__code__.co_firstlineno}), "
    told += "backend dovetail, mode reduce-overhead, "
    assert repr(compiled) == f"{told}nothing compiled yet>"
    compiled(torch.randn(8))
    assert repr(compiled) == f"{told}2 graphs>"
    eager = dovetail.compile(_broken, backend="eager", isolate_recompiles=True)
    assert "backend dovetail" not in repr(eager) and "backend " in repr(eager)
    model = Gated()
    inner = repr(model).replace("\n", "\n  ")
    assert repr(dovetail.compile(model)) == f"OptimizedModule(\n  (_orig_mod): {inner}\n)"


def test_a_call_within_a_profile_is_whole() -> None:
    """A profile that begins and ends between calls sees each call once, and others see nothing."""
    compiled = dovetail.compile(lambda x: (x * 2).cos())
    x = torch.randn(8)
    compiled(x)
    for count in (1, 3):

        def run(count: int = count) -> None:
            for _ in range(count):
                compiled(x)

        names = _seen(run)
        assert sum(name.startswith("dovetail: ") for name in names) == count
        assert sum(name.startswith("mul_cos (") for name in names) == count
    torch.testing.assert_close(compiled(x), (x * 2).cos())


def _labels(plan_text: str) -> list[str]:
    return [line.rpartition("  # ")[2] for line in plan_text.splitlines() if "  # " in line]


def _normed(x: Tensor) -> Tensor:
    return x / (x * x).sum(-1, keepdim=True)


def _transposed(x: Tensor) -> Tensor:
    return x.t().contiguous()


def _long(x: Tensor) -> Tensor:
    return x.exp().log().sin().cos().tan().tanh()


@pytest.mark.parametrize(
    ("function", "name"),
    [(_normed, "mul_sum_div"), (_transposed, "copy"), (_long, "exp_log_sin_cos_tan_tanh")],
)
def test_names_say_what_is_computed(function: Callable[[Tensor], Tensor], name: str) -> None:
    (plan,) = show(function, (torch.rand(8, 8),), stages=["plan"])
    line = function.__code__.co_firstlineno + 1
    assert _labels(plan.text.text) == [f"{name} ({FILE}:{line})"]
    assert f'extern "C" void dovetail_{name}_' in plan.text.text


def test_equal_kernels_have_one_name() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.softmax(-1), y.softmax(-1)

    (plan,) = show(f, (torch.rand(8, 8), torch.rand(8, 8)), stages=["plan"])
    assert plan.text.text.count('extern "C" void dovetail_softmax_') == 1
    assert len(_labels(plan.text.text)) == 2


@pytest.mark.gpu
@pytest.mark.observes
def test_kernels_on_a_gpu_have_names() -> None:
    module = Gated().cuda()
    x = torch.randn(8, 16, device="cuda")
    both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    for mode in ("default", "reduce-overhead"):  # (in recorded graphs, too)
        compiled = dovetail.compile(module, mode=mode)
        with torch.no_grad():
            for _ in range(5):
                compiled(x)
            names = _seen(lambda c=compiled: (c(x), torch.cuda.synchronize()), *both)
        assert any(name.startswith("dovetail: forward of Gated (") for name in names), (mode, names)
        assert any("softmax" in name for name in names), (mode, names)
