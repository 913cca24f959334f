"""How inputs lie in memory when the graph begins: what it calls may change that in place (`t_`,
`squeeze_`, `resize_`), and the same fakes are what it is then traced with."""

from __future__ import annotations

from typing import Any

from dovetail_prims.fake_tensor import FakeTensor
from torch.fx import Node


class InputLayouts:
    """The fakes of a graph's placeholders, each with its layout at first."""

    def __init__(self) -> None:
        self._noted: list[tuple[Node, FakeTensor, tuple[Any, ...], tuple[Any, ...], Any]] = []

    def note(self, node: Node, fake: FakeTensor) -> None:
        """`fake` stands for a placeholder; nothing has been called on it yet."""
        self._noted.append((node, fake, fake._sizes, fake._strides, fake._offset))

    def have_changed(self) -> bool:
        """Does an input lie otherwise than it did at first?"""
        return any(
            fake._sizes is not sizes or fake._strides is not strides or fake._offset is not offset
            for _, fake, sizes, strides, offset in self._noted
        )

    def restore(self) -> None:
        """Let the placeholders whose layouts have changed stand for what was given."""
        for node, fake, sizes, strides, offset in self._noted:
            # (Compared as objects: asking symbolic sizes whether they are equal would guard them.)
            same = fake._sizes is sizes and fake._strides is strides and fake._offset is offset
            if not same:
                node.meta["val"] = FakeTensor.make(
                    sizes,
                    strides,
                    fake._dtype,
                    fake._device,
                    offset=offset,
                    storage=fake._storage,
                    requires_grad=fake.requires_grad,
                )
