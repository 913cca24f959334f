"""Real architectures, small: one graph, no break, no recompile, equal to eager with gradients."""

from __future__ import annotations

import pytest
import torch
from model_pairs import assert_close, build

import dovetail
from dovetail.bench.models import architectures

MODELS = architectures()


def assert_one_graph(compiled: object) -> None:
    report = dovetail.report(compiled)
    assert report.graphs == 1, report.as_text()
    assert not report.breaks, report.as_text()
    assert not report.recompiles, report.as_text()


@pytest.mark.parametrize("name", MODELS)
def test_inference_equals_eager(name: str) -> None:
    case, twin = build(name, train=False)
    compiled = dovetail.compile(case.model, fullgraph=True)
    with torch.no_grad():
        expected = twin.tensors_of(twin.model(**twin.inputs))
        for _ in range(2):
            got = case.tensors_of(compiled(**case.inputs))
            assert len(got) == len(expected)
            for i, (g, e) in enumerate(zip(got, expected, strict=True)):
                assert_close(f"output {i}", g, e)
    assert_one_graph(compiled)


@pytest.mark.parametrize("name", MODELS)
def test_training_equals_eager(name: str) -> None:
    case, twin = build(name, train=True)
    compiled = dovetail.compile(case.model, fullgraph=True)
    for _ in range(2):
        for c, call in ((twin, twin.model), (case, compiled)):
            c.model.zero_grad(set_to_none=True)
            c.loss(call(**c.inputs)).backward()
        ours, theirs = dict(case.model.named_parameters()), dict(twin.model.named_parameters())
        for parameter in theirs:
            got, expected = ours[parameter].grad, theirs[parameter].grad
            assert (got is None) == (expected is None), parameter
            if got is not None and expected is not None:
                assert_close(parameter, got, expected)
        buffers = dict(twin.model.named_buffers())
        for buffer, value in case.model.named_buffers():
            assert_close(buffer, value, buffers[buffer])
    assert_one_graph(compiled)
