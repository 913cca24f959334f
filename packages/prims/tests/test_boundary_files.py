"""Boundary values in files: graphs come back as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from dovetail_guards.shape_env import ShapeEnv
from dovetail_guards.source import LocalSource
from dovetail_prims.boundary_files import BoundaryFileError, load_boundary, save_boundary
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.graphs.record import trace_aten
from torch.fx import GraphModule


@dataclass(frozen=True)
class Held:
    """A boundary value of this test."""

    value: Any


def read_back(value: Any, folder: Path) -> Any:
    save_boundary(Held(value), folder / "value.boundary")
    return load_boundary(folder / "value.boundary", Held).value


def values_of(gm: GraphModule) -> list[str]:
    return [f"{node.name}: {node.meta.get('val')}" for node in gm.graph.nodes]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x @ x.t(), -1)[1:],
        lambda x: torch.stack([x, x.sum(0, keepdim=True).expand_as(x)], 1),
        lambda x: x + torch.arange(8),
        lambda x: x[:, None, ::2].to(torch.bfloat16).topk(2),
    ],
)
def test_graphs(function: Callable[[Any], Any], tmp_path: Path) -> None:
    gm = trace_aten(function, torch.randn(8, 8))
    back = read_back(gm, tmp_path)
    assert back.code == gm.code and values_of(back) == values_of(gm)
    x = torch.randn(8, 8)
    torch.testing.assert_close(back(x), gm(x))


def test_constants_come_along(tmp_path: Path) -> None:
    held = torch.randn(8)
    gm = trace_aten(lambda x: x * held, torch.randn(8, 8))
    back = read_back(gm, tmp_path)
    held.zero_()
    assert any(node.op == "get_attr" for node in back.graph.nodes)
    assert back(torch.ones(8, 8))[0].abs().min() > 0


def test_symbolic_sizes_keep_what_is_known_of_them(tmp_path: Path) -> None:
    env = ShapeEnv()
    size = env.symint(env.create_size(6, LocalSource("n")))
    fake = FakeTensor.make((size, 4), (4, 1), torch.float32, torch.device("cpu"))
    assert size > 3
    back, again = read_back((fake, size), tmp_path)
    assert str(back.shape[0]) == str(size) and back.shape[0].node.hint == 6
    assert again.node.env is back.shape[0].node.env  # one environment, as it was
    assert [str(d) for d in again.node.env.decisions] == [str(d) for d in env.decisions]
    assert bool(again > 3) and len(again.node.env.decisions) == len(env.decisions)
    assert again < 100 and len(again.node.env.decisions) == len(env.decisions) + 1


def test_views_share_their_storage(tmp_path: Path) -> None:
    base = FakeTensor.make((4, 4), (4, 1), torch.float32, torch.device("cpu"))
    view, other, whole = read_back((base[1], base.clone(), base), tmp_path)
    assert view._storage is whole._storage and other._storage is not whole._storage
    assert view._offset == 4


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def test_functions(tmp_path: Path) -> None:
    def local(x: int, y: int = 2) -> int:
        return x * y * factor

    factor = 5
    assert read_back(scaled, tmp_path) is scaled  # by its name
    assert read_back(local, tmp_path)(3) == 30  # with what it closes over


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "value.boundary"
    with (tmp_path / "open").open("w") as file, pytest.raises(BoundaryFileError, match="Held"):
        save_boundary(Held(file), path)
    assert not path.exists()
    save_boundary(Held(3), path)
    with pytest.raises(BoundaryFileError, match="holds a Held, no ShapeEnv"):
        load_boundary(path, ShapeEnv)
    own, other = f"{torch.__version__}\n".encode(), b"1.13.1\n"
    path.write_bytes(path.read_bytes().replace(own, other, 1)[:40])  # (nothing more is read)
    with pytest.raises(BoundaryFileError, match=r"was written with torch 1\.13\.1"):
        load_boundary(path, Held)
    path.write_bytes(b"something else")
    with pytest.raises(BoundaryFileError, match="no file of a boundary value"):
        load_boundary(path, Held)
