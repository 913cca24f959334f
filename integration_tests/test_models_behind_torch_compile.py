"""Real architectures, small, through `torch.compile(backend="dovetail")`: values and gradients are
eager's, and no graph runs uncompiled."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from dovetail_capture.reporting.failures import InternalErrorWarning
from model_pairs import assert_close, build

from dovetail.bench.models import architectures


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.long
@pytest.mark.parametrize("name", architectures())
def test_a_model_behind_torch_compile(name: str) -> None:
    """Gradients of two training steps, then outputs without gradients."""
    case, twin = build(name, train=True)
    compiled = torch.compile(case.model, backend="dovetail", dynamic=False)  # noqa: TID251
    with warnings.catch_warnings():
        warnings.simplefilter("error", InternalErrorWarning)
        for c, call in ((twin, twin.model), (case, compiled)):
            for _ in range(2):
                c.model.zero_grad(set_to_none=True)
                c.loss(call(**c.inputs)).backward()
        theirs = dict(twin.model.named_parameters())
        for parameter, ours in case.model.named_parameters():
            expected = theirs[parameter].grad
            assert (ours.grad is None) == (expected is None), parameter
            if ours.grad is not None and expected is not None:
                assert_close(parameter, ours.grad, expected)
        case.model.eval()
        twin.model.eval()
        with torch.no_grad():
            expected_outputs = twin.tensors_of(twin.model(**twin.inputs))
            outputs = case.tensors_of(compiled(**case.inputs))
        for i, (got, wanted) in enumerate(zip(outputs, expected_outputs, strict=True)):
            assert_close(f"output {i}", got, wanted)
