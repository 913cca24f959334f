"""More lines of random programs, for what a GPU's kernels have forms of their own for: long rows,
norms, attention, products of few rows, pooling, losses. As `random_graph_lines.py`, a table.
"""

from __future__ import annotations

from random_graph_lines import FAMILIES, Families, Maker


class KernelMaker(Maker):
    """Makes these lines, too."""

    def of_shape(self, *shape: int, kinds: str = "f") -> str:
        """A value of this shape."""
        fits = [
            name
            for name, t in self.values.items()
            if t.shape == shape and (t.is_floating_point() if kinds == "f" else True)
        ]
        if not fits:
            raise LookupError(shape)
        return self.rng.choice(fits)

    def norm(self) -> tuple[str, bool]:
        x = self.pick("f", rank=1)
        last = self.values[x].shape[-1]
        weight = self.choose("None", self.of_shape(last)) if self.rng.random() < 0.7 else "None"
        bias = self.choose("None", weight)
        size = f"({x}.shape[-1],)"
        as_3d = f"{x}.reshape({x}.shape[0], -1, {x}.shape[-1])"
        return self.choose(
            (f"F.layer_norm({x}, {size}, {weight}, {bias})", True),
            (f"F.rms_norm({x}, {size}, {weight}, 1e-5)", True),
            (f"F.layer_norm({x}, tuple({x}.shape))", True),
            (f"F.group_norm({as_3d}, 1)", True),
            (f"F.group_norm(torch.cat([{as_3d}, {as_3d}], 1), 2)", True),
            (f"F.instance_norm({as_3d})", True),
            (f"F.batch_norm({as_3d}, None, None, training=True)", True),
            (f"{x} * torch.rsqrt({x}.float().square().mean(-1, keepdim=True) + 1e-5)", True),
            (
                f"({x}.float() - {x}.float().mean(-1, keepdim=True)).to({x}.dtype) * 0.5",
                True,
            ),
        )

    def soft(self) -> tuple[str, bool]:
        x = self.pick("f", rank=1)
        d = self.dim(x)
        rows = f"{x}.reshape(-1, {x}.shape[-1])"
        target = f"torch.arange({x}.numel() // {x}.shape[-1]).remainder({x}.shape[-1])"
        mask = f"torch.arange({x}.shape[-1]) > {self.choose(0, 2, 30)}"
        return self.choose(
            (f"torch.softmax({x} * 2 + 1, {d})", True),
            (f"torch.softmax({x}.masked_fill({mask}, float('-inf')), -1)", True),
            (f"torch.log_softmax({x}, {d}).exp().sum({d})", True),
            (f"F.cross_entropy({rows}, {target})", True),
            (f"F.cross_entropy({rows}, {target}, label_smoothing=0.25)", True),
            (f"F.cross_entropy({rows}, {target}, reduction='none', ignore_index=0)", True),
            (f"F.nll_loss(torch.log_softmax({rows}, 1), {target}, reduction='sum')", True),
            (f"torch.logsumexp({x}.masked_fill({mask}, float('-inf')), {d}, True)", True),
            (f"torch.softmax({x}.float(), {d}).to({x}.dtype)", True),
            (f"F.mse_loss({x}, {x}.flip({d}))", True),
            (f"F.kl_div(torch.log_softmax({x}, {d}), torch.softmax({x} * 0.5, {d}))", True),
            (f"F.binary_cross_entropy_with_logits({x}, {x}.sigmoid())", True),
        )

    def attention(self) -> tuple[str, bool]:
        x = self.pick("f", rank=2)
        rows = self.values[x].shape[-2]
        if rows > 64:
            raise LookupError("long")
        scores = f"({x} @ {x}.mT) * 0.125"
        future = f"torch.ones({x}.shape[-2], {x}.shape[-2]).triu(1).bool()"
        heads = f"{x}.reshape(1, -1, {x}.shape[-2], {x}.shape[-1])"
        return self.choose(
            (f"torch.softmax({scores}, -1) @ {x}", True),
            (f"torch.softmax(({scores}).masked_fill({future}, float('-inf')), -1) @ {x}", True),
            (f"torch.softmax({scores}, -1, dtype=F32).to({x}.dtype) @ {x}", True),
            (f"F.scaled_dot_product_attention({heads}, {heads}, {heads})", True),
            (f"F.scaled_dot_product_attention({heads}, {heads}, {heads}, is_causal=True)", True),
        )

    def linear(self) -> tuple[str, bool]:
        x = self.pick("f", rank=1)
        t = self.values[x]
        weights = [
            n
            for n, w in self.values.items()
            if w.dim() == 2 and w.dtype == t.dtype and w.shape[1] == t.shape[-1]
        ]
        if not weights:
            raise LookupError("weights")
        w = self.rng.choice(weights)
        after = self.choose("{}", "F.relu({})", "F.gelu({})", "{} * 0.5 + 1", "F.silu({}) * 2")
        if self.grad and "relu" in after:
            after = "F.gelu({})"
        rows = f"{x}.reshape(-1, {x}.shape[-1])"
        return self.choose(
            (after.format(f"F.linear({x}, {w})"), True),
            (after.format(f"({rows} @ {w}.mT)"), True),
            (after.format(f"F.linear({x}, {w}, {w}.sum(1))"), True),
            (after.format(f"torch.addmm({w}[:, 0], {rows}, {w}.mT)"), True),
            (f"F.silu(F.linear({x}, {w})) * F.linear({x}, {w} + 1)", True),
            (f"F.linear({x}, {w}).softmax(-1)", True),
        )

    def image(self) -> tuple[str, bool]:
        x = self.pick("f", rank=2)
        t = self.values[x]
        if t.shape[-1] < 2 or t.shape[-2] < 2:
            raise LookupError("small")
        image = f"{x}.reshape(1, -1, *{x}.shape[-2:])"
        if self.rng.random() < 0.3:
            image += ".contiguous(memory_format=torch.channels_last)"
        kernel = f"torch.linspace(-1, 1, 18, dtype={x}.dtype).view(2, 1, 3, 3)"
        one = f"{x}.reshape(-1, 1, *{x}.shape[-2:])"
        kinks = [(f"F.max_pool2d({image}, 2)", False),
                 (f"F.max_pool2d({image}, 3, 2, 1)", False),
                 (f"F.max_pool2d({image}, 2, 1, ceil_mode=True, return_indices=True)[1]", False),
                 (f"F.adaptive_max_pool2d({image}, 2)", False)]  # fmt: skip
        if x in self.exact and self.rng.random() < 0.4:
            return self.rng.choice(kinks)
        return self.choose(
            (f"F.avg_pool2d({image}, 2)", True),
            (f"F.avg_pool2d({image}, 3, 1, 1, count_include_pad=False)", True),
            (f"F.adaptive_avg_pool2d({image}, (2, 3))", True),
            (f"F.interpolate({image}, scale_factor=2.0, mode='nearest')", False),
            (f"F.interpolate({image}, size=(5, 7), mode='bilinear')", True),
            (f"F.interpolate({image}, size=(5, 7), mode='bilinear', align_corners=True)", True),
            (f"F.interpolate({image}, size=(3, 9), mode='bicubic')", True),
            (f"F.conv2d({one}, {kernel}, padding=1)", True),
            (f"F.silu(F.conv2d(F.gelu({one}), {kernel}, {kernel}[:, 0, 0, 0]))", True),
            (f"F.pixel_unshuffle(F.interpolate({image}, scale_factor=2.0), 2)", False),
            (f"F.unfold({image}, 2)", False),
            (f"F.pad({image}, (1, 2, 0, 1), mode='circular')", False),
        )

    def lookup(self) -> tuple[str, bool]:
        table = self.pick("f", rank=2)
        i = self.pick("i")
        flat = f"{table}.reshape(-1, {table}.shape[-1])"
        at = f"torch.remainder({i}.long(), {flat}.shape[0])"
        return self.choose(
            (f"F.embedding({at}, {flat})", False),
            (f"F.embedding({at}, {flat}, padding_idx=0) * 2", False),
            (f"{flat}[{at}].sum(0)", False),
            (f"{flat}.index_add(0, {at}.reshape(-1), {flat}[{at}.reshape(-1)], alpha=2)", False),
            (f"F.one_hot({at}, {flat}.shape[0]).to({table}.dtype) @ {flat}", True),
        )

    def wrap(self) -> tuple[str, bool]:
        """Integers at the ends of their ranges, and the numbers that divide badly."""
        x = self.pick("i")
        y = self.like(x, "i")
        n = self.choose(1, 2, 3, 5, 7, 100)
        return self.choose(
            (f"{x} * {self.choose(37, -37, 101)}", False),
            (f"({x} * 1000).to(I8)", False),
            (f"{x}.to(I64) * (2**33 + 1)", False),
            (f"({x}.to(I64) << 31) // {n}", False),
            (f"({x}.to(I64) * (2**31 - 1)) % {n}", False),
            (f"torch.div({x}, -{n}, rounding_mode='floor')", False),
            (f"({x}.to(I32) - {n}) // ({y}.to(I32) | 1)", False),
            (f"torch.remainder({x}.to(I16) - {n}, ({y}.to(I16) | 1))", False),
            (f"{x}.to(I32) << ({y}.to(I32) & 31)", False),
            (f"{x}.to(I32) >> ({y}.to(I32) & 31)", False),
            (f"torch.cumsum({x}, {self.dim(x)}, dtype={self.choose('I8', 'I32', 'I64')})", False),
            (f"torch.sum({x}, {self.dim(x)}, dtype={self.choose('I8', 'U8', 'I16')})", False),
            (f"torch.prod({x}, {self.dim(x)})", False),
            (f"torch.argmax({x}, {self.dim(x)})", False),
            (f"torch.amin({x}, {self.dim(x)}, True)", False),
            (f"torch.cumprod({x}, {self.dim(x)})", False),
            (f"torch.cummax({x}, {self.dim(x)})[{self.choose(0, 1)}]", False),
        )

    def special(self) -> tuple[str, bool]:
        """Infinities, NaN and zeros of both signs."""
        x = self.pick("f", exact=True)
        c = self.like(x, "b")
        bad = self.choose("float('inf')", "float('-inf')", "float('nan')", "-0.0")
        y = f"{x}.masked_fill({c}, {bad})"
        d = self.dim(x)
        if self.grad:
            return f"{x}.masked_fill({c}, -0.0)", False
        return self.choose(
            (y, False),
            (f"torch.softmax({y}, {d})", True),
            (f"torch.logsumexp({y}, {d})", True),
            (f"torch.amax({y}, {d})", False),
            (f"torch.argmin({y}, {d})", False),
            (f"torch.maximum({y}, {x})", False),
            (f"torch.fmin({y}, {x})", False),
            (f"torch.clamp({y}, -1, 1)", False),
            (f"torch.relu({y})", False),
            (f"torch.round({y} * 0.25)", False),
            (f"torch.fmod({y}, 2)", False),
            (f"torch.fmod({x}, {y})", False),
            (f"torch.remainder({x}, {y})", False),
            (f"torch.floor_divide({y}, 2)", False),
            (f"torch.trunc({y} * 0.5)", False),
            (f"torch.sign({y})", False),
            (f"torch.signbit({y})", False),
            (f"1 / {y}", False),
            (f"torch.atan2({y}, {x})", True),
            (f"torch.pow({y}, 3)", True),
            (f"torch.tanh({y}) + torch.sigmoid({y}) + torch.erf({y})", True),
            (f"torch.expm1({y}) + torch.log1p({y}.abs())", True),
            (f"torch.cummax({y}, {d})[{self.choose(0, 1)}]", False),
            (f"torch.logcumsumexp({y}, {d})", True),
            (f"torch.nan_to_num({y})", False),
            (f"torch.cumsum({y}, {d})", False),
            (f"F.gelu({y})", True),
            (f"F.softplus({y})", True),
        )

    def long_row(self) -> tuple[str, bool]:
        """Many elements, of few or of many."""
        x = self.pick("fi")
        n = self.choose(33, 127, 1025)
        if self.values[x].numel() > 300:
            n = 3
        return self.choose(
            (f"{x}[..., None] + torch.arange({n})", False),
            (f"{x}[..., None] * torch.linspace(-1, 1, {n})", True),
            (f"{x}.unsqueeze(0).expand({n}, *{x}.shape).cumsum(0)", False),
            (f"{x}.reshape(-1).repeat({n})", False),
            (f"({x}.reshape(-1, 1) + torch.arange({n})).mT", False),
        )

    def draw(self) -> tuple[str, bool]:
        x = self.pick("f", rank=1)
        return self.choose(
            (f"F.dropout({x}, 0.25)", True),
            (f"F.dropout(torch.softmax({x}, -1), 0.5) + {x}", True),
        )


KERNEL_FAMILIES: Families = (
    *FAMILIES,
    (KernelMaker.norm, 9),
    (KernelMaker.soft, 8),
    (KernelMaker.attention, 3),
    (KernelMaker.linear, 6),
    (KernelMaker.image, 4),
    (KernelMaker.lookup, 4),
    (KernelMaker.wrap, 5),
    (KernelMaker.special, 6),
    (KernelMaker.long_row, 4),
    (KernelMaker.draw, 1),
)

__all__ = ["KERNEL_FAMILIES", "KernelMaker"]
