"""Backends that packages register with torch.compile when they are imported, which need hardware
or a PyTorch that is not here: run against stand-ins that hold every call to what the packages
document."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail

STAND_IN = """
import torch
from torch._dynamo import register_backend

calls = []

@register_backend(name={name!r})
def backend(gm, sample_inputs, **kwargs):
    assert isinstance(gm, torch.fx.GraphModule) and set(kwargs) <= {{"options"}}
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    assert len(placeholders) == len(sample_inputs)
    for value in sample_inputs:  # (neither package takes fake tensors, or numbers)
        assert type(value) in (torch.Tensor, torch.nn.Parameter)
        assert all(type(size) is int for size in value.shape)
    calls.append(kwargs.get("options", {{}}))

    def run(*inputs):
        assert [v.shape for v in inputs] == [v.shape for v in sample_inputs]
        return gm(*inputs)

    return run
"""
PACKAGES = (
    ("tensorrt", "torch_tensorrt", "torch_tensorrt"),
    ("torch_tensorrt", "torch_tensorrt", "torch_tensorrt"),
    ("ipex", "intel_extension_for_pytorch", "ipex"),
)


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for _, package, registers in PACKAGES:
        (tmp_path / f"{package}.py").write_text(STAND_IN.format(name=registers))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    registry: Any = sys.modules.get("torch._dynamo.backends.registry")
    for _, package, registers in PACKAGES:
        sys.modules.pop(package, None)
        for table in (registry._BACKENDS, registry._COMPILER_FNS) if registry else ():
            table.pop(registers, None)


@pytest.mark.parametrize(("name", "package", "registers"), PACKAGES)
@pytest.mark.filterwarnings("ignore")
def test_what_a_package_registers_is_run(
    name: str, package: str, registers: str, stand_ins: None
) -> None:
    assert name in dovetail.list_backends()
    net = torch.nn.Linear(3, 2).eval()
    compiled = dovetail.compile(net, backend=name, options={"min_block_size": 3})
    with torch.no_grad():
        for size in (2, 4, 5):
            x = torch.randn(size, 3)
            torch.testing.assert_close(compiled(x), net(x))
    expected = {"min_block_size": 3}
    if registers == "torch_tensorrt":  # it is not to pass over what it fails for
        expected["pass_through_build_failures"] = True
    told = sys.modules[package].calls
    assert told == [expected] * len(told) and len(told) >= 3
    own = {"pass_through_build_failures": False}
    with torch.no_grad():
        dovetail.compile(net, backend=name, options=own)(torch.ones(1, 3))
    assert told[-1] == own


@pytest.mark.parametrize(("name", "package", "registers"), PACKAGES)
def test_a_package_that_is_absent_is_named(name: str, package: str, registers: str) -> None:
    if name in dovetail.list_backends():
        pytest.skip(f"{package} is installed")
    with pytest.raises(ImportError, match=f"needs {package}, .* pip install [a-z-]+$"):
        dovetail.compile(torch.nn.Linear(3, 2), backend=name)


@pytest.mark.parametrize(
    ("text", "told"),
    [("", "registered no backend 'torch_tensorrt'"), ("1 / 0", "failed: ZeroDivisionError")],
)
def test_a_package_that_cannot_be_used_is_told_of(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch_tensorrt.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with pytest.raises(ImportError, match=told):
            dovetail.compile(torch.nn.Linear(3, 2), backend="tensorrt")
    finally:
        sys.modules.pop("torch_tensorrt", None)
