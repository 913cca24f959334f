"""Models for `gpu_suite.py --model held_out:NAME` that the suite does not have.

    PYTHONPATH=integration_tests/benchmarks python integration_tests/benchmarks/gpu_suite.py \
        --model held_out:unet --model held_out:t5 --systems torch.compile dovetail

Each function takes `small` (a size fit for a test) and gives a `Case`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.bench.models import Case

HEIGHT = 224


def mean_square(output: Any) -> Tensor:
    """A loss of any output: of its logits, or of its first tensor."""
    first = output if isinstance(output, Tensor) else output[0]
    if hasattr(output, "logits"):
        first = output.logits
    return first.float().pow(2).mean()


def own_loss(output: Any) -> Tensor:
    """The loss that a model computed itself."""
    return output.loss


def token_ids(batch: int, length: int, vocabulary: int) -> Tensor:
    """Random tokens."""
    return torch.randint(0, vocabulary, (batch, length))


def timm_case(name: str, batch: int, **kwargs: Any) -> Callable[[bool], Case]:
    """A model of timm over images of 224 x 224."""

    def build(small: bool) -> Case:
        import timm

        images = torch.randn(2 if small else batch, 3, HEIGHT, HEIGHT)
        return Case(timm.create_model(name, **kwargs), {"x": images}, mean_square)

    return build


convnext = timm_case("convnext_base", 32)
effnet = timm_case("efficientnet_b0", 64)
swin = timm_case("swin_tiny_patch4_window7_224", 32)
densenet = timm_case("densenet121", 32)
mobile1 = timm_case("mobilenetv3_large_100", 1, drop_rate=0.0)
coat = timm_case("coatnet_0_rw_224", 16)


def t5(small: bool) -> Case:
    """T5-base with its loss, 128 tokens in and out."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=768, d_ff=3072, num_heads=12, num_layers=2 if small else 12, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    batch = 1 if small else 8
    inputs = {"input_ids": token_ids(batch, 128, 32128), "labels": token_ids(batch, 128, 32128)}
    return Case(T5ForConditionalGeneration(config), {**inputs, "use_cache": False}, own_loss)


def roberta(small: bool) -> Case:
    """RoBERTa-large as a classifier."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    config = RobertaConfig(
        hidden_size=1024, num_hidden_layers=2 if small else 24, num_attention_heads=16,
        intermediate_size=4096, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        max_position_embeddings=514,
    )  # fmt: skip
    batch = 1 if small else 8
    mask = torch.ones(batch, 256, dtype=torch.long)
    inputs = {"input_ids": token_ids(batch, 256, 50265), "attention_mask": mask}
    return Case(RobertaForSequenceClassification(config), inputs, mean_square)


def mixtral(small: bool) -> Case:
    """A small mixture of eight experts, two for a token."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=8192, hidden_size=512, intermediate_size=1792, num_attention_heads=8,
        num_hidden_layers=2 if small else 6, num_key_value_heads=4, num_local_experts=8,
        num_experts_per_tok=2,
    )  # fmt: skip
    inputs = {"input_ids": token_ids(1 if small else 4, 128, 8192), "use_cache": False}
    return Case(MixtralForCausalLM(config), inputs, mean_square)


def whisper(small: bool) -> Case:
    """Whisper with six layers on either side: 30 s of sound, 64 tokens."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    layers, batch = (2, 1) if small else (6, 4)
    config = WhisperConfig(
        d_model=512, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, dropout=0.0,
    )  # fmt: skip
    inputs = {
        "input_features": torch.randn(batch, 80, 3000),
        "decoder_input_ids": token_ids(batch, 64, 51865),
        "use_cache": False,
    }
    return Case(WhisperForConditionalGeneration(config), inputs, mean_square)


def qwen(small: bool) -> Case:
    """Qwen2 of half a billion parameters (with a smaller vocabulary), 512 tokens."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=2 if small else 24,
        num_attention_heads=14, num_key_value_heads=2, vocab_size=32000,
    )  # fmt: skip
    ids = token_ids(1 if small else 4, 512, 32000)
    inputs = {"input_ids": ids, "labels": ids.clone(), "use_cache": False}
    return Case(Qwen2ForCausalLM(config), inputs, own_loss)


def deberta(small: bool) -> Case:
    """DeBERTa-v2-base: its attention calls functions in TorchScript."""
    from transformers import DebertaV2Config, DebertaV2Model

    config = DebertaV2Config(
        vocab_size=32000, hidden_size=768, num_hidden_layers=2 if small else 12,
        num_attention_heads=12, intermediate_size=3072, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, relative_attention=True, pos_att_type=["p2c", "c2p"],
        position_buckets=256, max_relative_positions=-1,
    )  # fmt: skip
    inputs = {"input_ids": token_ids(1 if small else 8, 128, 32000)}
    return Case(DebertaV2Model(config), inputs, mean_square)


class _Recommender(nn.Module):
    """Sums of embeddings, their products in pairs, and two perceptrons, as DLRM has them."""

    def __init__(self, tables: int = 16, width: int = 64) -> None:
        super().__init__()
        bags = (nn.EmbeddingBag(100_000, width, mode="sum") for _ in range(tables))
        self.tables = nn.ModuleList(bags)
        self.below = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.above = nn.Sequential(
            nn.Linear(width + pairs, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
            nn.Linear(256, 1),
        )  # fmt: skip

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        d = self.below(dense)
        z = torch.stack([d, *(table(sparse[i]) for i, table in enumerate(self.tables))], 1)
        products = torch.bmm(z, z.transpose(1, 2))
        i, j = torch.tril_indices(z.shape[1], z.shape[1], -1, device=z.device)
        return torch.sigmoid(self.above(torch.cat([d, products[:, i, j]], 1)))


def dlrm(small: bool) -> Case:
    """A recommendation model."""
    batch = 64 if small else 2048
    inputs = {"dense": torch.randn(batch, 13), "sparse": torch.randint(0, 100_000, (16, batch, 4))}
    return Case(_Recommender(), inputs, mean_square)


class _Residual(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(256, outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(8, width), nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, 3, 4, c // 4, h * w).transpose(-1, -2)
        q, k, v = qkv.unbind(1)
        a = torch.softmax(q @ k.transpose(-1, -2) / (c // 4) ** 0.5, -1) @ v
        return x + self.out(a.transpose(-1, -2).reshape(b, c, h, w))


class _UNet(nn.Module):
    """The denoiser of a diffusion model, with three resolutions."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down1, self.pool1 = _Residual(width, width), nn.Conv2d(width, width, 3, 2, 1)
        self.down2 = _Residual(width, 2 * width)
        self.pool2 = nn.Conv2d(2 * width, 2 * width, 3, 2, 1)
        self.down3, self.attention = _Residual(2 * width, 4 * width), _Attention(4 * width)
        self.middle = _Residual(4 * width, 4 * width)
        self.up2, self.up1 = _Residual(6 * width, 2 * width), _Residual(3 * width, width)
        self.norm, self.last = nn.GroupNorm(8, width), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(torch.arange(32, device=x.device) * -0.2)
        e = self.time(torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype))
        x = self.first(x)
        a = self.down1(x, e)
        b = self.down2(self.pool1(a), e)
        c = self.middle(self.attention(self.down3(self.pool2(b), e)), e)
        c = self.up2(torch.cat([F.interpolate(c, scale_factor=2, mode="nearest"), b], 1), e)
        c = self.up1(torch.cat([F.interpolate(c, scale_factor=2, mode="nearest"), a], 1), e)
        return self.last(F.silu(self.norm(c)))


def unet(small: bool) -> Case:
    """16 images of 128 x 128."""
    batch, size = (2, 32) if small else (16, 128)
    inputs = {"x": torch.randn(batch, 3, size, size), "t": torch.rand(batch) * 100}
    return Case(_UNet(), inputs, mean_square)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10_000, 512)
        self.cells = nn.LSTM(512, 512, 2, batch_first=True)
        self.out = nn.Linear(512, 10_000)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, _ = self.cells(self.words(x))
        return F.cross_entropy(self.out(h).flatten(0, 1).float(), y.flatten())


def lstm(small: bool) -> Case:
    """A language model of two LSTM layers, with its loss."""
    batch = 2 if small else 64
    inputs = {"x": token_ids(batch, 64, 10_000), "y": token_ids(batch, 64, 10_000)}
    return Case(_Recurrent(), inputs, lambda loss: loss)


class _Decoder(nn.Module):
    """A decoder whose keys and values lie in buffers that each step writes."""

    def __init__(
        self, width: int = 1024, layers: int = 12, heads: int = 16, length: int = 1024
    ) -> None:
        super().__init__()

        def each(inner: int, outer: int) -> nn.ModuleList:
            return nn.ModuleList(nn.Linear(inner, outer, bias=False) for _ in range(layers))

        self.heads = heads
        self.words = nn.Embedding(32_000, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2 * layers))
        self.qkv, self.out = each(width, 3 * width), each(width, width)
        self.gate, self.up = each(width, 4 * width), each(width, 4 * width)
        self.down = each(4 * width, width)
        for name in ("keys", "values"):
            cache = torch.zeros(layers, 4, heads, length, width // heads)
            self.register_buffer(name, cache)
        self.logits = nn.Linear(width, 32_000, bias=False)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        batch, count = x.shape
        z = self.words(x)
        mask = torch.arange(self.keys.shape[3], device=x.device)[None, :] <= position[:, None]
        for i in range(len(self.qkv)):
            parts = self.qkv[i](self.norms[2 * i](z)).view(batch, count, 3, self.heads, -1)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            keys, values = self.keys[i], self.values[i]
            keys.index_copy_(2, position, k.detach())
            values.index_copy_(2, position, v.detach())
            a = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            z = z + self.out[i](a.transpose(1, 2).reshape(batch, count, -1))
            y = self.norms[2 * i + 1](z)
            z = z + self.down[i](F.silu(self.gate[i](y)) * self.up[i](y))
        return self.logits(z)


def decode(small: bool) -> Case:
    """One token for each of four sequences."""
    model = _Decoder(layers=2 if small else 12)
    return Case(model, {"x": token_ids(4, 1, 32_000), "position": torch.tensor([77])}, mean_square)
