"""Models around cuDNN's recurrent layers, for `gpu_suite.py --model held_out_recurrent:NAME`.

Each function takes `small` (a size fit for a test) and gives a `Case`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from held_out import token_ids
from torch import Tensor, nn

from dovetail.bench.models import Case


class LanguageModel(nn.Module):
    """Tied embeddings around an LSTM, as before there was attention."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.LSTM(width, width, layers, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, length) to logits of each next token."""
        y, _ = self.layers(self.embedding(ids))
        logits: Tensor = self.head(F.gelu(self.norm(y)))
        return logits


class Recogniser(nn.Module):
    """Convolutions over frames, then GRUs in both directions, with norms between."""

    def __init__(self, features: int, width: int, layers: int, letters: int) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(features, width, 5, 2, 2), nn.BatchNorm1d(width), nn.SiLU(),
            nn.Conv1d(width, width, 5, 2, 2), nn.BatchNorm1d(width), nn.SiLU(),
        )  # fmt: skip
        self.layers = nn.ModuleList(
            nn.GRU(width, width // 2, batch_first=True, bidirectional=True) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, letters)

    def forward(self, frames: Tensor) -> Tensor:
        """(batch, features, frames) to log-probabilities of letters."""
        y = self.front(frames).transpose(1, 2)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            y = y + layer(norm(y))[0]
        return F.log_softmax(self.head(y).float(), -1)


class Forecaster(nn.Module):
    """An encoder and a decoder of LSTMs, with attention of the second to the first."""

    def __init__(self, series: int, width: int) -> None:
        super().__init__()
        self.encoder = nn.LSTM(series, width, 2, batch_first=True)
        self.decoder = nn.LSTM(series, width, 2, batch_first=True)
        self.attention = nn.MultiheadAttention(width, 8, batch_first=True)
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, series))

    def forward(self, past: Tensor, known: Tensor) -> Tensor:
        """What comes, of what was and of what is known of it: (batch, steps, series)."""
        keys, state = self.encoder(past)
        queries, _ = self.decoder(known, state)
        seen, _ = self.attention(queries, keys, keys, need_weights=False)
        forecast: Tensor = self.head(torch.cat([queries, seen], -1))
        return forecast


def lstm_language_model(small: bool) -> Case:
    """Batch 32, 128 tokens, width 1024, 2 layers."""
    sizes = (100, 32, 1) if small else (10000, 1024, 2)
    ids = token_ids(2, 9, 100) if small else token_ids(32, 128, 10000)
    return Case(
        LanguageModel(*sizes),
        {"ids": ids},
        lambda y: F.cross_entropy(y.float().flatten(0, 1), ids.to(y.device).flatten()),
    )


def speech_gru(small: bool) -> Case:
    """Batch 16, 800 frames of 80 features, width 512, 4 layers."""
    model = Recogniser(8, 32, 2, 20) if small else Recogniser(80, 512, 4, 64)
    frames = torch.randn(2, 8, 24) if small else torch.randn(16, 80, 800)
    return Case(model, {"frames": frames}, lambda y: y.square().mean())


def forecaster(small: bool) -> Case:
    """Batch 64, 96 steps behind and 32 ahead of 32 series, width 256."""
    model = Forecaster(4, 32) if small else Forecaster(32, 256)
    rows, behind, ahead, series = (2, 9, 4, 4) if small else (64, 96, 32, 32)
    given = {"past": torch.randn(rows, behind, series), "known": torch.randn(rows, ahead, series)}
    return Case(model, given, lambda y: y.float().square().mean())
