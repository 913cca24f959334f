"""Fixtures of the whole-pipeline tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def grad_mode_stays_on() -> Iterator[None]:
    """Each test leaves grad mode as it found it."""
    yield
    assert torch.is_grad_enabled()
