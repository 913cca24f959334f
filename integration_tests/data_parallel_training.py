"""What each process of `test_data_parallel.py` does: train compiled modules in parallel ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dovetail


class TwoHeads(nn.Module):
    """A loss may leave out one head, whose parameters then get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2)])
        self.first = nn.Linear(8, 2)
        self.second = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.blocks(x)
        return self.first(h), self.second(h)


def replicated(model: nn.Module) -> Any:
    return DistributedDataParallel(model, find_unused_parameters=True)


def sharded(model: Any, compile_blocks: bool) -> Any:
    from torch.distributed.fsdp import fully_shard

    for i, block in enumerate(model.blocks):
        model.blocks[i] = dovetail.compile(block) if compile_blocks else block
        fully_shard(model.blocks[i])
    return fully_shard(model)


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "eager": replicated,
    "compiled, then replicated": lambda model: replicated(dovetail.compile(model)),
    "replicated, then compiled": lambda model: dovetail.compile(replicated(model)),
    "compiled blocks, then sharded": lambda model: sharded(model, compile_blocks=True),
    "sharded, then compiled": lambda model: dovetail.compile(sharded(model, compile_blocks=False)),
}


def train(rank: int, way: str) -> list[Tensor]:
    """The parameters after some steps, of which each process has its part of the batch."""
    torch.manual_seed(0)
    model = TwoHeads()
    parallel = WAYS[way](model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + rank)
        first, second = parallel(torch.randn(4, 8, generator=generator))
        loss = first.square().mean()
        # (Once without the second head, whose parameters get no gradient then. Sharding needs one.)
        if step != 1 or "shard" in way:
            loss = loss + second.square().mean() * (step != 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return [p.detach() for p in full]


def work(rank: int, port: int, results: str) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    found = {way: train(rank, way) for way in WAYS}
    if rank == 0:
        torch.save(found, results)
    dist.destroy_process_group()
