"""Short-time Fourier transforms of symbolic sizes, against PyTorch's."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from dovetail_guards.shape_env import Dim, ShapeEnv
from dovetail_guards.source import LocalSource, SizeSource
from dovetail_prims import from_real
from dovetail_prims.fake.fake_mode import FakeMode
from dovetail_prims.symbolic.image_forms import istft, stft
from dovetail_prims.symbolic.symbolic_forms import symbolic_form

WINDOW = torch.hann_window(16)
WAYS: list[dict[str, Any]] = [
    {"window": WINDOW},
    {"window": WINDOW, "normalized": True, "hop_length": 5},
    {"window": WINDOW[:12] + 0.1, "win_length": 12},
    {"center": False, "window": WINDOW + 0.1},
    {"window": WINDOW.double()},
]


def symbolic(real: torch.Tensor, env: ShapeEnv) -> torch.Tensor:
    sizes = [
        env.symint(env.create_size(n, SizeSource(LocalSource("x"), i), Dim.DYNAMIC))
        for i, n in enumerate(real.shape)
    ]
    return from_real(real, sizes=sizes)


@pytest.mark.parametrize("way", WAYS)
def test_there_and_back(way: dict[str, Any]) -> None:
    torch.manual_seed(0)
    dtype = way["window"].dtype
    for shape in ((70,), (3, 64)):
        x = torch.randn(shape, dtype=dtype)
        spectra = torch.stft(x, 16, **way, return_complex=True)
        env = ShapeEnv()
        with FakeMode():
            found = symbolic_form(
                torch.stft, [symbolic(x, env), 16], way | {"return_complex": True}
            )
        assert not list(env.specialized())
        assert tuple(int(n) for n in found._sizes) == spectra.shape
        assert tuple(int(n) for n in found._strides) == spectra.stride()
        for length in (None, shape[-1] - 9, shape[-1] - 3):
            options = way | {"length": length}
            wanted = torch.istft(spectra, 16, **options)
            got = istft(spectra, 16, **options)
            torch.testing.assert_close(got, wanted)
            assert got.stride() == wanted.stride()


def test_a_longer_signal_ends_in_silence() -> None:
    window = torch.ones(16)
    spectra = torch.stft(
        torch.randn(2, 64), 16, 16, window=window, center=False, return_complex=True
    )
    options: dict[str, Any] = {"hop_length": 16, "window": window, "center": False, "length": 70}
    got = istft(spectra, 16, **options)
    torch.testing.assert_close(got, torch.istft(spectra, 16, **options))


def test_what_is_heard_of_both_sides() -> None:
    x = torch.randn(2, 64)
    spectra = torch.stft(x, 16, window=WINDOW, onesided=False, return_complex=True)
    got = istft(spectra, 16, window=WINDOW, onesided=False)
    torch.testing.assert_close(got, torch.istft(spectra, 16, window=WINDOW, onesided=False))


def test_what_is_pytorchs() -> None:
    x = torch.randn(2, 64)
    assert stft(x, 16, window=WINDOW, return_complex=True) is NotImplemented  # no symbol
    spectra = torch.stft(x, 16, window=WINDOW, return_complex=True)
    for options in ({"n_fft": 18}, {"n_fft": 16, "hop_length": 20}, {"n_fft": 16, "window": x[0]}):
        with pytest.raises(RuntimeError):
            torch.istft(spectra, **options)
        assert istft(spectra, **options) is NotImplemented
    with pytest.raises(RuntimeError, match="window overlap add min"):
        istft(spectra, 16, window=WINDOW, center=False)


def test_transforms_of_complex_numbers_are_laid_out_as_eagers() -> None:
    x = torch.randn(2, 3, 4, 5, dtype=torch.complex64)
    for order in itertools.permutations(range(4)):
        for dims in ([1], [3, 0], [0, 2, 1]):
            wanted = torch.ops.aten._fft_c2c(x.permute(order), dims, 0, True)
            env = ShapeEnv()
            with FakeMode():
                turned = symbolic(x, env).permute(order)
                found = torch.ops.aten._fft_c2c(turned, dims, 0, True)
            assert not list(env.specialized())
            assert tuple(int(n) for n in found._strides) == wanted.stride()
