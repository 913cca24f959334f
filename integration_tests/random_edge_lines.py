"""Lines of random programs at the edges of vectorised loops: pieces of one element that are cut,
joined, padded and written, and what is computed over the result. As `random_kernel_lines.py`, a
table.
"""

from __future__ import annotations

from random_graph_lines import Families, Maker
from random_kernel_lines import KernelMaker


class EdgeMaker(KernelMaker):
    """Makes these lines, too."""

    def piece(self) -> tuple[str, bool]:
        """A part of a value: one element along a dimension, or all but one."""
        x = self.pick("fib", rank=1)
        d = self.dim(x)
        return self.choose(
            (f"{x}.narrow({d}, 0, 1)", False),
            (f"{x}[..., -1:]", False),
            (f"{x}[..., :1]", False),
            (f"{x}[..., 1:]", False),
            (f"{x}[..., :-1]", False),
            (f"{x}[..., 1::2]", False),
            (f"{x}.flip({d})[:1]", False),
            (f"{x}.select({d}, -1).unsqueeze({d})", False),
            (f"{x}.split({self.choose(1, 7, 8, 16)}, {d})[-1]", False),
            (f"{x}.chunk(2, {d})[0]", False),
            (f"{x}.diff(dim={d})", False) if self.values[x].is_floating_point() else (x, False),
        )

    def joined(self) -> tuple[str, bool]:
        """A concatenation, a padded or rotated value, or one with a piece written."""
        x = self.pick("fib", rank=1)
        d = self.dim(x)
        first, last = f"{x}.narrow({d}, 0, 1)", f"{x}.narrow({d}, -1, 1)"
        wide = f"{x}.reshape(1, 1, -1)"
        before, after = self.choose(0, 1, 1, 2), self.choose(0, 1, 1, -1, 7)
        parts = self.choose(
            (first, x), (x, last), (first, x, last), (first, first, x), (x, first, x),
            (x, x), (first, last), (x, last, last, x, first),
        )  # fmt: skip
        options = [
            (f"torch.cat([{', '.join(parts)}], {d})", False),
            (f"torch.cat([{', '.join(parts)}], {d})", False),
            (f"torch.cat([{', '.join(parts)}], {d})", False),
            (f"{x}.roll({self.choose(1, -1)}, {d})", False),
            (f"torch.slice_scatter({x}, {first}, {d}, -1)", False),
            (f"torch.slice_scatter({x}, {last}, {d}, 0, 1)", False),
            (f"torch.select_scatter({x}, {x}.select({d}, 0), {d}, -1)", False),
            (f"{x}.repeat_interleave(2, {d})", False),
        ]
        if self.values[x].is_floating_point():
            options += [
                (f"F.pad({x}, ({before}, {after}), value={self.choose(0, 1.5)})", False),
                (f"F.pad({x}, ({before}, {after}))", False),
                (f"F.pad({wide}, (1, 1), mode='{self.choose('replicate', 'reflect')}')", False),
                (f"F.pad({wide}, (0, 1), mode='circular')", False),
            ]
        return self.choose(*options)

    def over(self) -> tuple[str, bool]:
        """What reads a row more than once, or all of it at each element."""
        x = self.pick("f", rank=1)
        d = self.dim(x)
        size = f"{x}.shape[-1:]"
        return self.choose(
            (f"torch.softmax({x}, {d})", True),
            (f"torch.log_softmax({x}, {d})", True),
            (f"torch.logsumexp({x}, {d}, True)", True),
            (f"F.layer_norm({x}, {size})", True),
            (f"F.rms_norm({x}, {size}, eps=1e-5)", True),
            (f"{x} - {x}.mean({d}, keepdim=True)", True),
            (f"{x} - {x}.amax({d}, keepdim=True)", False),
            (f"{x} * torch.rsqrt({x}.square().sum({d}, keepdim=True) + 1)", True),
            (f"torch.softmax({x} - {x}.amax({d}, keepdim=True), {d}).narrow({d}, 0, 1)", True),
            (f"torch.var({x}, {d}, unbiased=False)", True),
            (f"torch.cumsum({x}, {d})", True),
            (f"torch.linalg.vector_norm({x}, dim={d}, keepdim=True)", True),
            (f"{x}.sum({d})", True),
            (f"{x}.amin({d}, True) + {x}", False),
        )


EDGE_FAMILIES: Families = (
    (EdgeMaker.piece, 8),
    (EdgeMaker.joined, 14),
    (EdgeMaker.over, 12),
    (Maker.smooth, 3),
    (Maker.activation, 2),
    (Maker.binary, 6),
    (Maker.kinked, 2),
    (KernelMaker.soft, 2),
    (KernelMaker.norm, 2),
)

__all__ = ["EDGE_FAMILIES", "EdgeMaker"]
