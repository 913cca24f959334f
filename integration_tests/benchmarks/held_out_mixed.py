"""Further models for `gpu_suite.py --model held_out_mixed:NAME`, chosen before measuring: attention
over windows and blocks, states in place of attention, recurrences written as loops, codebooks.

Each function takes `small` (a size fit for a test) and gives a `Case`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from held_out import mean_square, timm_case, token_ids
from held_out_wide import language_model
from torch import Tensor, nn

from dovetail.bench.models import Case

# --- images -------------------------------------------------------------------------------------

focalnet = timm_case("focalnet_tiny_srf", 32)
mvit = timm_case("mvitv2_tiny", 32)
tnt = timm_case("tnt_s_patch16_224", 32)
efficientvit = timm_case("efficientvit_b1", 64)
cait = timm_case("cait_xxs24_224", 32)
repvit = timm_case("repvit_m1_0", 64)
inception_next = timm_case("inception_next_tiny", 32)
skresnet = timm_case("skresnet34", 32)
mambaout = timm_case("mambaout_tiny", 32)
sequencer = timm_case("sequencer2d_s", 16)
pvt = timm_case("pvt_v2_b1", 32)

# --- text ---------------------------------------------------------------------------------------

mamba2 = language_model(
    "Mamba2", 2, 512, hidden_size=512, num_hidden_layers=4, num_heads=16, head_dim=64,
    state_size=64, n_groups=1, chunk_size=128,
)  # fmt: skip
rwkv = language_model("Rwkv", 2, 64, hidden_size=512, num_hidden_layers=4, context_length=512)
gpt_neo = language_model(
    "GPTNeo", 4, 512, hidden_size=768, num_layers=6, num_heads=12,
    attention_types=[[["global", "local"], 3]], window_size=128,
)  # fmt: skip
gemma2 = language_model(
    "Gemma2", 4, 512, hidden_size=768, intermediate_size=2048, num_hidden_layers=6,
    num_attention_heads=8, num_key_value_heads=4, head_dim=96, sliding_window=128,
)  # fmt: skip


def encoder(kind: str, batch: int, length: int, **sizes: Any) -> Any:
    """`{kind}Model` of transformers, without a head."""

    def build(small: bool) -> Case:
        import transformers

        config = getattr(transformers, f"{kind}Config")(vocab_size=30522, **sizes)
        model = getattr(transformers, f"{kind}Model")(config)
        rows = 2 if small else batch
        return Case(model, {"input_ids": token_ids(rows, length, 30000)}, mean_square)

    return build


longformer = encoder(
    "Longformer", 2, 1024, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
    intermediate_size=1024, attention_window=128, max_position_embeddings=1100, pad_token_id=1,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
big_bird = encoder(
    "BigBird", 2, 1024, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
    intermediate_size=1024, max_position_embeddings=1024, block_size=64, num_random_blocks=2,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
xlnet = encoder("XLNet", 8, 256, d_model=512, n_layer=4, n_head=8, d_inner=2048, dropout=0.0)


def perceiver(small: bool) -> Case:
    """Perceiver: latents that attend to many inputs."""
    from transformers import PerceiverConfig, PerceiverModel

    config = PerceiverConfig(
        num_latents=64, d_latents=256, d_model=64, num_self_attends_per_block=4,
        num_self_attention_heads=4, num_cross_attention_heads=4, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    inputs = torch.randn(2 if small else 16, 256 if small else 4096, 64)

    def loss(output: Any) -> Tensor:
        return output.last_hidden_state.float().pow(2).mean()

    return Case(PerceiverModel(config), {"inputs": inputs}, loss)


# --- written here -------------------------------------------------------------------------------


class _Translator(nn.Module):
    """Encoder and decoder of GRU cells with additive attention, a step at a time."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.encoder, self.decoder = nn.GRUCell(width, width), nn.GRUCell(2 * width, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.score, self.head = nn.Linear(width, 1), nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        state = torch.zeros_like(self.embed.weight[: source.shape[0]])
        seen = []
        for token in self.embed(source).unbind(1):
            state = self.encoder(token, state)
            seen.append(state)
        memory = torch.stack(seen, 1)
        keys = self.key(memory)
        logits = []
        for token in self.embed(target).unbind(1):
            scores = self.score(torch.tanh(keys + self.query(state)[:, None]))
            context = (scores.softmax(1) * memory).sum(1)
            state = self.decoder(torch.cat([token, context], 1), state)
            logits.append(self.head(state))
        return torch.stack(logits, 1)


def translator(small: bool) -> Case:
    """Recurrent translation with attention, 16 tokens to 16."""
    rows, vocabulary, width = (2, 100, 16) if small else (64, 8000, 512)
    return Case(
        _Translator(vocabulary, width),
        {"source": token_ids(rows, 16, vocabulary), "target": token_ids(rows, 16, vocabulary)},
        mean_square,
    )


class _Retention(nn.Module):
    """A layer of RetNet in its parallel form: decays in place of a softmax, groups normalised."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 4 * width, bias=False)
        self.norm, self.groups = nn.LayerNorm(width), nn.GroupNorm(heads, width)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.register_buffer("decay", 1 - 2.0 ** (-5 - torch.arange(heads)))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value, gate = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.project(self.norm(x)).chunk(4, -1)
        )
        steps = torch.arange(length, device=x.device)
        distance = steps[:, None] - steps[None]
        decay = torch.where(distance >= 0, self.decay[:, None, None] ** distance.clamp(min=0), 0)
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5 * decay
        mixed = (scores / scores.detach().abs().sum(-1, keepdim=True).clamp(min=1)) @ value
        rows = mixed.transpose(1, 2).reshape(batch * length, width)
        normed = self.groups(rows).view(batch, length, width)
        x = x + self.out(normed * F.silu(gate.transpose(1, 2).reshape(batch, length, width)))
        return x + self.mlp(x)


def retention(small: bool) -> Case:
    """Four layers of retention."""
    width, length = (32, 16) if small else (768, 512)
    layers = nn.Sequential(*(_Retention(width, 4) for _ in range(1 if small else 4)))
    return Case(layers, {"input": torch.randn(2 if small else 8, length, width)}, mean_square)


class _Quantiser(nn.Module):
    """Nearest codes of a codebook, with gradients passed straight through."""

    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        self.codes = nn.Embedding(codes, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.permute(0, 2, 3, 1)
        flat = rows.reshape(-1, rows.shape[-1])
        distance = flat.pow(2).sum(1, keepdim=True) + self.codes.weight.pow(2).sum(1)
        nearest = (distance - 2 * flat @ self.codes.weight.t()).argmin(1)
        quantised = self.codes(nearest).view_as(rows)
        loss = F.mse_loss(quantised, rows.detach()) + 0.25 * F.mse_loss(rows, quantised.detach())
        return (rows + (quantised - rows).detach()).permute(0, 3, 1, 2), loss


class _CodedImages(nn.Module):
    def __init__(self, width: int, codes: int) -> None:
        super().__init__()

        def block(ins: int, outs: int) -> nn.Sequential:
            return nn.Sequential(
                nn.GroupNorm(8, ins), nn.SiLU(), nn.Conv2d(ins, outs, 3, padding=1)
            )

        self.down = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), block(width, width), nn.Conv2d(width, width, 4, 2, 1),
            block(width, width),
        )  # fmt: skip
        self.quantise = _Quantiser(codes, width)
        self.up = nn.Sequential(
            block(width, width), nn.Upsample(scale_factor=2), block(width, width),
            nn.ConvTranspose2d(width, width, 4, 2, 1), block(width, 3),
        )  # fmt: skip

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        quantised, loss = self.quantise(self.down(images))
        return self.up(quantised), loss


def coded_images(small: bool) -> Case:
    """VQ-VAE, its reconstruction and its loss of codes."""
    width, side, rows = (16, 16, 2) if small else (128, 64, 32)

    def loss(output: tuple[Tensor, Tensor]) -> Tensor:
        return output[0].float().pow(2).mean() + output[1].float()

    return Case(_CodedImages(width, 512), {"images": torch.randn(rows, 3, side, side)}, loss)
