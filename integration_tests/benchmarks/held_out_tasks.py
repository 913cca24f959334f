"""Models of tasks that the other held-out sets leave out, for `gpu_suite.py --model
held_out_tasks:NAME`: points, recommendation, series, losses in pairs, flows, forces, slots,
recurrences. Chosen before they were measured.

Each function takes `small` (a size fit for a test) and gives a `Case`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from held_out import mean_square
from torch import Tensor, nn

from dovetail.bench.models import Case

# --- points -------------------------------------------------------------------------------------


class _EdgeConvolution(nn.Module):
    """The largest message of the nearest neighbours (Wang et al. 2019)."""

    def __init__(self, inputs: int, outputs: int, nearest: int) -> None:
        super().__init__()
        self.nearest = nearest
        self.mix = nn.Sequential(
            nn.Conv2d(2 * inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(0.2),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, points = x.shape
        squares = x.float().square().sum(1, keepdim=True)
        distances = squares + squares.mT - 2 * (x.mT @ x).float()
        found = distances.topk(self.nearest, dim=-1, largest=False).indices
        rows = found.reshape(batch, 1, -1).expand(-1, channels, -1)
        near = x.gather(2, rows).view(batch, channels, points, self.nearest)
        own = x[..., None].expand_as(near)
        return self.mix(torch.cat([near - own, own], 1)).amax(-1)


class _DynamicGraph(nn.Module):
    def __init__(self, width: int, nearest: int) -> None:
        super().__init__()
        widths = [3, width, width, 2 * width]
        self.layers = nn.ModuleList(
            _EdgeConvolution(a, b, nearest) for a, b in itertools.pairwise(widths)
        )
        self.end = nn.Linear(4 * width, 40)

    def forward(self, points: Tensor) -> Tensor:
        found = []
        x = points
        for layer in self.layers:
            x = layer(x)
            found.append(x)
        return self.end(torch.cat(found, 1).amax(-1))


def point_graph(small: bool) -> Case:
    """DGCNN: neighbours are looked for anew in each layer."""
    points = torch.randn(2, 3, 64) if small else torch.randn(16, 3, 1024)
    return Case(_DynamicGraph(64, 8 if small else 20), {"points": points}, mean_square)


# --- recommendation and series --------------------------------------------------------------------


class _FactorMachine(nn.Module):
    """DeepFM (Guo et al. 2017), with bags of ids and the loss."""

    def __init__(self, fields: int, rows: int, width: int) -> None:
        super().__init__()
        self.first = nn.Embedding(fields * rows, 1)
        self.second = nn.Embedding(fields * rows, width)
        self.bags = nn.EmbeddingBag(rows, width, mode="mean")
        self.register_buffer("starts", torch.arange(fields) * rows)
        self.deep = nn.Sequential(
            nn.Linear((fields + 1) * width, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
            nn.Linear(256, 1),
        )  # fmt: skip

    def forward(self, ids: Tensor, bag: Tensor, clicked: Tensor) -> Tensor:
        own = ids + self.starts
        vectors = torch.cat([self.second(own), self.bags(bag)[:, None]], 1)
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(-1) / 2
        score = self.first(own).sum((1, 2)) + pairs + self.deep(vectors.flatten(1))[:, 0]
        return F.binary_cross_entropy_with_logits(score.float(), clicked)


def factor_machine(small: bool) -> Case:
    rows, fields = (100, 4) if small else (10_000, 26)
    n = 32 if small else 8192
    inputs = {
        "ids": torch.randint(0, rows, (n, fields)),
        "bag": torch.randint(0, rows, (n, 10)),
        "clicked": (torch.rand(n) > 0.7).float(),
    }
    return Case(_FactorMachine(fields, rows, 16), inputs, lambda loss: loss)


class _Patches(nn.Module):
    """PatchTST (Nie et al. 2023): each series normalised, cut into patches, and attended to."""

    def __init__(self, length: int, ahead: int, width: int, layers: int) -> None:
        super().__init__()
        self.patch, self.stride = 16, 8
        count = (length - self.patch) // self.stride + 1
        self.start = nn.Linear(self.patch, width)
        self.places = nn.Parameter(torch.randn(count, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 8, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.end = nn.Linear(count * width, ahead)

    def forward(self, series: Tensor) -> Tensor:
        mean = series.mean(-1, keepdim=True)
        scale = series.std(-1, keepdim=True) + 1e-3
        x = ((series - mean) / scale).unfold(-1, self.patch, self.stride).flatten(0, 1)
        x = self.encoder(self.start(x) + self.places)
        return self.end(x.flatten(1)).view(*series.shape[:2], -1) * scale + mean


def patched_series(small: bool) -> Case:
    series = torch.randn(2, 3, 64) if small else torch.randn(32, 21, 512)
    model = _Patches(series.shape[-1], 96, 32 if small else 128, 1 if small else 3)
    return Case(model, {"series": series}, mean_square)


# --- losses -------------------------------------------------------------------------------------


class _Contrast(nn.Module):
    """Two views of each sample beside all others (NT-Xent, Chen et al. 2020)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 128)
        )

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        z = F.normalize(self.net(torch.cat([one, other])).float(), dim=-1)
        n = z.shape[0]
        scores = (z @ z.T / 0.1).masked_fill(torch.eye(n, dtype=torch.bool, device=z.device), -1e9)
        return F.cross_entropy(scores, (torch.arange(n, device=z.device) + n // 2) % n)


def contrast(small: bool) -> Case:
    n, width = (8, 16) if small else (2048, 512)
    inputs = {"one": torch.randn(n, width), "other": torch.randn(n, width)}
    return Case(_Contrast(width), inputs, lambda loss: loss)


class _Transport(nn.Module):
    """Distances between sets by entropic transport, ten steps of Sinkhorn's in logarithms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        cost = torch.cdist(self.net(one).float(), self.net(other).float()).square()
        logs = -cost / 0.5
        u = torch.zeros_like(logs[..., 0])
        v = torch.zeros_like(logs[..., 0, :])
        for _ in range(10):
            u = -torch.logsumexp(logs + v[..., None, :], -1)
            v = -torch.logsumexp(logs + u[..., None], -2)
        return ((logs + u[..., None] + v[..., None, :]).exp() * cost).sum((-1, -2)).mean()


def transport(small: bool) -> Case:
    sets, n = (2, 16) if small else (16, 256)
    inputs = {"one": torch.randn(sets, n, 32), "other": torch.randn(sets, n, 32)}
    return Case(_Transport(32), inputs, lambda loss: loss)


class _Detection(nn.Module):
    """Focal loss, boxes by their generalised overlap, and a loss of masks, as detectors have."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(8, channels), nn.SiLU(),
            nn.Conv2d(channels, 20 + 4 + 1, 1),
        )  # fmt: skip

    def forward(self, features: Tensor, classes: Tensor, boxes: Tensor, masks: Tensor) -> Tensor:
        logits, found, mask = self.body(features).float().split([20, 4, 1], 1)
        truth = F.one_hot(classes, 20).movedim(-1, 1).float()
        p = logits.sigmoid()
        entropy = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
        hit = p * truth + (1 - p) * (1 - truth)
        focal = ((0.25 * truth + 0.75 * (1 - truth)) * entropy * (1 - hit) ** 2).mean()
        near, far = -found[:, :2].exp(), found[:, 2:].exp()
        own_near, own_far = -boxes[:, :2], boxes[:, 2:]
        inner = torch.minimum(far, own_far) - torch.maximum(near, own_near)
        common = inner.clamp(min=0).prod(1)
        union = (far - near).prod(1) + (own_far - own_near).prod(1) - common
        hull = (torch.maximum(far, own_far) - torch.minimum(near, own_near)).prod(1)
        overlap = common / (union + 1e-6) - (hull - union) / (hull + 1e-6)
        m = mask[:, 0].sigmoid()
        dice = 1 - (2 * (m * masks).sum((1, 2)) + 1) / ((m + masks).sum((1, 2)) + 1)
        return focal + (1 - overlap).mean() + dice.mean()


def detection(small: bool) -> Case:
    n, channels, side = (1, 16, 16) if small else (16, 128, 64)
    inputs = {
        "features": torch.randn(n, channels, side, side),
        "classes": torch.randint(0, 20, (n, side, side)),
        "boxes": torch.rand(n, 4, side, side) + 0.5,
        "masks": (torch.rand(n, side, side) > 0.5).float(),
    }
    return Case(_Detection(channels), inputs, lambda loss: loss)


class _Chain(nn.Module):
    """The likelihood of a linear chain over tags (Lafferty et al. 2001)."""

    def __init__(self, words: int, width: int, tags: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.mix = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, tags))
        self.moves = nn.Parameter(torch.randn(tags, tags) * 0.1)

    def forward(self, ids: Tensor, tags: Tensor, real: Tensor) -> Tensor:
        scores = self.mix(self.words(ids)).float()
        total = scores[:, 0]
        for t in range(1, scores.shape[1]):
            after = torch.logsumexp(total[..., None] + self.moves.float(), 1) + scores[:, t]
            total = torch.where(real[:, t, None], after, total)
        own = (scores.gather(2, tags[..., None])[..., 0] * real).sum(1)
        own = own + (self.moves[tags[:, :-1], tags[:, 1:]] * real[:, 1:]).sum(1)
        return (torch.logsumexp(total, -1) - own).mean()


def tag_chain(small: bool) -> Case:
    n, length = (2, 6) if small else (64, 48)
    lengths = torch.randint(length // 2, length + 1, (n,))
    inputs = {
        "ids": torch.randint(0, 1000, (n, length)),
        "tags": torch.randint(0, 24, (n, length)),
        "real": torch.arange(length) < lengths[:, None],
    }
    return Case(_Chain(1000, 256, 24), inputs, lambda loss: loss)


# --- densities and physics ------------------------------------------------------------------------


class _Couplings(nn.Module):
    """RealNVP (Dinh et al. 2017) with its likelihood: half of the numbers scale the other."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(width // 2, 256), nn.SiLU(), nn.Linear(256, width))
            for _ in range(steps)
        )

    def forward(self, x: Tensor) -> Tensor:
        logs: Tensor | float = 0.0
        for net in self.nets:
            kept, moved = x.chunk(2, -1)
            scale, shift = net(kept).chunk(2, -1)
            scale = scale.tanh()
            x = torch.cat([moved * scale.exp() + shift, kept], -1)
            logs = logs + scale.float().sum(-1)
        prior = -0.5 * (x.float().square() + math.log(2 * math.pi)).sum(-1)
        return -(prior + logs).mean()


def couplings(small: bool) -> Case:
    x = torch.randn(8, 16) if small else torch.randn(4096, 64)
    return Case(_Couplings(x.shape[-1], 2 if small else 8), {"x": x}, lambda loss: loss)


class _Codes(nn.Module):
    """VQ-VAE (van den Oord et al. 2017): the nearest of 512 codes, straight through."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(width, 64, 1),
        )  # fmt: skip
        self.codes = nn.Parameter(torch.randn(512, 64))
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(64, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        z = self.encode(images).movedim(1, -1)
        flat = z.reshape(-1, 64)
        far = (
            flat.square().sum(1, keepdim=True)
            + self.codes.square().sum(1)
            - 2 * flat @ self.codes.T
        )
        found = F.embedding(far.argmin(1), self.codes).view_as(z)
        loss = F.mse_loss(found, z.detach()) + 0.25 * F.mse_loss(z, found.detach())
        through = z + (found - z).detach()
        return F.mse_loss(self.decode(through.movedim(-1, 1)), images) + loss


def codes(small: bool) -> Case:
    images = torch.randn(2, 3, 32, 32) if small else torch.randn(64, 3, 64, 64)
    return Case(_Codes(32 if small else 128), {"images": images}, lambda loss: loss)


class _Forces(nn.Module):
    """Energies of atoms by filters of their distances (SchNet, Schuett et al. 2017), and the
    forces, which are its gradient."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.kinds = nn.Embedding(10, width)
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(50, width), nn.Softplus(), nn.Linear(width, width))
            for _ in range(layers)
        )
        self.mixes = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, width))
            for _ in range(layers)
        )
        self.end = nn.Linear(width, 1)
        self.register_buffer("centres", torch.linspace(0, 5, 50))

    def forward(self, places: Tensor, kinds: Tensor, pairs: Tensor) -> Tensor:
        places = places.detach().requires_grad_()
        with torch.enable_grad():
            x = self.kinds(kinds)
            one, other = pairs
            distance = (places[one] - places[other]).square().sum(-1).add(1e-6).sqrt()
            radial = (-10 * (distance[:, None] - self.centres).square()).exp()
            for filters, mix in zip(self.filters, self.mixes, strict=True):
                x = x + mix(torch.zeros_like(x).index_add(0, one, x[other] * filters(radial)))
            energy = self.end(x).sum()
            (slope,) = torch.autograd.grad(energy, places, create_graph=True)
        return -slope


def forces(small: bool) -> Case:
    atoms, pairs, width = (20, 60, 32) if small else (4096, 65_536, 128)
    inputs = {
        "places": torch.randn(atoms, 3),
        "kinds": torch.randint(0, 10, (atoms,)),
        "pairs": torch.randint(0, atoms, (2, pairs)),
    }
    return Case(_Forces(width, 2 if small else 3), inputs, mean_square)


# --- slots, experts, recurrences ------------------------------------------------------------------


class _Slots(nn.Module):
    """Slots that compete for places, three rounds of a recurrent cell (Locatello et al. 2020)."""

    def __init__(self, width: int, slots: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(slots, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.cell = nn.GRUCell(width, width)
        self.mix = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x)
        k, v = self.k(x), self.v(x)
        slots = self.start.expand(x.shape[0], -1, -1)
        for _ in range(3):
            scores = self.q(self.norms[1](slots)) @ k.mT / k.shape[-1] ** 0.5
            weights = scores.softmax(1) + 1e-6
            found = weights / weights.sum(-1, keepdim=True) @ v
            slots = self.cell(found.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
            slots = slots + self.mix(self.norms[2](slots))
        return slots


def slots(small: bool) -> Case:
    x = torch.randn(2, 64, 32) if small else torch.randn(32, 1024, 128)
    return Case(_Slots(x.shape[-1], 7), {"x": x}, mean_square)


class _SoftExperts(nn.Module):
    """Experts of mixtures of tokens (soft MoE, Puigcerver et al. 2023)."""

    def __init__(self, width: int, experts: int, places: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(width, experts, places) * width**-0.5)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * width**-0.5)
        self.norm = nn.RMSNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        logits = torch.einsum("btd,dep->btep", y, self.keys)
        given = torch.einsum("btd,btep->ebpd", y, logits.softmax(1)).flatten(1, 2)
        out = F.gelu(given @ self.up) @ self.down
        out = out.view(out.shape[0], x.shape[0], -1, x.shape[-1])
        back = logits.flatten(2).softmax(-1).view_as(logits)
        return x + torch.einsum("btep,ebpd->btd", back, out)


def soft_experts(small: bool) -> Case:
    x = torch.randn(2, 16, 32) if small else torch.randn(16, 256, 512)
    return Case(_SoftExperts(x.shape[-1], 16, 16), {"x": x}, mean_square)


class _DeltaRule(nn.Module):
    """Linear attention by the delta rule in pieces of 64 tokens (Yang et al. 2024)."""

    def __init__(self, width: int, heads: int, piece: int) -> None:
        super().__init__()
        self.heads, self.piece = heads, piece
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.rate = nn.Linear(width, heads)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length // self.piece, self.piece, self.heads, width // self.heads)
        q, k, v = (part.view(shape).movedim(3, 1) for part in self.qkv(x).chunk(3, -1))
        q, k = F.normalize(F.silu(q).float(), dim=-1), F.normalize(F.silu(k).float(), dim=-1)
        rate = self.rate(x).float().sigmoid().view(*shape[:-1]).movedim(3, 1)[..., None]
        scaled = k * rate
        below = torch.tril(scaled @ k.mT, -1)
        eye = torch.eye(self.piece, device=x.device)
        inverse = torch.linalg.solve_triangular(eye + below, eye, upper=False, unitriangular=True)
        w, u = inverse @ scaled, inverse @ (v.float() * rate)
        state = torch.zeros(batch, self.heads, shape[-1], shape[-1], device=x.device)
        found = []
        for i in range(shape[1]):
            new = u[:, :, i] - w[:, :, i] @ state
            inside = torch.tril(q[:, :, i] @ k[:, :, i].mT)
            found.append(q[:, :, i] @ state + inside @ new)
            state = state + k[:, :, i].mT @ new
        y = torch.stack(found, 2).movedim(1, 3).reshape(x.shape)
        return self.out(y.to(x.dtype))


def delta_rule(small: bool) -> Case:
    x = torch.randn(1, 32, 32) if small else torch.randn(4, 512, 512)
    return Case(
        _DeltaRule(x.shape[-1], 2 if small else 8, 16 if small else 64), {"x": x}, mean_square
    )


class _Policy(nn.Module):
    """A policy's clipped objective with its entropy and value (PPO, Schulman et al. 2017)."""

    def __init__(self, width: int, moves: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.moves, self.value = nn.Linear(64, moves), nn.Linear(64, 1)

    def forward(
        self, seen: Tensor, moves: Tensor, before: Tensor, gains: Tensor, returns: Tensor
    ) -> Tensor:
        x = self.body(seen)
        logs = F.log_softmax(self.moves(x).float(), -1)
        own = logs.gather(1, moves[:, None])[:, 0]
        ratio = (own - before).exp()
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        clipped = torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains)
        value = F.smooth_l1_loss(self.value(x)[:, 0].float(), returns)
        entropy = -(logs.exp() * logs).sum(-1)
        return -clipped.mean() + 0.5 * value - 0.01 * entropy.mean()


def policy(small: bool) -> Case:
    n = 16 if small else 2048
    inputs = {
        "seen": torch.randn(n, 24), "moves": torch.randint(0, 6, (n,)),
        "before": -torch.rand(n) - 1, "gains": torch.randn(n), "returns": torch.randn(n),
    }  # fmt: skip
    return Case(_Policy(24, 6), inputs, lambda loss: loss)


# --- sound ----------------------------------------------------------------------------------------


class _Vocoder(nn.Module):
    """HiFi-GAN's generator (Kong et al. 2020): sums of dilated residuals at growing rates."""

    def __init__(self, width: int) -> None:
        super().__init__()
        norm: Callable[[nn.Module], nn.Module] = nn.utils.parametrizations.weight_norm
        self.start = norm(nn.Conv1d(80, width, 7, padding=3))
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for rate in (8, 8, 4):
            self.ups.append(
                norm(nn.ConvTranspose1d(width, width // 2, 2 * rate, rate, padding=rate // 2))
            )
            width //= 2
            self.blocks.append(
                nn.ModuleList(
                    nn.ModuleList(
                        norm(nn.Conv1d(width, width, k, padding=(k - 1) * d // 2, dilation=d))
                        for d in (1, 3)
                    )
                    for k in (3, 7)
                )
            )
        self.end = norm(nn.Conv1d(width, 1, 7, padding=3))

    def forward(self, mel: Tensor) -> Tensor:
        x = self.start(mel)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            total: Tensor | int = 0
            for block in blocks:
                y = x
                for convolution in block:
                    y = y + convolution(F.leaky_relu(y, 0.1))
                total = total + y
            x = total / len(blocks)
        return self.end(F.leaky_relu(x, 0.1)).tanh()


def vocoder(small: bool) -> Case:
    mel = torch.randn(1, 80, 8) if small else torch.randn(8, 80, 64)
    return Case(_Vocoder(32 if small else 256), {"mel": mel}, mean_square)


class _Spectra(nn.Module):
    """A mask for spectra (short-time Fourier transforms and their inverse) by recurrent layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rows = nn.GRU(257, width, 2, batch_first=True)
        self.mask = nn.Linear(width, 257)
        self.register_buffer("window", torch.hann_window(512))

    def forward(self, wave: Tensor) -> Tensor:
        wave, window = wave.float(), self.window.float()
        spectrum = torch.stft(wave, 512, 128, window=window, return_complex=True)
        size = spectrum.abs().add(1e-5).log().mT
        hidden, _ = self.rows(size.to(self.mask.weight.dtype))
        mask = self.mask(hidden).sigmoid().float().mT
        return torch.istft(spectrum * mask, 512, 128, window=window, length=wave.shape[-1])


def spectra(small: bool) -> Case:
    wave = torch.randn(1, 2048) if small else torch.randn(16, 16_000)
    return Case(_Spectra(32 if small else 256), {"wave": wave}, mean_square)
