"""More lines of random programs, for what users' graphs hold beyond arithmetic: images of all
ranks, losses, indexing by several tensors and by masks, writes through views, statistics, special
functions, complex numbers within. As `random_graph_lines.py`, a table.
"""

from __future__ import annotations

from random_graph_lines import Families
from random_kernel_lines import KERNEL_FAMILIES, KernelMaker

_SPECIAL = (
    "special.i0", "special.i0e", "special.i1", "special.i1e", "special.ndtr", "special.log_ndtr",
    "special.erfcx", "special.expit", "erfc", "sinh", "cosh", "deg2rad", "rad2deg", "positive",
    "special.sinc", "sgn", "special.bessel_j0", "special.bessel_j1",
)  # fmt: skip
_ABOVE_ONE = ("lgamma", "digamma", "acosh", "special.entr", "special.gammaln", "log10")
_WITHIN_ONE = ("erfinv", "atanh", "asin", "acos", "special.logit")


class ModelMaker(KernelMaker):
    """Makes these lines, too."""

    def along(self, name: str) -> tuple[int, str]:
        """A dimension, and text that has all of its places in another order."""
        d = self.dim(name)
        n = f"{name}.shape[{d}]"
        return d, self.choose(
            f"torch.arange({n}).flip(0)", f"torch.arange({n}).roll(1)", f"torch.arange({n})"
        )

    def places(self, name: str, dim: int) -> str:
        """Text of places along a dimension, of which some are met twice."""
        i = self.pick("i")
        at = f"torch.remainder({i}.long(), {name}.shape[{dim}])"
        return self.choose(at, f"{at}.reshape(-1)", f"({at} - {name}.shape[{dim}])")

    def number(self) -> object:
        return self.choose(
            0, 1, 2, -1, 3, 0.5, 1.5, -2.0, True, 0.1, 1e-3, 255, -7, 1000, 2**31, 1e5
        )

    def special_function(self) -> tuple[str, bool]:
        x = self.pick("fi")
        f = self.rng.random()
        if f < 0.5:
            name = self.choose(*_SPECIAL)
            x = self.pick("f", exact=name == "sgn")
            return f"torch.{name}({x})", True
        if f < 0.65:
            return f"torch.{self.choose(*_ABOVE_ONE)}({x} * {x} + 1.25)", True
        if f < 0.8:
            return f"torch.{self.choose(*_WITHIN_ONE)}(torch.sigmoid({x}) * 0.75 + 0.125)", True
        x = self.pick("f")
        return self.choose(
            (f"torch.logit({x}.sigmoid(), 1e-3)" if not self.grad else f"{x} * 1.0", True),
            (f"torch.polygamma(1, {x} * {x} + 1)", True),
            (f"torch.mvlgamma({x} * {x} + 3, 2)", True),
            (f"torch.logaddexp2({x}, {self.like(x, 'f')})", True),
            (f"torch.special.xlog1py({x}, {x} * {x})", True),
            (f"torch.float_power({x} * {x} + 1, 0.5)", True),
            (f"torch.special.zeta({x}.detach() * {x}.detach() + 1.5, 2.0)", True),
            (f"torch.special.multigammaln({x} * {x} + 3, 2)", True),
        )

    def more_pointwise(self) -> tuple[str, bool]:
        x = self.pick("f", exact=True)
        y, z = self.like(x, "f", exact=True), self.like(x, "f", exact=True)
        c, i = self.pick("b"), self.pick("i")
        return self.choose(
            (f"torch.clamp({x}, {y}.detach(), {z}.detach())", False),
            (f"torch.clamp({x}, min={y}.detach())", False),
            (f"torch.isclose({x}, {y})", False),
            (f"torch.where({c}, 1.5, {self.number()})", False),
            (f"torch.where({x} > 0, {x}, {y})", False),
            (f"torch.frexp({x}.detach())[{self.choose(0, 1)}]", False),
            (f"torch.ldexp({x}, torch.clamp({i}, -3, 3))", False),
            (f"F.hardshrink({x}, 1.0)", False),
            (f"F.prelu({x}, torch.tensor([0.25], dtype={x}.dtype))", False),
            (f"torch.nan_to_num({x}, 0.5, 2.0, -2.0)", False),
            (f"torch.isin({x}.detach(), torch.tensor([1.0, 0.5, -2.0]))", False),
            (f"torch.bucketize({x}.detach(), torch.tensor([-2.0, 0.0, 1.5]))", False),
            (f"torch.bucketize({x}.detach(), torch.tensor([-2.0, 0.0, 1.5]), right=True)", False),
            (f"{x} * {self.number()}", False),
            (f"{i} * {self.number()}", False),
            (f"{i} + {self.number()}", False),
            (f"{i} / 3", True),
            (f"{i} * 0.1 + {x}", True),
            (f"{c} * {x}", False),
            (f"{c} + {i}", False),
            (f"torch.addcmul({i}, {i}, {i}, value=2)", False),
            (f"torch.lcm({i}, {i} | 1)", False),
            (f"torch.isin({i}, torch.tensor([1, 2, -3]))", False),
            (f"torch.logical_and({i}, {x})", False),
            (f"torch.bitwise_left_shift({i}, torch.ones_like({i}))", False),
            (f"torch.gradient({x})[0]", False),
            (f"torch.fake_quantize_per_tensor_affine({x}.to(F32), 0.5, 0, -8, 7)", False),
            (f"{x}.to(F16).to(F32) + 1", False),
            (f"{x}.to(BF16) + {y}.to(F16)", True),
        )

    def statistics(self) -> tuple[str, bool]:
        x = self.pick("f")
        d, keep = self.dim(x), self.choose(True, False)
        return self.choose(
            (f"torch.linalg.vector_norm({x} + 9, 3, {d}, {keep})", True),
            (f"torch.norm({x})", True),
            (f"torch.nanmean({x}, {d}, {keep})", True),
            (f"torch.std_mean({x} + torch.arange({x}.numel()).view({x}.shape), {d})[0]", True),
            (f"torch.var({x})", True),
            (f"torch.cov({x}.reshape({x}.shape[0], -1))", True),
            (f"torch.trapezoid({x}, dim={d})", True),
            (f"torch.cumulative_trapezoid({x}, dim={d})", True),
            (f"torch.prod({x}, {d}, {keep})", True),
            (f"torch.prod({x})", True),
            (f"torch.logsumexp({x}, tuple(range({x}.dim())))", True),
            (f"torch.softmax({x}.flatten(), 0).view({x}.shape)", True),
            (f"torch.sum({x}, {d}, dtype={self.choose('F16', 'F32', 'F64')})", True),
            (f"torch.cumsum({x}, {d}, dtype={self.choose('F16', 'BF16', 'F64')})", True),
            (f"torch.renorm({x} + 9, 2, 0, 1.0)", True),
            (f"({x} - {x}.mean()) / ({x}.var(correction=0) + 1)", True),
            (f"torch.mean({x}.square(), {d}, True) * {x}", True),
        )

    def order_statistics(self) -> tuple[str, bool]:
        x = self.pick("f", exact=True)
        i = self.pick("i")
        d, e, keep = self.dim(x), self.dim(i), self.choose(True, False)
        narrow = self.choose("I8", "U8", "I16")
        return self.choose(
            (f"torch.linalg.vector_norm({x}, 0, {d}, {keep})", False),
            (f"torch.linalg.vector_norm({x}, float('-inf'), {d}, {keep})", False),
            (f"torch.nanmedian({x}, {d})[0]", False),
            (f"torch.kthvalue({x}, 1, {d})[0]", False),
            (f"torch.msort({x})", False),
            (f"torch.topk({x}, {x}.shape[{d}], {d}, largest=False)[0]", False),
            (f"torch.cummin({x}, {d})[{self.choose(0, 1)}]", False),
            (f"torch.aminmax({x})[{self.choose(0, 1)}]", False),
            (f"torch.any({x})", False),
            (f"torch.all({x})", False),
            (f"torch.argmin({x}, None, {keep})", False),
            (f"torch.argmax({x}[None].mT, {self.choose(-1, -2)})", False),
            (f"torch.count_nonzero({x})", False),
            (f"torch.histc({x}.detach().to(F32), 4, -4, 4)", False),
            (f"torch.quantile({x}.to(F64), 0.25, {d}, {keep})", True),
            (f"torch.bincount(torch.remainder({i}, 7).reshape(-1).long(), minlength=7)", False),
            (f"torch.sort({i}, dim={e}, stable=True)[{self.choose(0, 1)}]", False),
            (f"torch.sort({i}, dim={e}, descending=True, stable=True)[{self.choose(0, 1)}]", False),
            (f"torch.topk({i}, 1, {e})[0]", False),
            (f"torch.max({i}, {e})[{self.choose(0, 1)}]", False),
            (f"torch.argmin({i}, {e}, {keep})", False),
            (f"torch.any({i})", False),
            (f"torch.sum({i}, {e}, dtype={self.choose('F16', 'F64', 'I32')})", False),
            (f"torch.sum({i}, {e}, {keep}, dtype={narrow}) * 100 < {i}", False),
            (f"torch.amax({i}, {e}, {keep}) * 37 // 3 - 100", False),
            (f"(torch.amin({i}, {e}, True) * 100 > {i}) ^ ({i} < 0)", False),
            (f"torch.prod({i}, {e}, True, dtype={narrow}) + {i}", False),
            (f"torch.cummax({i}, {e})[0] * 55 + {i}", False),
            (f"torch.argmax({i})", False),
            (f"torch.argmin({i}.flatten({self.dim(i)}), -1)", False),
            (f"torch.argmax({x}.flatten({self.dim(x)}), -1, {keep})", False),
            (f"torch.cumsum({i} > 0, {e})", False),
            (f"({i} > 0).sum({e}, {keep})", False),
            (f"({i} > 0).to(F32).mean({e}, {keep})", True),
            (f"torch.diff({i}, 1, {e}, prepend={i}.narrow({e}, 0, 1))", False),
        )

    def several_indices(self) -> tuple[str, bool]:
        x = self.pick(rank=2)
        first, last = self.places(x, 0), self.places(x, -1)
        d, order = self.along(x)
        y = self.choose(*[n for n, t in self.values.items() if t.dtype == self.values[x].dtype])
        add = self.choose("True", "False")
        value = f"{x}[{first}, ..., 0]"
        reduce = self.choose("'mean'", "'prod'") if self.grad else "'amax'"
        return self.choose(
            (f"{x}[{first}, ..., 0]", False),
            (f"{x}[..., {last}]", False),
            (f"{x}[:, {self.places(x, 1)}]", False),
            (f"{x}[{first}.reshape(-1)[:, None], torch.arange({x}.shape[1])]", False),
            (f"{x}[{first}.reshape(-1)[:3]][:, None, ..., ::2]", False),
            (f"{x}[::2, ..., -2:]", False),
            (f"{x}[:, None, 0]", False),
            (f"{x}[-1:, ..., None]", False),
            (f"{x}[torch.arange({x}.shape[0]), torch.arange({x}.shape[0]) * 0]", False),
            (f"{x}[{order if d % self.values[x].dim() == 0 else '0'}]", False),
            (f"{x}.index_select({d}, {order})", False),
            (f"{x}.scatter({d}, {self._same_rank(order, x, d)}, {x})", False),
            (f"{x}.scatter({d}, {self._same_rank(order, x, d)}.narrow({d}, 0, 1), 2)", False),
            (f"{x}.scatter_add({d}, {self._same_rank(order, x, d)} // 2, {x})", False),
            (f"torch.gather({x}, {d}, {self._same_rank(order, x, d)} // 2)", False),
            (f"torch.index_put({x}, ({first},), {x}[0], accumulate={add})"
             if add == "True" else f"torch.index_put({x}, ({order},), {x}[0])", False),
            (f"torch.index_put({x}, ({first}, torch.zeros_like({first})), "
             f"torch.ones((), dtype={x}.dtype), accumulate=True)", False),
            (f"{x}.index_reduce({d}, {order} // 2, {x}, {reduce})", True),
            (f"{x}.index_copy({d}, {order}, {x})", False),
            (f"{x}.index_add({d}, {order} // 3, {x}, alpha=2)", False),
            (f"{x}.index_fill({d}, {order}[:1], 0)", False),
            (f"{x}.masked_scatter({x} == {y}, {x}.flip(0))" if y == x else f"{x}[0]", False),
            (f"{x}.slice_scatter({x}[..., ::2] * 2, -1, 0, None, 2)", False),
            (f"torch.gather({x}, -1, torch.argsort({x}.detach(), dim=-1, stable=True))"
             if x in self.exact else value, False),
            (f"torch.zeros_like({x}).scatter_add(0, torch.zeros_like({x}, dtype=I64), {x})", False),
            (f"{x}.as_strided(({x}.shape[0], 2), ({x}.stride(0), 0))", False),
            (f"{x}.take(torch.arange({x}.numel()).flip(0))", False),
            (f"{x}.reshape(-1)[{self.places(x, 0)}]", False),
        )  # fmt: skip

    def _same_rank(self, order: str, x: str, d: int) -> str:
        """Places along a dimension as a tensor of the shape of `x`."""
        rank = self.values[x].dim()
        shape = ", ".join("-1" if i == d % rank else "1" for i in range(rank))
        return f"{order}.view({shape}).expand({x}.shape)"

    def of_data_size(self) -> tuple[str, bool]:
        """What has as many elements as its data says."""
        x = self.pick(rank=1)
        c = f"({x} > 0)" if x in self.exact else f"torch.ones_like({x}, dtype=torch.bool)"
        return self.choose(
            (f"{x}[{c}].sum()", True),
            (f"torch.masked_select({x}, {c}).sum()", True),
            (f"torch.nonzero({c}).sum(0)", False),
            (f"torch.argwhere({c}).shape[0] + torch.zeros(())", False),
            (f"torch.index_put({x}, ({c},), torch.ones((), dtype={x}.dtype))", False),
            (f"{x}[torch.nonzero({c}.reshape({x}.shape[0], -1)[:, 0])[:, 0]].sum(0)", True),
            (f"torch.repeat_interleave({x}, torch.arange({x}.shape[0]) % 3, 0).sum(0)", True),
        )

    def shapes(self) -> tuple[str, bool]:
        x = self.pick(rank=2)
        i = self.pick()
        t = self.values[x]
        d, e = self.dim(x), self.dim(x)
        pad = self.choose("(1, 1, 1, 0)", "(0, 2, 0, 0)", "(2, 1, 0, 1)")
        mode = self.choose("reflect", "replicate", "circular")
        wide = f"{x}.to(F64)"
        four = f"{x}.reshape(1, 1, {x}.shape[0], -1)"
        return self.choose(
            (f"F.pad({four}, {pad}, mode='{mode}')", False),
            (f"F.pad({x}, (1, -1, -1, 2), value=3)", False),
            (f"F.pad({x}, (0, 0, 1, 1))", False),
            (f"torch.roll({x}, (1, -2), (0, -1))", False),
            (f"torch.rot90({x}, {self.choose(1, 2, 3)}, (0, -1))", False),
            (f"torch.block_diag({x}[..., 0].reshape(1, -1), {i}.reshape(-1, 1))", False),
            (f"torch.kron({x}, torch.ones(2, 2, dtype={x}.dtype))", False),
            (f"torch.cat([{x}, {x}.to({self.choose('F16', 'F32', 'F64')})], {d})", False),
            (f"torch.cat([{x}, {x}.flip(0), {x}[:0]])", False),
            (f"torch.stack([{x}, {x} + 1, {x}], -1).reshape({x}.shape[0], -1)", False),
            (f"torch.column_stack([{x}, {x}])", False),
            (f"torch.dstack([{x}, {x}])", False),
            (f"torch.vstack([{x}, {x}])", False),
            (f"{x}.split([1, {x}.shape[{d}] - 1], {d})[1]", False),
            (f"torch.cat({x}.split(2, {d})[::-1], {d})", False),
            (f"torch.cat([t * 2 for t in {x}.unbind({d})], 0)", False),
            (f"torch.stack([t.sum(0) for t in {x}.chunk(2, 0)])", True),
            (f"{x}.unflatten(-1, (1, -1))", False),
            (f"{x}.repeat_interleave(torch.tensor([2]).expand({x}.shape[0]), 0, "
             f"output_size=2 * {x}.shape[0])", False),
            (f"torch.diag_embed({x}[..., :4])", False),
            (f"torch.diagonal({x}, 1, 0, -1)", False),
            (f"torch.diagflat({x}[0].reshape(-1)[:5])", False),
            (f"torch.tril({x}, -1) + torch.triu({x}, 2)", False),
            (f"{x}.unfold({d}, 2, 2)", False),
            (f"{x}.unfold({d}, 2, 1).sum(-1)", True),
            (f"{x}.expand(3, *{x}.shape).reshape(-1, {x}.shape[-1])", False),
            (f"{x}.permute({self.rng.sample(range(t.dim()), t.dim())}).reshape(-1)", False),
            (f"{x}.transpose({d}, {e}).contiguous().view(-1)", False),
            (f"{x}.transpose({d}, {e}).flip({d}) * 2", False),
            (f"{x}.mT.repeat(*[1] * {x}.dim(), 2)[..., 1::2]", False),
            (f"{x}.squeeze().unsqueeze(-1)", False),
            (f"torch.atleast_3d({x})", False),
            (f"{x}.sum_to_size({x}[..., :1].shape)", True),
            (f"torch.broadcast_to({x}[..., :1], {x}.shape)", False),
            (f"torch.cartesian_prod({x}[0].reshape(-1)[:4], {x}[0].reshape(-1)[:3])", False),
            (f"torch.combinations({x}.reshape(-1)[:5], 2)", False),
            (f"torch.vander({x}.reshape(-1)[:5], 3)", True),
            (f"{x}.flip(0, -1)", False),
            (f"F.one_hot(torch.arange({x}.shape[0]) % 3, 3).to({x}.dtype).mT @ "
             f"{x}.reshape({x}.shape[0], -1)" if t.is_floating_point() else f"{x}.fliplr()", True),
            (f"torch.complex({wide}, {wide} + 20).abs()", True),
            (f"torch.view_as_real(torch.complex({wide}, {wide}.flip(0)) * 2j)", True),
            (f"torch.view_as_real(torch.polar(torch.ones_like({wide}), {wide}))", True),
            (f"torch.fft.irfft(torch.fft.rfft({wide}, dim=-1), n={x}.shape[-1], dim=-1)", True),
            (f"(torch.complex({wide}, {wide}) * (1 + 2j)).imag", True),
        )  # fmt: skip

    def algebra(self) -> tuple[str, bool]:
        x = self.pick("f", rank=2)
        i = self.pick("i")
        if self.values[x].shape[-1] * self.values[x].shape[-2] > 3000:
            raise LookupError("large")
        return self.choose(
            (f"torch.outer({x}[..., 0].reshape(-1)[:9], {x}[0].reshape(-1)[:20])", True),
            (f"torch.baddbmm({x}.reshape(-1, *{x}.shape[-2:])[:, :, :1], "
             f"{x}.reshape(-1, *{x}.shape[-2:]), {x}.reshape(-1, *{x}.shape[-2:]).mT)", True),
            (f"torch.mv({x}.reshape(-1, {x}.shape[-1]), {x}.reshape(-1, {x}.shape[-1])[0])", True),
            (f"torch.dot({x}.reshape(-1), {x}.reshape(-1))", True),
            (f"torch.vdot({x}.reshape(-1), {x}.flip(0).reshape(-1))", True),
            (f"torch.tensordot({x}, {x}, [[-1], [-1]])", True),
            (f"torch.einsum('...i,...i->...', {x}, {x})", True),
            (f"torch.einsum('...ij->...ji', {x}) * 2", False),
            (f"torch.einsum('...ij->...j', {x})", True),
            (f"{x}.mT @ {x}", True),
            (f"({x} @ {x}.mT + 1).relu()" if not self.grad else f"F.gelu({x} @ {x}.mT)", True),
            (f"{x}[..., :1] @ {x}[..., :1, :]", True),
            (f"torch.matmul({x}, {x}[..., 0, :].unsqueeze(-1))", True),
            (f"torch.addr({x}.reshape(-1, {x}.shape[-1]), {x}.reshape(-1, {x}.shape[-1])[:, 0], "
             f"{x}.reshape(-1, {x}.shape[-1])[0], alpha=2)", True),
            (f"torch.cdist({x}, {x} + 20)", True),
            (f"F.bilinear({x}, {x}, torch.ones(2, {x}.shape[-1], {x}.shape[-1], "
             f"dtype={x}.dtype) * 0.125)", True),
            (f"({x} @ {x}.mT) @ {x} * 0.01", True),
            (f"{i}.reshape(-1, 1) @ {i}.reshape(1, -1)", False),
            (f"torch.trace({x}.reshape(-1, {x}.shape[-1]))", True),
            (f"torch.linalg.cross({x}[..., :3], {x}[..., :3].flip(-1))", True),
        )  # fmt: skip

    def losses(self) -> tuple[str, bool]:
        x = self.pick("f", rank=1)
        rows = f"{x}.reshape(-1, {x}.shape[-1])"
        target = f"torch.arange({x}.numel() // {x}.shape[-1]).remainder({x}.shape[-1])"
        kind = self.choose("none", "mean", "sum")
        after = f"reduction='{kind}'"
        weight = f"torch.arange({x}.shape[-1]).to({x}.dtype) * 0.25 + 1"
        exact = x in self.exact
        y = f"{x}.flip(0).detach()"
        kinked = [
            (f"F.l1_loss({x}, {y}, {after})", False),
            (f"F.smooth_l1_loss({x}, {y}, {after}, beta=0.5)", True),
            (f"F.huber_loss({x}, {y}, {after}, delta=0.75)", True),
            (f"F.margin_ranking_loss({x}, {y}, torch.ones_like({x}), 0.25, {after})", True),
            (f"F.hinge_embedding_loss({x}, torch.ones_like({x}), {after})", True),
            (f"F.multi_margin_loss({rows}, {target}, {after})", True),
        ]
        if exact and self.rng.random() < 0.35:
            return self.rng.choice(kinked)
        return self.choose(
            (f"F.cross_entropy({rows}, {target}, {weight}, {after})", True),
            (f"F.cross_entropy({rows}, {target}, {weight}, ignore_index=1, "
             f"label_smoothing=0.1, {after})", True),
            (f"F.cross_entropy({rows}, torch.softmax({rows}.detach() * 0.5, -1), {after})", True),
            (f"F.cross_entropy({rows}.mT[None], {target}[None], {after})", True),
            (f"F.nll_loss({rows}, {target}, {weight}, {after})", True),
            (f"F.binary_cross_entropy({x}.sigmoid(), ({x}.detach() * 0 + 0.25), {after})", True),
            (f"F.binary_cross_entropy_with_logits({x}, ({x}.detach() * 0 + 0.25), "
             f"pos_weight=torch.tensor(2.0, dtype={x}.dtype), {after})", True),
            (f"F.poisson_nll_loss({x} * 0.5, {y}.square(), {after})", True),
            (f"F.gaussian_nll_loss({x}, {y}, {y}.square() + 1, {after})", True),
            (f"F.soft_margin_loss({x}, torch.ones_like({x}), {after})", True),
            (f"F.multilabel_soft_margin_loss({rows}, torch.ones_like({rows}), {after})", True),
            (f"F.cosine_similarity({x} + 9, {y} + 7, -1)", True),
            (f"F.pairwise_distance({rows}, {rows} + 9)", True),
            (f"F.kl_div(torch.log_softmax({x}, -1), torch.log_softmax({y}, -1), {after}, "
             "log_target=True)", True),
            (f"F.mse_loss({x}, {y}, {after})", True),
            (f"F.triplet_margin_loss({rows}, {rows} + 9, {rows} + 8, {after})", True),
        )  # fmt: skip

    def picture(self) -> tuple[str, bool]:
        """Of four dimensions, in the layout that it has."""
        fits = [
            n
            for n, t in self.values.items()
            if t.dim() == 4 and t.is_floating_point() and min(t.shape[2:]) > 2
        ]
        if not fits:
            raise LookupError("4")
        x = self.rng.choice(fits)
        c = f"{x}.shape[1]"
        w = f"torch.linspace(-1, 1, 9 * {c} * 4, dtype={x}.dtype)"
        one = f"torch.linspace(-1, 1, {c}, dtype={x}.dtype)"
        stats = f"{one} * 0.5, {one} * {one} + 0.5"
        mode = self.choose("nearest", "bilinear", "bicubic", "area", "nearest-exact")
        rounds = "nearest" not in mode
        grid = f"torch.linspace(-1.2, 1.2, 2 * 4 * 5, dtype={x}.dtype).view(1, 4, 5, 2)"
        maxima = [
            (f"F.max_pool2d({x}, 2)", False),
            (f"F.max_pool2d({x}, 3, 2, 1, ceil_mode=True)", False),
            (f"F.max_pool2d({x}, 2, 1, 0, 2)", False),
            (f"F.max_pool2d({x}, 2, return_indices=True)[1]", False),
            (f"F.adaptive_max_pool2d({x}, (3, 2))", False),
            (f"F.max_unpool2d(*F.max_pool2d({x}, 2, return_indices=True), 2)", False),
            (f"F.max_pool3d({x}[None], 2, 1)", False),
            (f"F.max_pool2d({x}, 3, 1, 1) - {x}", False),
        ]
        if x in self.exact and self.rng.random() < 0.3:
            return self.rng.choice(maxima)
        return self.choose(
            (f"F.avg_pool2d({x}, 2, ceil_mode=True)", True),
            (f"F.avg_pool2d({x}, 3, 2, 1, count_include_pad=False)", True),
            (f"F.avg_pool2d({x}, 2, 1, divisor_override=3)", True),
            (f"F.avg_pool3d({x}[None], (1, 2, 2))", True),
            (f"F.lp_pool2d({x} + 9, 2, 2)", True),
            (f"F.adaptive_avg_pool2d({x}, (3, 2))", True),
            (f"F.adaptive_avg_pool2d({x}, 1)", True),
            (f"F.interpolate({x}, scale_factor=2, mode='{mode}')", rounds),
            (f"F.interpolate({x}, size=(5, 3), mode='{mode}')", rounds),
            (f"F.interpolate({x}, scale_factor=0.5, mode='bilinear', antialias=True)", True),
            (f"F.grid_sample({x}, {grid}.expand({x}.shape[0], -1, -1, -1), "
             f"align_corners={self.choose(True, False)}, "
             f"padding_mode='{self.choose('zeros', 'border', 'reflection')}')", True),
            (f"F.conv2d({x}, {w}.view(4, {c}, 3, 3), padding=1)", True),
            (f"F.conv2d({x}, {w}[:9 * {c}].view({c}, 1, 3, 3), {one}, 2, 1, groups={c})", True),
            (f"F.conv_transpose2d({x}, {w}.view({c}, 4, 3, 3), stride=2)", True),
            (f"F.silu(F.batch_norm({x}, {stats}, {one}, {one}))", True),
            (f"F.batch_norm({x}, None, None, {one}, {one}, training=True)", True),
            (f"F.batch_norm({x}, None, None, training=True) + {x}", True),
            (f"F.group_norm({x}, 1, {one}, {one})", True),
            (f"F.group_norm({x}, {c}) * 2", True),
            (f"F.instance_norm({x}, weight={one})", True),
            (f"F.layer_norm({x}, {x}.shape[2:])", True),
            (f"F.layer_norm({x}.permute(0, 2, 3, 1), ({c},)).permute(0, 3, 1, 2)", True),
            (f"F.local_response_norm({x}, 3)", True),
            (f"F.unfold({x}, 2, dilation=2)", False),
            (f"F.fold(F.unfold({x}, 2), {x}.shape[2:], 2)", True),
            (f"F.pad({x}, (1, 2, 0, 1), mode='{self.choose('reflect', 'replicate', 'circular')}')",
             False),
            (f"F.pixel_unshuffle({x}[..., : {x}.shape[2] // 2 * 2, : {x}.shape[3] // 2 * 2], 2)",
             False),
            (f"F.pixel_shuffle({x}.repeat(1, 4, 1, 1), 2)", False),
            (f"F.channel_shuffle({x}.repeat(1, 2, 1, 1), 2)", False),
            (f"torch.cat([{x}, {x}.flip(1)], 1).contiguous(memory_format=torch.channels_last)",
             False),
            (f"{x}.mean((2, 3))", True),
            (f"{x} * {x}.mean((2, 3), keepdim=True).sigmoid()", True),
            (f"{x}.flatten(2).mT", False),
            (f"{x}.sum(1, keepdim=True)", True),
            (f"torch.softmax({x}, 1)", True),
            (f"{x}.to(memory_format=torch.channels_last) * {one}.view(1, -1, 1, 1)", True),
        )  # fmt: skip

    def heads(self) -> tuple[str, bool]:
        x = self.pick("f", rank=2)
        rows = self.values[x].shape[-2]
        if rows > 64 or self.values[x].numel() > 3000:
            raise LookupError("long")
        heads = f"{x}.reshape(1, -1, {x}.shape[-2], {x}.shape[-1])"
        n = f"{x}.shape[-2]"
        near = f"(torch.arange({n})[:, None] - torch.arange({n})).abs()"
        return self.choose(
            (f"F.scaled_dot_product_attention({heads}, {heads}, {heads}, {near} < 3)", True),
            (f"F.scaled_dot_product_attention({heads}, {heads}, {heads}, "
             f"({near} * -0.5).to({x}.dtype), scale=0.5)", True),
            (f"F.scaled_dot_product_attention({heads}.repeat(1, 2, 1, 1), {heads}, {heads}, "
             "enable_gqa=True)", True),
            (f"F.scaled_dot_product_attention({heads}[..., :1, :], {heads}, {heads})", True),
            (f"torch.softmax(({x} @ {x}.mT) * 0.1 - {near}, -1) @ {x}", True),
            (f"torch.cat([-{x}[..., 1::2], {x}[..., ::2]], -1) * 0.5 + "
             f"torch.cat([{x}[..., ::2], {x}[..., 1::2]], -1)", True),
            (f"F.embedding_bag((torch.arange({x}.shape[0]) // 2).reshape(1, -1), "
             f"{x}.reshape({x}.shape[0], -1), mode='{self.choose('sum', 'mean')}')", True),
            (f"F.dropout({x}, 0.5) * 2", True),
            (f"F.normalize({x} + 0.25, p={self.choose(1, 2)}, dim=-1)"
             if not self.grad else f"F.normalize({x} + 0.25)", True),
        )  # fmt: skip

    def write_more(self) -> tuple[str, bool]:
        x = self.pick(rank=1)
        t = self.values[x]
        if t.requires_grad and t.is_leaf:
            raise LookupError("written to")
        y, c = self.like(x), self.like(x, "b")
        d, order = self.along(x)
        same = self.choose(*[n for n, u in self.values.items() if u.dtype == t.dtype])
        options = [
            (f"{x}[..., 1:].copy_({x}[..., :-1].clone())", False),
            (f"{x}[::2].mul_({self.number()})", False),
            (f"{x}.sub_({y}, alpha=2)", False),
            (f"{x}.index_put_(({self.places(x, 0)},), {same}[:1].reshape(-1)[0])", False),
            (f"{x}.index_put_(({self.places(x, 0)},), {x}[0].clone(), accumulate=True)", False),
            (f"{x}.index_add_({d}, {order} // 2, {x}.clone())", False),
            (f"{x}.index_copy_({d}, {order}, {x}.clone())", False),
            (f"{x}.index_fill_({d}, {order}[:1], 1)", False),
            (f"{x}.masked_scatter_({c}, {x}.flip(0))", False),
            (f"{x}.fill_diagonal_(2)", False),
            (f"{x}.diagonal().add_(1)", False),
            (f"{x}.tril_()", False),
            (f"{x}.cumsum_({d})", False),
            (f"{x}.neg_()", False),
            (f"{x}.flatten().view(-1).zero_()", False),
            (f"{x}.unbind(0)[0].copy_({x}[-1].clone())", False),
            (f"{x}.chunk(2, {d})[0].add_(1)", False),
            (f"{x}.mT.mul_(2)", False),
            (f"{x}[..., 0].fill_(3)", False),
            (f"{x}.view(-1)[1:].add_(1)", False),
            (f"{x}[None].transpose(0, 1).sub_(1)", False),
            (f"{x}.unfold({d}, 2, 2).mul_(2)", False),
            (f"{x}.narrow({d}, 0, 1).copy_({x}.narrow({d}, -1, 1).clone())", False),
            (f"torch.where({c}, {x}, {self.like(x, 'f')}, out={x})", False),
            (f"torch.mul({x}, {y}, out={x})", False),
            (f"{x}.swapdims(0, -1).add_({x}.swapdims(0, -1))", False),
        ]
        if t.is_floating_point():
            options += [
                (f"{x}.div_(2)", False),
                (f"{x}.addcmul_({x}, {x}, value=0.5)", False),
                (f"{x}.lerp_({x}.flip(0), 0.5)", False),
                (f"{x}.copy_({self.like(x, 'ib')})", False),
            ]
            if x in self.exact:
                options += [
                    (f"{x}.clamp_(-1, 2)", False),
                    (f"{x}.relu_()", False),
                    (f"F.leaky_relu_({x}, 0.5)", False),
                    (f"{x}.floor_()", False),
                ]
        else:
            options += [
                (f"{x}.bitwise_xor_({self.choose(1, 3)})", False),
                (f"{x}.logical_not_()", False),
                (f"{x}.add_({self.choose(100, 77, -100)})", False),
                (f"{x}.remainder_(5)", False),
            ]
        return self.rng.choice(options)


MODEL_FAMILIES: Families = (
    *((family, (weight + 1) // 2) for family, weight in KERNEL_FAMILIES),
    (ModelMaker.special_function, 4),
    (ModelMaker.more_pointwise, 9),
    (ModelMaker.statistics, 7),
    (ModelMaker.order_statistics, 8),
    (ModelMaker.several_indices, 10),
    (ModelMaker.of_data_size, 2),
    (ModelMaker.shapes, 11),
    (ModelMaker.algebra, 4),
    (ModelMaker.losses, 5),
    (ModelMaker.picture, 12),
    (ModelMaker.heads, 3),
    (ModelMaker.write_more, 6),
)

__all__ = ["MODEL_FAMILIES", "ModelMaker"]
