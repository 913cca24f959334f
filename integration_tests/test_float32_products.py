"""`float32_products`, by which racecheck sees programs that multiply halves."""

from __future__ import annotations

import torch
from float32_products import float32_products
from torch import Tensor

import dovetail


def test_halves_are_multiplied_in_float32_and_rounded() -> None:
    """Also into `out`, in a compiled graph and in its backward; and not outside of the context."""
    torch.manual_seed(0)
    a, b = torch.randn(4, 64).bfloat16(), torch.randn(64, 6).bfloat16()
    image = torch.randn(2, 3, 8, 8).bfloat16()
    weight = torch.randn(5, 3, 3, 3).bfloat16().requires_grad_()

    def products(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        out = torch.empty(6, 4, dtype=a.dtype).t()
        torch.mm(a, b, out=out)
        image_out = torch.nn.functional.conv2d(image, weight)
        (grad,) = torch.autograd.grad(image_out.float().square().sum(), weight)
        return torch.addmm(b[0], a, b), out, (a[None] @ b[None])[0], image_out, grad

    plain = products(a, b)
    with float32_products():
        widened = products(a, b)
        compiled = dovetail.compile(lambda a, b: torch.relu(a @ b))(a, b)
    # What eager's own gradient is worth depends on what the CPU knows of halves.
    image_out = torch.nn.functional.conv2d(image.float(), weight.detach().float()).bfloat16()
    slopes = (2 * image_out.float()).bfloat16().float()
    grad = torch.nn.grad.conv2d_weight(image.float(), weight.shape, slopes).bfloat16()
    wanted = (*plain[:-1], grad)
    for one, other, near in zip(plain, widened, wanted, strict=True):
        assert one.dtype == other.dtype and one.stride() == other.stride()
        torch.testing.assert_close(near, other)
    exact = (a.float() @ b.float()).bfloat16()
    assert torch.equal(widened[1], exact) and torch.equal(compiled, exact.relu())
    calls: list[str] = []
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm", lambda a, b: calls.append("mm") or a.new_zeros(4, 6), "BackendSelect")
    try:
        torch.mm(a, b)
    finally:
        library._destroy()
    assert calls == ["mm"]  # (the context left the operator free for others)
