"""More models for `gpu_suite.py --model held_out_more:NAME`, of other kinds than `held_out`'s.

Each function takes `small` (a size fit for a test) and gives a `Case`.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from held_out import mean_square, own_loss, timm_case, token_ids
from torch import Tensor, nn

from dovetail.bench.models import Case

maxvit = timm_case("maxvit_tiny_rw_224", 16)
regnet = timm_case("regnety_032", 64)
resnext = timm_case("resnext50_32x4d", 64)
beit = timm_case("beit_base_patch16_224", 32)


def gemma(small: bool) -> Case:
    """Gemma 2: scores capped by a tanh, windows that slide on every second layer."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=32000, hidden_size=1024, intermediate_size=4096, head_dim=128,
        num_hidden_layers=2 if small else 12, num_attention_heads=8, num_key_value_heads=4,
        sliding_window=256,
    )  # fmt: skip
    ids = token_ids(1 if small else 4, 512, 32000)
    inputs = {"input_ids": ids, "labels": ids.clone(), "use_cache": False}
    return Case(Gemma2ForCausalLM(config), inputs, own_loss)


def bloom(small: bool) -> Case:
    """Bloom: positions as slopes added to the scores."""
    from transformers import BloomConfig, BloomForCausalLM

    config = BloomConfig(
        vocab_size=32000, hidden_size=1024, n_layer=2 if small else 12, n_head=16,
        hidden_dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    ids = token_ids(1 if small else 4, 256, 32000)
    inputs = {"input_ids": ids, "labels": ids.clone(), "use_cache": False}
    return Case(BloomForCausalLM(config), inputs, own_loss)


def bart(small: bool) -> Case:
    """BART-base with its loss."""
    from transformers import BartConfig, BartForConditionalGeneration

    layers = 2 if small else 6
    config = BartConfig(
        d_model=768, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=12,
        decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072, dropout=0.0,
        vocab_size=32000, forced_eos_token_id=None,
    )  # fmt: skip
    batch = 1 if small else 8
    inputs = {"input_ids": token_ids(batch, 128, 32000), "labels": token_ids(batch, 128, 32000)}
    return Case(BartForConditionalGeneration(config), {**inputs, "use_cache": False}, own_loss)


def clip(small: bool) -> Case:
    """CLIP with ViT-B/32, both towers and the loss of their products."""
    from transformers import CLIPConfig, CLIPModel

    layers, batch = (2, 2) if small else (12, 32)
    config = CLIPConfig(
        text_config={"num_hidden_layers": layers, "vocab_size": 8192, "eos_token_id": 8191},
        vision_config={"num_hidden_layers": layers},
    )
    ids = token_ids(batch, 77, 8190)
    ids[:, -1] = 8191
    images = torch.randn(batch, 3, 224, 224)
    inputs = {"input_ids": ids, "pixel_values": images, "return_loss": True}
    return Case(CLIPModel(config), inputs, own_loss)


def wav2vec(small: bool) -> Case:
    """wav2vec 2.0: convolutions over 2 s of sound, a position by a grouped convolution."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(
        num_hidden_layers=2 if small else 12, hidden_dropout=0.0, attention_dropout=0.0,
        activation_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0, apply_spec_augment=False,
    )  # fmt: skip
    sound = torch.randn(1 if small else 8, 32_000)
    return Case(Wav2Vec2Model(config), {"input_values": sound}, mean_square)


def segformer(small: bool) -> Case:
    """SegFormer: pixels labelled by attention over shortened keys and values."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        num_labels=19, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0, drop_path_rate=0.0,
    )  # fmt: skip
    images = torch.randn(1 if small else 8, 3, 256, 256)
    return Case(SegformerForSemanticSegmentation(config), {"pixel_values": images}, mean_square)


class _GraphNet(nn.Module):
    """Messages along edges, added up at their ends, three times."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()

        def each(inner: int) -> nn.ModuleList:
            return nn.ModuleList(
                nn.Sequential(nn.Linear(inner, width), nn.SiLU(), nn.Linear(width, width))
                for _ in range(3)
            )

        self.encode = nn.Linear(16, width)
        self.message, self.update = each(2 * width), each(2 * width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.out = nn.Linear(width, 1)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        h = self.encode(x)
        start, end = edges
        for message, update, norm in zip(self.message, self.update, self.norms, strict=True):
            m = message(torch.cat([h[start], h[end]], -1))
            received = torch.zeros_like(h).index_add_(0, end, m)
            degree = torch.zeros_like(h[:, 0]).index_add_(0, end, torch.ones_like(m[:, 0]))
            mean = received / degree.clamp(min=1)[:, None]
            h = norm(h + update(torch.cat([h, mean], -1)))
        pooled = torch.zeros(64, h.shape[1], device=h.device, dtype=h.dtype)
        return self.out(pooled.index_add(0, graph, h))


def gnn(small: bool) -> Case:
    """64 graphs of 20,000 nodes and 100,000 edges in all."""
    nodes, edges = (200, 1_000) if small else (20_000, 100_000)
    inputs = {
        "x": torch.randn(nodes, 16),
        "edges": torch.randint(0, nodes, (2, edges)),
        "graph": torch.randint(0, 64, (nodes,)).sort().values,
    }
    return Case(_GraphNet(), inputs, mean_square)


class _Field(nn.Module):
    """Density and colour at points along rays, composed along each."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        layers = [nn.Linear(63, width), nn.ReLU()]
        for _ in range(5):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.trunk = nn.Sequential(*layers)
        self.density, self.colour = nn.Linear(width, 1), nn.Linear(width, 3)

    def forward(self, origin: Tensor, direction: Tensor, depth: Tensor) -> Tensor:
        points = origin[:, None] + direction[:, None] * depth[..., None]
        angles = points[..., None] * (2.0 ** torch.arange(10, device=points.device) * math.pi)
        waves = torch.cat([angles.sin(), angles.cos()], -1).flatten(-2)
        h = self.trunk(torch.cat([points, waves], -1).to(self.density.weight.dtype))
        step = F.pad(depth[:, 1:] - depth[:, :-1], (0, 1), value=1e10)
        opaque = 1 - torch.exp(-F.relu(self.density(h)[..., 0]).float() * step)
        clear = torch.cumprod(torch.cat([torch.ones_like(step[:, :1]), 1 - opaque + 1e-10], -1), -1)
        weights = opaque * clear[:, :-1]
        return (weights[..., None] * self.colour(h).sigmoid().float()).sum(1)


def nerf(small: bool) -> Case:
    """A radiance field: 4096 rays of 64 points."""
    rays = 32 if small else 4096
    inputs = {
        "origin": torch.randn(rays, 3),
        "direction": F.normalize(torch.randn(rays, 3), dim=-1),
        "depth": torch.linspace(2, 6, 64).expand(rays, 64) + 0.05 * torch.rand(rays, 64),
    }
    return Case(_Field(), inputs, mean_square)


class _Video(nn.Module):
    """Convolutions in three dimensions, with residuals."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv3d(3, width, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)
        widths = [width, width, 2 * width, 4 * width]
        self.blocks = nn.ModuleList()
        for inner, outer in itertools.pairwise(widths):
            stride = 1 if inner == outer else 2
            self.blocks.append(
                nn.ModuleList(
                    [
                        nn.Conv3d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm3d(outer),
                        nn.Conv3d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm3d(outer),
                        nn.Conv3d(inner, outer, 1, stride),
                    ]
                )
            )  # fmt: skip
        self.out = nn.Linear(widths[-1], 400)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool3d(F.relu(self.stem(x)), 2)
        for conv1, norm1, conv2, norm2, short in self.blocks:
            x = F.relu(norm2(conv2(F.relu(norm1(conv1(x))))) + short(x))
        return self.out(F.adaptive_avg_pool3d(x, 1).flatten(1))


def video(small: bool) -> Case:
    """Eight clips of 16 pictures."""
    return Case(_Video(), {"x": torch.randn(1 if small else 8, 3, 16, 112, 112)}, mean_square)


class _Diffuser(nn.Module):
    """DiT-B/4: blocks of a transformer that are scaled and shifted by the time of diffusion."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, width, 4, 4)
        self.place = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(1000, width)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
            )
            attention = nn.MultiheadAttention(width, 12, batch_first=True)
            self.blocks.append(nn.ModuleList([attention, mlp, nn.Linear(width, 6 * width)]))
        self.out = nn.Linear(width, 4 * 4 * 8)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2) + self.place
        width = h.shape[-1]
        rates = torch.exp(-math.log(10_000) * torch.arange(128, device=x.device) / 128)
        angles = t[:, None].float() * rates
        waves = torch.cat([angles.cos(), angles.sin()], -1).to(h.dtype)
        c = self.time(waves) + self.label(y)
        for attention, mlp, modulation in self.blocks:
            parts = modulation(F.silu(c)).chunk(6, dim=1)
            shift1, scale1, gate1, shift2, scale2, gate2 = (p.unsqueeze(1) for p in parts)
            z = F.layer_norm(h, (width,)) * (1 + scale1) + shift1
            h = h + gate1 * attention(z, z, z, need_weights=False)[0]
            h = h + gate2 * mlp(F.layer_norm(h, (width,)) * (1 + scale2) + shift2)
        patches = self.out(F.layer_norm(h, (width,))).view(x.shape[0], 8, 8, 4, 4, 8)
        return patches.permute(0, 5, 1, 3, 2, 4).reshape(x.shape[0], 8, 32, 32)


def dit(small: bool) -> Case:
    """32 latent pictures of 32 x 32."""
    batch = 2 if small else 32
    inputs = {
        "x": torch.randn(batch, 4, 32, 32),
        "t": torch.randint(0, 1000, (batch,)),
        "y": torch.randint(0, 1000, (batch,)),
    }
    return Case(_Diffuser(768, 2 if small else 12), inputs, mean_square)


class _Scan(nn.Module):
    """State-space blocks: gates, a convolution along time, and a scan written with cumsum."""

    def __init__(self, width: int = 512, layers: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(8192, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.RMSNorm(width),
                    "inner": nn.Linear(width, 2 * width, bias=False),
                    "conv": nn.Conv1d(width, width, 4, padding=3, groups=width),
                    "decay": nn.Linear(width, width),
                    "out": nn.Linear(width, width, bias=False),
                }
            )
            for _ in range(layers)
        )
        self.logits = nn.Linear(width, 8192, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        for b in self.blocks:
            z, gate = b["inner"](b["norm"](h)).chunk(2, -1)
            z = F.silu(b["conv"](z.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
            logs = F.logsigmoid(b["decay"](z)).float().cumsum(1)
            # sum over s <= t of exp(log_t - log_s) z_s, kept in range by the largest term
            state = torch.logcumsumexp(-logs + torch.log(z.float().abs() + 1e-6), 1) + logs
            h = h + b["out"]((state.exp() * z.float().sign()).to(h.dtype) * F.silu(gate))
        return self.logits(h)


def scan(small: bool) -> Case:
    """Eight sequences of 256."""
    return Case(
        _Scan(layers=1 if small else 4), {"x": token_ids(1 if small else 8, 256, 8192)}, mean_square
    )


def encoder(small: bool) -> Case:
    """torch's own encoder layers, norms first, with a mask of what is padding."""
    layer = nn.TransformerEncoderLayer(
        512, 8, 2048, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    model = nn.TransformerEncoder(layer, 2 if small else 6, enable_nested_tensor=False)
    batch = 2 if small else 16
    padding = torch.arange(128)[None, :] >= torch.randint(64, 128, (batch, 1))
    inputs: dict[str, Any] = {"src": torch.randn(batch, 128, 512), "src_key_padding_mask": padding}
    return Case(model, inputs, mean_square)
