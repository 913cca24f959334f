"""Where buffers lie: in the slab, or, where the slab would raise the peak, by themselves."""

import torch
from dovetail_runtime import Allocate


def test_a_large_buffer_that_dies_before_large_results_is_freed(check):
    def fn(x, w):
        early = torch.relu(x) @ w  # a megabyte and more, dead before the results below are made
        small = early.sum(1)
        return [small[:, None] * k + x[:, :1] for k in (w[0], w[1] + 1, w[2])] + [small.sum()]

    checked = check(fn, torch.randn(600, 1024), torch.randn(1024, 1024), rtol=1e-3, atol=1e-1)
    assert checked.plan.slab_bytes == () or checked.plan.slab_bytes[0][1] < 1 << 20


def test_buffers_live_in_the_slab_otherwise(check):
    def fn(x, w):
        return (torch.relu(torch.relu(x) @ w) @ w).sum()

    checked = check(fn, torch.randn(600, 1024), torch.randn(1024, 1024), rtol=1e-2, atol=1e-1)
    own = [s for s in checked.plan.steps if isinstance(s, Allocate) and s.slab_offset is None]
    assert len(own) == 1  # the result
