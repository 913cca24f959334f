"""Models of fields that the other held-out sets leave out, for `gpu_suite.py --model
held_out_fields:NAME`: sound, volumes, operators between functions, text, graphs. Chosen before
they were measured.

Each function takes `small` (a size fit for a test) and gives a `Case`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from held_out import mean_square, own_loss, token_ids
from held_out_wide import language_model
from torch import Tensor, nn

from dovetail.bench.models import Case

# --- sound ----------------------------------------------------------------------------------------


class _WaveNet(nn.Module):
    """Gated, dilated, causal convolutions (van den Oord et al. 2016)."""

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        self.start = nn.Conv1d(1, channels, 1)
        dilations = [2 ** (i % 8) for i in range(layers)]
        self.gates = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 2, dilation=d) for d in dilations
        )
        self.mixes = nn.ModuleList(nn.Conv1d(channels, 2 * channels, 1) for _ in dilations)
        self.end = nn.Sequential(nn.ReLU(), nn.Conv1d(channels, 256, 1))

    def forward(self, wave: Tensor) -> Tensor:
        x = self.start(wave)
        skipped: Tensor | int = 0
        for gate, mix in zip(self.gates, self.mixes, strict=True):
            filtered, gated = gate(F.pad(x, (gate.dilation[0], 0))).chunk(2, 1)
            residual, skip = mix(filtered.tanh() * gated.sigmoid()).chunk(2, 1)
            x = x + residual
            skipped = skipped + skip
        return self.end(skipped)


def wavenet(small: bool) -> Case:
    wave = torch.randn(2, 1, 256) if small else torch.randn(8, 1, 8192)
    return Case(_WaveNet(32 if small else 64, 4 if small else 16), {"wave": wave}, mean_square)


def encodec(small: bool) -> Case:
    """EnCodec's encoder and decoder: weight-normed convolutions and an LSTM."""
    from transformers import EncodecConfig, EncodecModel

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            model = EncodecModel(EncodecConfig(num_filters=8 if small else 32))
            self.encoder, self.decoder = model.encoder, model.decoder

        def forward(self, wave: Tensor) -> Tensor:
            return self.decoder(self.encoder(wave))

    wave = torch.randn(1, 1, 1280) if small else torch.randn(8, 1, 12800)
    return Case(Autoencoder(), {"wave": wave}, mean_square)


def conformer(small: bool) -> Case:
    """Convolutions and relative attention in turns."""
    from transformers import Wav2Vec2ConformerConfig, Wav2Vec2ConformerModel

    config = Wav2Vec2ConformerConfig(
        num_hidden_layers=1 if small else 6,
        hidden_size=256,
        num_attention_heads=4,
        intermediate_size=1024,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        feat_proj_dropout=0.0,
        activation_dropout=0.0,
        layerdrop=0.0,
        mask_time_prob=0.0,
        conformer_conv_dropout=0.0,
    )
    wave = torch.randn(1, 4000) if small else torch.randn(8, 32000)
    return Case(Wav2Vec2ConformerModel(config), {"input_values": wave}, mean_square)


# --- functions and volumes ------------------------------------------------------------------------


class _SpectralConvolution(nn.Module):
    """Weights for the lowest frequencies (Li et al. 2020)."""

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(2, channels, channels, modes, modes, 2) / channels)

    def forward(self, x: Tensor) -> Tensor:
        m = self.modes
        spectrum = torch.fft.rfft2(x.float())
        low, high = torch.view_as_complex(self.weight.float()).unbind()
        out = torch.zeros_like(spectrum)
        out[..., :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[..., :m, :m], low)
        out[..., -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[..., -m:, :m], high)
        return torch.fft.irfft2(out, s=x.shape[-2:]).to(x.dtype)


class _FourierOperator(nn.Module):
    def __init__(self, channels: int, layers: int, modes: int) -> None:
        super().__init__()
        self.lift = nn.Conv2d(3, channels, 1)
        self.spectral = nn.ModuleList(_SpectralConvolution(channels, modes) for _ in range(layers))
        self.local = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(layers))
        self.project = nn.Sequential(nn.Conv2d(channels, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = F.gelu(spectral(x) + local(x))
        return self.project(x)


def fourier_operator(small: bool) -> Case:
    field = torch.randn(1, 3, 32, 32) if small else torch.randn(16, 3, 128, 128)
    return Case(
        _FourierOperator(8 if small else 64, 2 if small else 4, 8), {"x": field}, mean_square
    )


class _LongConvolution(nn.Module):
    """Gated convolutions as long as the sequence, by Fourier transforms (Poli et al. 2023)."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inward = nn.Linear(width, 3 * width)
        self.short = nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width)
        self.filter = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, width))
        self.outward = nn.Linear(width, width)
        t = torch.linspace(0, 1, length)[:, None]
        self.register_buffer("positions", torch.cat([(t * k).sin() for k in range(1, 9)], 1))
        self.register_buffer("decay", torch.exp(-4 * t))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        parts = self.short(self.inward(self.norm(x)).mT)[..., :length]
        gate, key, value = parts.chunk(3, 1)
        kernel = (self.filter(self.positions) * self.decay).mT
        spectrum = torch.fft.rfft((key * value).float(), n=2 * length)
        filtered = spectrum * torch.fft.rfft(kernel.float(), n=2 * length)
        mixed = torch.fft.irfft(filtered, n=2 * length)[..., :length].to(x.dtype)
        return x + self.outward((mixed * gate).mT)


def hyena(small: bool) -> Case:
    width, length = (16, 64) if small else (256, 2048)
    layers = [_LongConvolution(width, length) for _ in range(2 if small else 6)]
    return Case(nn.Sequential(*layers), {"input": torch.randn(2, length, width)}, mean_square)


def _double_volume(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, padding=1),
        nn.InstanceNorm3d(outputs, affine=True),
        nn.LeakyReLU(0.01),
        nn.Conv3d(outputs, outputs, 3, padding=1),
        nn.InstanceNorm3d(outputs, affine=True),
        nn.LeakyReLU(0.01),
    )


class _VolumeUNet(nn.Module):
    """nnU-Net's pattern: instance norms, transposed convolutions, skips."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([_double_volume(1, width), _double_volume(width, 2 * width)])
        self.middle = _double_volume(2 * width, 4 * width)
        self.grow = nn.ModuleList(
            [
                nn.ConvTranspose3d(4 * width, 2 * width, 2, 2),
                nn.ConvTranspose3d(2 * width, width, 2, 2),
            ]
        )
        self.up = nn.ModuleList(
            [_double_volume(4 * width, 2 * width), _double_volume(2 * width, width)]
        )
        self.head = nn.Conv3d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.max_pool3d(x, 2)
        x = self.middle(x)
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(torch.cat([grow(x), kept.pop()], 1))
        return self.head(x)


def volume_unet(small: bool) -> Case:
    volume = torch.randn(1, 1, 8, 8, 8) if small else torch.randn(2, 1, 64, 64, 64)
    return Case(_VolumeUNet(4 if small else 32), {"x": volume}, mean_square)


# --- text and graphs ------------------------------------------------------------------------------


def modernbert(small: bool) -> Case:
    """Windows of attention, gated products, rotary positions of two bases."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    config = ModernBertConfig(
        vocab_size=5000 if small else 50368,
        hidden_size=64 if small else 768,
        intermediate_size=128 if small else 1152,
        num_hidden_layers=3 if small else 8,
        num_attention_heads=4 if small else 12,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        cls_token_id=1,
        sep_token_id=2,
    )
    ids = token_ids(2, 32, 5000) if small else token_ids(8, 512, 50368)
    return Case(ModernBertForMaskedLM(config), {"input_ids": ids, "labels": ids.clone()}, own_loss)


# State spaces by chunks, as transformers writes them out.
mamba2 = language_model(
    "Mamba2", 4, 512, hidden_size=512, num_hidden_layers=4, num_heads=16, head_dim=64,
    state_size=64, n_groups=1, chunk_size=128,
)  # fmt: skip


class _GraphAttention(nn.Module):
    """Softmax over each node's edges (Velickovic et al. 2018)."""

    def __init__(self, inputs: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.project = nn.Linear(inputs, heads * width, bias=False)
        self.score = nn.Parameter(torch.randn(2, heads, width) / math.sqrt(width))

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        nodes = x.shape[0]
        h = self.project(x).view(nodes, self.heads, self.width)
        scores = F.leaky_relu(
            (h * self.score[0]).sum(-1)[source] + (h * self.score[1]).sum(-1)[target], 0.2
        )
        places = target[:, None].expand_as(scores)
        top = torch.full_like(scores[:1].expand(nodes, -1), -torch.inf).scatter_reduce(
            0, places, scores, "amax"
        )
        weights = torch.exp(scores - top[target])
        total = torch.zeros_like(top).index_add(0, target, weights)
        weights = weights / (total[target] + 1e-6)
        out = torch.zeros_like(h).index_add(0, target, h[source] * weights[..., None])
        return F.elu(out.flatten(1))


class _GraphAttentionNet(nn.Module):
    def __init__(self, inputs: int, layers: int) -> None:
        super().__init__()
        sizes = [inputs] + [256] * (layers - 1)
        self.layers = nn.ModuleList(_GraphAttention(s, 8, 32) for s in sizes)
        self.head = nn.Linear(256, 16)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, source, target)
        return self.head(x)


def graph_attention(small: bool) -> Case:
    nodes, edges = (50, 200) if small else (20000, 200000)
    source, target = torch.randint(0, nodes, (2, edges))
    inputs = {"x": torch.randn(nodes, 64), "source": source, "target": target}
    return Case(_GraphAttentionNet(64, 3), inputs, mean_square)


class _Splines(nn.Module):
    """A layer of learned functions of one variable, as sums of B-splines (KAN)."""

    def __init__(self, inputs: int, outputs: int, grid: int = 5, order: int = 3) -> None:
        super().__init__()
        self.order = order
        step = 2 / grid
        knots = torch.arange(-order, grid + order + 1) * step - 1
        self.register_buffer("knots", knots.expand(inputs, -1).contiguous())
        self.base = nn.Parameter(torch.randn(outputs, inputs) / math.sqrt(inputs))
        self.spline = nn.Parameter(torch.randn(outputs, inputs, grid + order) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        t, x = self.knots, x[..., None]
        bases = ((x >= t[:, :-1]) & (x < t[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            rising = (x - t[:, : -(k + 1)]) / (t[:, k:-1] - t[:, : -(k + 1)]) * bases[..., :-1]
            falling = (t[:, k + 1 :] - x) / (t[:, k + 1 :] - t[:, 1:-k]) * bases[..., 1:]
            bases = rising + falling
        x = x[..., 0]
        return F.linear(F.silu(x), self.base) + F.linear(bases.flatten(1), self.spline.flatten(1))


def splines(small: bool) -> Case:
    width, rows = (16, 8) if small else (256, 4096)
    layers = [_Splines(width, width) for _ in range(3)]
    return Case(nn.Sequential(*layers), {"input": torch.randn(rows, width) * 0.5}, mean_square)
