"""Models that make, match and take apart images, for `gpu_suite.py --model held_out_images:NAME`;
none is in the other held-out sets. Chosen before they were measured.

Each function takes `small` (a size fit for a test) and gives a `Case`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from held_out import mean_square, timm_case
from torch import Tensor, nn

from dovetail.bench.models import Case

maxvit = timm_case("maxvit_tiny_rw_224", 16)
swinv2 = timm_case("swinv2_cr_tiny_224", 16)
tinyvit = timm_case("tiny_vit_11m_224", 32)


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.second = nn.Sequential(
            nn.GroupNorm(8, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.short = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.short(x) + self.second(self.first(x))


class _Middle(nn.Module):
    """One head of attention over all pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, c, h * w).transpose(2, 3).unbind(1)
        mixed = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + self.out(mixed.mT.reshape(b, c, h, w))


class _LatentDecoder(nn.Module):
    """The decoder of a latent diffusion model's autoencoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(4, wide, 3, padding=1),
            _Block(wide, wide),
            _Middle(wide),
            _Block(wide, wide),
            nn.Upsample(scale_factor=2.0),
            nn.Conv2d(wide, wide, 3, padding=1),
            _Block(wide, 2 * width),
            nn.Upsample(scale_factor=2.0),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            _Block(2 * width, width),
            nn.Upsample(scale_factor=2.0),
            nn.Conv2d(width, width, 3, padding=1),
            _Block(width, width),
            nn.GroupNorm(8, width),
            nn.SiLU(),
            nn.Conv2d(width, 3, 3, padding=1),
        )

    def forward(self, z: Tensor) -> Tensor:
        return self.body(z).clamp(-1, 1)


def latent_decoder(small: bool) -> Case:
    latent = torch.randn(1, 4, 4, 4) if small else torch.randn(4, 4, 32, 32)
    return Case(_LatentDecoder(8 if small else 128), {"z": latent}, mean_square)


class _Modulated(nn.Module):
    """A convolution whose weights a style scales, for each sample (Karras et al. 2020)."""

    def __init__(self, inputs: int, outputs: int, style: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3) / math.sqrt(9 * inputs))
        self.affine = nn.Linear(style, inputs)
        self.noise = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        b, c, h, w = x.shape
        weight = self.weight[None] * (self.affine(style) + 1)[:, None, :, None, None]
        scale = weight.float().square().sum((2, 3, 4), keepdim=True).add(1e-8).rsqrt()
        weight = (weight * scale.to(x.dtype)).flatten(0, 1)
        out = F.conv2d(x.reshape(1, b * c, h, w), weight, padding=1, groups=b)
        return F.leaky_relu(out.view(b, -1, h, w) + self.noise, 0.2) * math.sqrt(2)


class _StyleGenerator(nn.Module):
    def __init__(self, width: int, style: int, steps: int) -> None:
        super().__init__()
        self.mapping = nn.Sequential(
            *(nn.Sequential(nn.Linear(style, style), nn.LeakyReLU(0.2)) for _ in range(4))
        )
        self.start = nn.Parameter(torch.randn(1, width, 4, 4))
        self.layers = nn.ModuleList(_Modulated(width, width, style) for _ in range(2 * steps))
        self.colors = nn.Conv2d(width, 3, 1)

    def forward(self, z: Tensor) -> Tensor:
        style = self.mapping(F.normalize(z, dim=1))
        x = self.start.expand(z.shape[0], -1, -1, -1)
        for i, layer in enumerate(self.layers):
            if i % 2 == 0:
                x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = layer(x, style)
        return self.colors(x)


def style_generator(small: bool) -> Case:
    width, style, steps = (8, 16, 2) if small else (128, 256, 5)
    return Case(
        _StyleGenerator(width, style, steps),
        {"z": torch.randn(2 if small else 8, style)},
        mean_square,
    )


class _Flow(nn.Module):
    """All pairs of features, looked up around a flow that is updated step by step (RAFT)."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 7, 4, 3),
            nn.InstanceNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 2, 1),
        )
        self.update = nn.Conv2d(81 + 2 + width, 3 * width, 3, padding=1)
        self.candidate = nn.Conv2d(81 + 2, width, 3, padding=1)
        self.head = nn.Conv2d(width, 2, 3, padding=1)
        self.steps = steps

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        a, b = self.features(first), self.features(second)
        n, c, h, w = a.shape
        volume = (a.flatten(2).mT @ b.flatten(2) / math.sqrt(c)).view(n * h * w, 1, h, w)
        ys, xs = torch.meshgrid(
            torch.arange(h, device=a.device, dtype=a.dtype),
            torch.arange(w, device=a.device, dtype=a.dtype),
            indexing="ij",
        )
        base = torch.stack([xs, ys])
        around = torch.arange(-4, 5, device=a.device, dtype=a.dtype)
        offsets = torch.stack(torch.meshgrid(around, around, indexing="xy"), -1)
        flow, hidden = torch.zeros_like(a[:, :2]), torch.tanh(a)
        bounds = torch.tensor([w - 1, h - 1], device=a.device, dtype=a.dtype)
        for _ in range(self.steps):
            centers = (base + flow.detach()).permute(0, 2, 3, 1).reshape(n * h * w, 1, 1, 2)
            places = 2 * (centers + offsets) / bounds - 1
            seen = F.grid_sample(volume, places, align_corners=True).view(n, h, w, 81)
            inputs = torch.cat([seen.permute(0, 3, 1, 2), flow], 1)
            z, r, _ = self.update(torch.cat([inputs, hidden], 1)).chunk(3, 1)
            proposed = torch.tanh(self.candidate(inputs) + torch.sigmoid(r) * hidden)
            hidden = torch.lerp(hidden, proposed, torch.sigmoid(z))
            flow = flow + self.head(hidden)
        return F.interpolate(flow, scale_factor=8, mode="bilinear") * 8


def optical_flow(small: bool) -> Case:
    images = torch.randn(2, 1, 3, 64, 64) if small else torch.randn(2, 2, 3, 256, 320)
    return Case(
        _Flow(16 if small else 96, 2 if small else 6),
        {"first": images[0], "second": images[1]},
        mean_square,
    )


def deformable_detr(small: bool) -> Case:
    """Attention that samples a few places of several scales."""
    from transformers import DeformableDetrConfig, DeformableDetrModel, ResNetConfig

    backbone = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[32, 64, 96, 128],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    layers = 1 if small else 3
    config = DeformableDetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        encoder_layers=layers,
        decoder_layers=layers,
        d_model=64 if small else 256,
        dropout=0.0,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        num_queries=20 if small else 300,
    )
    side = 64 if small else 384
    return Case(
        DeformableDetrModel(config), {"pixel_values": torch.randn(2, 3, side, side)}, mean_square
    )


def sam_encoder(small: bool) -> Case:
    """Segment Anything's image encoder: windows and decomposed relative positions."""
    from transformers import SamVisionConfig, SamVisionModel

    config = SamVisionConfig(
        hidden_size=64 if small else 384,
        num_hidden_layers=2 if small else 6,
        num_attention_heads=4 if small else 6,
        image_size=64 if small else 512,
        window_size=2 if small else 14,
        global_attn_indexes=[1] if small else [2, 5],
        output_channels=32,
        initializer_range=0.02,  # (its own is 1e-10)
        mlp_dim=128 if small else 1536,
    )
    side = config.image_size
    return Case(
        SamVisionModel(config),
        {"pixel_values": torch.randn(1 if small else 2, 3, side, side)},
        mean_square,
    )
