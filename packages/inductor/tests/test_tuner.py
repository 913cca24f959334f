"""The tuner without a GPU: what it keeps, what it leaves out. Plans run in the reference executor,
and a table says what they take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dovetail_inductor import DeviceTuner, compile_graph
from dovetail_inductor.products import device_tuner
from dovetail_inductor.products.choose_products import Problem
from dovetail_inductor.products.device_tuner import scratch_inputs
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime import Plan, load
from dovetail_runtime.knobs import Knobs
from torch import Tensor


def plan_of(fn: Callable[..., Tensor], *inputs: Tensor) -> Plan:
    return compile_graph(trace_aten(fn, *inputs, decompositions=core_aten_table()))


X = torch.randn(6, 8)
SUM = plan_of(lambda x: x + x, X)
TWICE = plan_of(lambda x: x * 2, X)
WRONG = plan_of(lambda x: x * 2.5, X)


@dataclass
class Clock:
    """Milliseconds of each plan, and how often it was measured."""

    times: dict[str, float]
    current: str = ""
    measured: int = 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stands for the GPU."""
    made = Clock({})
    names = {id(SUM): "sum", id(TWICE): "twice", id(WRONG): "wrong"}

    def fake_load(plan: Plan, build: object) -> Any:
        if made.times[names[id(plan)]] < 0:
            raise RuntimeError("too much shared memory\nand more")
        return SimpleNamespace(run=load(plan).run, name=names[id(plan)])

    def fake_recorded(run: Any, sets: Sequence[Sequence[Tensor]], calls: int) -> Any:
        made.measured += 1
        number = made.measured
        order = [n for n in ("sum", "twice", "wrong") if made.times.get(n, -1) >= 0]

        def replay() -> None:
            made.current = order[number - 1]

        return replay

    def milliseconds(work: Callable[[], None]) -> float:
        work()
        return made.times.get(made.current, 1.0)

    @contextmanager
    def nothing(*_: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(device_tuner, "KernelBuild", lambda kernels: None)
    monkeypatch.setattr(device_tuner, "load", fake_load)
    monkeypatch.setattr(device_tuner, "recorded", fake_recorded)
    monkeypatch.setattr(device_tuner, "milliseconds", milliseconds)
    monkeypatch.setattr(device_tuner, "side_stream", nothing)
    monkeypatch.setattr(device_tuner, "triton_version", lambda: "3")
    monkeypatch.setattr(torch.cuda, "device", nothing)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
    cache = SimpleNamespace(L2_cache_size=1 << 10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: cache)
    return made


def knobs(folder: Path) -> Knobs:
    return Knobs.from_environment({"DOVETAIL_CACHE_DIR": str(folder)})


def problem(*plans: Plan, key: str = "") -> Problem:
    names = tuple(str(i) for i in range(len(plans)))
    return Problem((("operator", "double"), ("key", key)), names, lambda: plans)


def test_times_are_kept_on_disk(clock: Clock, tmp_path: Path) -> None:
    clock.times = {"sum": 2.0, "twice": 1.0}
    (seconds,) = DeviceTuner(knobs(tmp_path)).measure([problem(SUM, TWICE)])
    assert seconds[0] is not None and seconds[1] == pytest.approx(seconds[0] / 2)
    assert clock.measured == 2
    again = DeviceTuner(knobs(tmp_path)).measure([problem(SUM, TWICE)])
    assert again == [seconds] and clock.measured == 2
    clock.measured = 0
    DeviceTuner(knobs(tmp_path)).measure([problem(SUM, TWICE, key="other")])
    assert clock.measured == 2


def test_what_is_wrong_or_does_not_run_is_left_out(clock: Clock, tmp_path: Path) -> None:
    clock.times = {"sum": 2.0, "twice": -1.0, "wrong": 0.1}
    tuner = DeviceTuner(knobs(tmp_path))
    (seconds,) = tuner.measure([problem(SUM, TWICE, WRONG)])
    assert seconds[0] is not None and seconds[1:] == (None, None)
    assert tuner.failures == ["1: too much shared memory", "2: another result"]


def test_a_result_that_is_wrong_in_a_corner_alone_is_told() -> None:
    wanted = torch.randn(64, 64)
    rounded, torn = wanted * 1.004, wanted.clone()
    torn[-1, -1] += wanted.abs().max()
    assert device_tuner._close(rounded, wanted) and not device_tuner._close(torn, wanted)
    assert not device_tuner._close(torch.full_like(wanted, torch.nan), wanted)
    assert device_tuner._close(torch.ones(0), torch.ones(0))


def test_a_library_that_does_not_run_is_not_kept(clock: Clock, tmp_path: Path) -> None:
    clock.times = {"sum": -1.0, "twice": 1.0}
    tuner = DeviceTuner(knobs(tmp_path))
    assert tuner.measure([problem(SUM, TWICE)]) == [(None, None)]
    assert not list((tmp_path / "autotune").iterdir())


@pytest.mark.parametrize("content", ["", '{"seconds": [1, 2]}'])
def test_times_that_are_not_what_was_stored_are_measured_again(
    content: str, clock: Clock, tmp_path: Path
) -> None:
    clock.times = {"sum": 2.0, "twice": 1.0}
    (seconds,) = DeviceTuner(knobs(tmp_path)).measure([problem(SUM, TWICE)])
    (file,) = tmp_path.rglob("times.json")
    file.write_text(content)
    clock.measured = 0
    with pytest.warns(RuntimeWarning, match=r"times\.json is not what was stored"):
        again = DeviceTuner(knobs(tmp_path)).measure([problem(SUM, TWICE)])
    assert again == [seconds] and clock.measured == 2


def test_scratch_inputs_are_laid_out_as_promised(clock: Clock) -> None:
    """More of them than the cache holds; the user's random numbers are not touched."""
    before = torch.get_rng_state()
    x = torch.randn(10, 8)[2:, 1:5].t()
    torch.set_rng_state(before)
    sets = scratch_inputs(plan_of(lambda a: a * 2, x))
    assert torch.equal(torch.get_rng_state(), before)
    assert len(sets) == 7  # of 312 bytes, against twice 1024
    for (made,) in sets:
        assert made.shape == x.shape and made.stride() == x.stride()
        assert made.storage_offset() == x.storage_offset() and float(made.abs().sum()) > 0
    assert len({s[0].untyped_storage().data_ptr() for s in sets}) == len(sets)
