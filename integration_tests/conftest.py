"""Fixtures of the whole-pipeline tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Each test starts from the same random state and leaves grad mode on."""
    torch.manual_seed(0)
    yield
    assert torch.is_grad_enabled()
