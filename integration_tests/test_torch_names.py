"""The names of torch.compiler, torch's settings, and `install()`."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coming_from_torch_compile
import pytest
import torch
from torch import Tensor

import dovetail

# Names whose parameters differ, with the reason.
_DIFFER = {
    "compile": "torch.compiler's takes anything and calls torch.compile",
    "precompile": "a module there, a function that refuses here",
    "PrecompileError": "a class",
    "config": "a module",
    "disable": "the same, with positional parameters named `function`",
}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    dovetail.uninstall()
    dovetail.set_default_backend(None)


def names_of_torch_compiler() -> list[str]:
    return [n for n in torch.compiler.__all__ if hasattr(torch.compiler, n)]


@pytest.mark.parametrize("name", names_of_torch_compiler())
def test_every_name_with_its_parameters(name: str) -> None:
    ours, theirs = getattr(dovetail.compiler, name), getattr(torch.compiler, name)
    assert name in dovetail.compiler.__all__
    if name in _DIFFER:
        return
    parameters = [_shape(f) for f in (ours, theirs)]
    assert parameters[0] == parameters[1]


def _shape(function: Any) -> list[tuple[str, Any]]:
    """The parameters that a caller sees: by their place, or by name with the default."""
    return [
        (p.name if p.kind is p.KEYWORD_ONLY else str(i), p.default)
        for i, p in enumerate(inspect.signature(function).parameters.values())
    ]


def test_parameters_of_compile() -> None:
    theirs = inspect.signature(torch.compile).parameters  # noqa: TID251
    ours = inspect.signature(dovetail.compile).parameters
    assert theirs.keys() <= ours.keys()


class TestConfig:
    def test_values(self) -> None:
        config = dovetail.config
        assert config.recompile_limit == config.cache_size_limit == 8
        with config.patch(recompile_limit=3):
            assert config.recompile_limit == config.cache_size_limit == 3
        with config.patch({"triton.cudagraphs": True}):
            assert config.triton.cudagraphs is True
        with config.patch("max_autotune", True):
            assert config.options_set() == {"max_autotune": True}
        assert config.recompile_limit == 8 and not config.options_set()

    def test_is_set_for_the_process(self) -> None:
        before = dovetail.config.suppress_errors
        dovetail.config.suppress_errors = True
        try:
            assert dovetail.config.suppress_errors is True
        finally:
            dovetail.config.suppress_errors = before

    def test_unknown_names(self) -> None:
        with pytest.raises(AttributeError, match="recompile_limit"):
            dovetail.config.recompile_limitt = 3
        with pytest.raises(AttributeError, match="recompile_limit"):
            _ = dovetail.config.recompile_limitt

    def test_limit_and_dynamic(self) -> None:
        graphs: list[Any] = []

        def backend(gm: Any, example_inputs: Any) -> Any:
            graphs.append(gm)
            return gm.forward

        with dovetail.config.patch(assume_static_by_default=False):
            run = dovetail.compile(lambda x: x.sin() + x.shape[0], backend=backend)
            for size in (3, 4, 5):
                run(torch.ones(size))
        assert len(graphs) == 1
        graphs.clear()
        patched = dovetail.config.patch(recompile_limit=2, automatic_dynamic_shapes=False)
        with patched, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = dovetail.compile(lambda x: x.cos() + x.shape[0], backend=backend)
            for size in (3, 4, 5):
                run(torch.ones(size))
        assert len(graphs) == 2

    def test_options_of_the_process_reach_compile(self) -> None:
        with dovetail.config.patch(freezing=True):
            run: Any = dovetail.compile(torch.nn.Linear(2, 2))
        assert run.capture_context.backend.options.constant_weights

    def test_inductors_own_config_is_honoured(self) -> None:
        import torch._inductor.config as theirs  # noqa: TID251

        with theirs.patch(max_autotune=True):
            assert dovetail.config.options_set() == {"max_autotune": True}
        assert not dovetail.config.options_set()


class TestInstall:
    def test_all_is_given_back(self) -> None:
        before = {name: getattr(torch.compiler, name) for name in names_of_torch_compiler()}
        compile_before, in_place = torch.compile, torch.nn.Module.compile  # noqa: TID251
        with dovetail.installed():
            assert torch.compile is not compile_before  # noqa: TID251
            assert torch.compiler.save_cache_artifacts is not before["save_cache_artifacts"]
        assert torch.compile is compile_before  # noqa: TID251
        assert torch.nn.Module.compile is in_place
        assert before == {name: getattr(torch.compiler, name) for name in before}

    def test_signature_and_text_are_torchs(self) -> None:
        before = torch.compile  # noqa: TID251
        with dovetail.installed():
            now = torch.compile  # noqa: TID251
            assert inspect.signature(now) == inspect.signature(before)
            assert now.__doc__ == before.__doc__

    def test_twice_and_within(self) -> None:
        before = torch.compile  # noqa: TID251
        dovetail.install()
        with dovetail.installed():
            dovetail.install()
        assert torch.compile is not before  # noqa: TID251
        dovetail.uninstall()
        dovetail.uninstall()
        assert torch.compile is before  # noqa: TID251

    def test_state_dicts_are_torch_compiles(self) -> None:
        with dovetail.installed():
            compiled: Any = torch.compile(torch.nn.Linear(2, 2))  # noqa: TID251
        assert list(compiled.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]

    def test_questions_within_compiled_code(self) -> None:
        def asks(x: Tensor) -> Tensor:
            compiling = torch.compiler.is_compiling() and torch.compiler.is_dynamo_compiling()
            return x + 1 if compiling and not torch.compiler.is_exporting() else x

        with dovetail.installed():
            got = torch.compile(asks, fullgraph=True)(torch.zeros(1))  # noqa: TID251
        assert got.item() == 1

    def test_eager_operators_that_compile_themselves(self) -> None:
        x = torch.ones(2)
        with dovetail.installed():
            got = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        torch.testing.assert_close(got, x.sin())


_PROGRAM = """
import sys
import torch

def f(x):
    return x + 1

compiled = torch.compile(f)
compiled(torch.ones(2))
print(__name__, sys.argv[1:], hasattr(compiled, "capture_context"), "torch._dynamo" in sys.modules)
import torch._dynamo
print(torch._dynamo.explain(f)(torch.ones(2)).graph_count)
"""


@pytest.mark.long
@pytest.mark.parametrize("installed", [True, False])
def test_run_a_script(installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "program.py"
    script.write_text(_PROGRAM)
    if not installed:
        monkeypatch.setenv("DOVETAIL", "0")
        script.write_text(_PROGRAM.replace("torch.compile(f)", 'torch.compile(f, backend="eager")'))
    command = [sys.executable, "-m", "dovetail", str(script), "a", "--b"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert out == [f"__main__ ['a', '--b'] {installed} {not installed}", "1"]


def test_run_a_module(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    command = [sys.executable, "-m", "dovetail", "-m", "program", "a"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert run.stdout.startswith("__main__ ['a'] True False")


def test_the_page_of_names_is_up_to_date() -> None:
    assert coming_from_torch_compile.PAGE.read_text() == coming_from_torch_compile.page()
