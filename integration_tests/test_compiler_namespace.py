"""`dovetail.compiler`: the names of `torch.compiler`, with its parameters and what they do."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from dovetail_capture import export
from torch import Tensor

import dovetail
from dovetail import compiler

# Parameters that differ from torch's, by name, and why.
_ALLOWED_DIFFERENCES = {
    "compile": "torch.compiler.compile passes everything on; torch.compile has the parameters",
}
_NO_FUNCTIONS = ("PrecompileError", "config", "precompile")


def _parameters(function: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in found]


def test_all_public_names_are_there() -> None:
    assert set(torch.compiler.__all__) <= set(compiler.__all__)
    assert all(hasattr(compiler, name) for name in compiler.__all__)


@pytest.mark.skipif(torch.__version__ < "2.15", reason="the parameters are those of torch 2.15")
@pytest.mark.parametrize("name", [n for n in torch.compiler.__all__ if n not in _NO_FUNCTIONS])
def test_parameters_are_torchs(name: str) -> None:
    theirs, ours = getattr(torch.compiler, name), getattr(compiler, name)
    if name not in _ALLOWED_DIFFERENCES:
        assert _parameters(ours) == _parameters(theirs)


def test_what_is_no_function() -> None:
    assert isinstance(compiler.precompile, types.ModuleType)
    assert issubclass(compiler.PrecompileError, RuntimeError)


def test_is_exporting_under_export_alone() -> None:
    def f(x: Tensor) -> Tensor:
        exporting = (torch.compiler.is_exporting(), compiler.is_exporting())
        return x + 1 if exporting == (True, True) else x + 2

    x = torch.zeros(2)
    assert f(x)[0] == 2 and dovetail.compile(f, backend="eager")(x)[0] == 2
    assert export(f, (x,))(x)[0] == 1
    assert not compiler.is_exporting()


def test_is_dynamo_compiling() -> None:
    def f(x: Tensor) -> Tensor:
        return x + (1 if compiler.is_dynamo_compiling() and compiler.is_compiling() else 2)

    assert f(torch.zeros(1)).item() == 2
    assert dovetail.compile(f, backend="eager")(torch.zeros(1)).item() == 1


def test_wrap_numpy() -> None:
    np = pytest.importorskip("numpy")

    @compiler.wrap_numpy
    def f(a: Any) -> Any:
        return np.sum(a * a, axis=0, keepdims=True)

    x = torch.arange(4.0)
    torch.testing.assert_close(f(x), torch.tensor([14.0]))
    x.requires_grad_()
    result = dovetail.compile(f, backend="aot_eager", fullgraph=True)(x)
    result.backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_nested_compile_region_and_marks_of_steps() -> None:
    @compiler.nested_compile_region
    def region(x: Tensor) -> Tensor:
        return x.sin() + 1

    @compiler.nested_compile_region(max_reuse_entries=2)
    def other(x: Tensor) -> Tensor:
        return x * 2

    def f(x: Tensor) -> Tensor:
        compiler.cudagraph_mark_step_begin()
        compiler.cudagraph_mark_warmup_incomplete()
        return other(region(x) * region(x))

    x = torch.randn(3)
    torch.testing.assert_close(dovetail.compile(f, backend="eager", fullgraph=True)(x), f(x))
    with pytest.raises(NotImplementedError, match="options"):
        compiler.nested_compile_region(region, options={})


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(compiler.PrecompileError, match="save_cache_artifacts"):
        compiler.precompile.load(tmp_path / "a", tmp_path / "b")
    with pytest.raises(compiler.PrecompileError, match="cache on disk"):
        with open(tmp_path / "empty", "wb+") as file:
            compiler.load_compiled_function(file)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="mark_dynamic"):
        compiler.set_enable_guard_collectives(True)
    assert compiler.set_enable_guard_collectives(False) is False


def test_default_backend() -> None:
    seen: list[int] = []

    def backend(gm: Any, inputs: Any) -> Any:
        seen.append(len(inputs))
        return gm.forward

    assert compiler.get_default_backend() == "dovetail"
    compiler.set_default_backend(backend)
    try:
        assert compiler.get_default_backend() is backend
        dovetail.compile(lambda x: x + 1)(torch.ones(2))
        assert seen == [1]
        with pytest.raises(TypeError):
            compiler.set_default_backend(3)  # type: ignore[arg-type]
    finally:
        compiler.set_default_backend(None)
    assert compiler.get_default_backend() == "dovetail"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("keep_portable_guards_unsafe", {"TENSOR_MATCH", "GLOBAL_STATE", "SHAPE_ENV"}),
        ("keep_tensor_guards_unsafe", {"TENSOR_MATCH"}),
        ("skip_all_guards_unsafe", set()),
    ],
)
def test_guard_filters_keep_these_kinds(name: str, kept: set[str]) -> None:
    seen: set[str] = set()

    def noting(entries: Any) -> list[bool]:
        answers: list[bool] = getattr(compiler, name)(entries)
        pairs = zip(entries, answers, strict=True)
        seen.update(entry.guard_type for entry, answer in pairs if answer)
        return answers

    def f(x: Tensor, n: int) -> Tensor:
        return x * _SCALE + n

    compiled = dovetail.compile(f, backend="eager", options={"guard_filter_fn": noting})
    torch.testing.assert_close(compiled(torch.ones(3), 2), torch.full((3,), 5.0))
    assert seen <= kept and bool(seen) == bool(kept)


_SCALE = 3


def test_guard_filters_of_modules_and_globals() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)
            self.scale = 2.0

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.scale + _SCALE

    dropped: dict[str, list[str]] = {}
    for name in (
        "skip_guard_on_inbuilt_nn_modules_unsafe",
        "skip_guard_on_all_nn_modules_unsafe",
        "skip_guard_on_globals_unsafe",
    ):

        def noting(entries: Any, name: str = name) -> list[bool]:
            answers: list[bool] = getattr(compiler, name)(entries)
            pairs = zip(entries, answers, strict=True)
            dropped[name] = [entry.name for entry, answer in pairs if not answer]
            return answers

        options = {"guard_filter_fn": noting}
        dovetail.compile(Net(), backend="eager", options=options)(torch.ones(1, 2))
    inbuilt, every, of_globals = dropped.values()
    assert inbuilt and set(inbuilt) < set(every)
    assert of_globals and not set(of_globals) & set(every)


def test_cache_artifacts_go_to_another_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def f(x: Tensor) -> Tensor:
        return (x * 3.25).sin() + x.cos() * 7.5

    x = torch.randn(1000)
    torch.testing.assert_close(dovetail.compile(f)(x), f(x))
    saved = compiler.save_cache_artifacts()
    assert saved is not None
    data, info = saved
    assert info.counts["cpp"] > 0 and len(info.inductor_artifacts) >= info.counts["cpp"]
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    loaded = compiler.load_cache_artifacts(data)
    assert loaded is not None and "cpp" in loaded.artifacts
    # (Tests that ran before in this process may have had kinds of their own, gone by now.)
    assert all(info.artifacts[kind] == names for kind, names in loaded.artifacts.items())
    assert {p.name for p in (tmp_path / "cpp").iterdir()} >= set(info.artifacts["cpp"])


_SECOND_PROCESS = """
import sys
import torch
import dovetail

with open(sys.argv[1], "rb") as file:
    print(dovetail.compiler.load_cache_artifacts(file.read()).counts["cpp"] > 0)
f = dovetail.compile(lambda x: (x * 4.75).sin() + x.cos() * 1.5)
print(torch.allclose(f(torch.ones(64)), torch.ones(64) * (torch.sin(torch.tensor(4.75))
      + torch.cos(torch.tensor(1.0)) * 1.5)))
"""


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    """Its cache, empty before, holds nothing but what was saved when it has run."""
    x = torch.ones(64)
    dovetail.compile(lambda x: (x * 4.75).sin() + x.cos() * 1.5)(x)
    saved = compiler.save_cache_artifacts()
    assert saved is not None
    (tmp_path / "artifacts").write_bytes(saved[0])
    environment = {**os.environ, "DOVETAIL_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", _SECOND_PROCESS, str(tmp_path / "artifacts")]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["True", "True"]
    made = {p.name for p in (tmp_path / "cache" / "cpp").iterdir() if not p.name.startswith(".")}
    assert made <= set(saved[1].artifacts["cpp"])


@pytest.mark.parametrize("damage", ["cut", "changed", "foreign"])
def test_damaged_cache_artifacts_are_refused(damage: str) -> None:
    dovetail.compile(lambda x: x * 2.5 + 1)(torch.randn(64))
    saved = compiler.save_cache_artifacts()
    assert saved is not None
    data = saved[0]
    damaged = {"cut": data[:-5], "changed": data[:-1] + b"\0", "foreign": b"x" + data}[damage]
    with pytest.warns(RuntimeWarning, match="not loaded"):
        assert compiler.load_cache_artifacts(damaged) is None


class _Noting:
    """A backend that notes its name in a list for each graph."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def __call__(self, gm: Any, inputs: Any) -> Any:
        self.seen.append(self.name)
        return gm.forward


def test_stances_in_all_their_words() -> None:
    seen: list[str] = []
    x = torch.ones(3)
    f = dovetail.compile(lambda x: x + 1, backend=_Noting("own", seen))

    @compiler.set_stance("force_eager")
    def eagerly() -> Tensor:
        return f(x)

    eagerly()
    assert seen == []
    with compiler.set_stance(force_backend=_Noting("forced", seen)):
        f(x)
        f(x)
    f(x)
    assert seen == ["forced", "own"]
    compiler.set_stance("fail_on_recompile")
    try:
        f(x)
        with pytest.raises(dovetail.CaptureError, match="recompile"):
            f(torch.ones(2, 2))
    finally:
        compiler.set_stance("default", skip_guard_eval_unsafe=True)
    with compiler.set_stance("eager_on_recompile"):
        torch.testing.assert_close(f(torch.ones(2, 2)), torch.full((2, 2), 2.0))
    assert seen == ["forced", "own"]
    for stance in ("eager_then_compile", "aot_eager_then_compile"):
        compiler.reset()
        seen.clear()
        with compiler.set_stance(stance):
            for size in (3, 4, 5):
                f(torch.ones(size))
        assert seen == ["own"]  # for any size, which the first call told
    with pytest.raises(RuntimeError, match="default"):
        compiler.set_stance("force_eager", force_backend=_Noting("forced", seen))
    with pytest.raises(ValueError, match="force_eager"):
        compiler.set_stance("eager")
