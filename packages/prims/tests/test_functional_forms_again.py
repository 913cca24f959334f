"""An operator that writes to its argument and is defined again has a new functional twin."""

from __future__ import annotations

import torch
from dovetail_prims.graphs.functional_forms import functional_form, functional_form_named


def test_an_operator_that_is_defined_again():
    for factor in (1, 5):

        @torch.library.custom_op("twins_again::add_to", mutates_args={"dst"})
        def add_to(dst: torch.Tensor, src: torch.Tensor, factor: int = factor) -> None:
            dst.add_(src * factor)

        op = torch.ops.twins_again.add_to.default
        twin = functional_form(op, frozenset())
        assert twin is functional_form(op, frozenset())
        dst = torch.zeros(2)
        assert twin(dst, torch.ones(2)).tolist() == [factor, factor] and dst.tolist() == [0, 0]
        assert functional_form_named(twin._schema.name).op is op
