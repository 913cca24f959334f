"""What first calls import: PyTorch's own compiler is none of ours, and takes seconds to import."""

from __future__ import annotations

import subprocess
import sys

# Functions of an image and of rows, forward and backward; of each PyTorch's own rule for shapes
# (its meta kernel) is written in Python, or once was.
FUNCTIONS = (
    "F.interpolate(image, scale_factor=2, mode='bilinear')",
    "F.interpolate(image, size=3, mode='bicubic')",
    "F.grid_sample(image, torch.rand(2, 3, 3, 2), align_corners=False)",
    "F.group_norm(image, 2)",
    "F.group_norm(image.contiguous(memory_format=torch.channels_last), 2).square()",
    "F.prelu(image, torch.full((4,), 0.1))",
    "F.unfold(image, 3)",
    "F.fold(F.unfold(image, 2), (4, 4), 2)",
    "F.binary_cross_entropy(rows.sigmoid(), target)",
    "F.binary_cross_entropy_with_logits(rows, target, pos_weight=target[0])",
    "F.smooth_l1_loss(rows, target)",
    "F.huber_loss(rows, target)",
    "F.soft_margin_loss(rows, target)",
    "F.multi_margin_loss(rows, torch.tensor([1, 2, 0, 1]))",
    "F.logsigmoid(rows)",
    "F.multilabel_soft_margin_loss(rows, target)",
    "torch.zeros(5, 6).index_add(0, torch.tensor([1, 2, 0, 1]), rows)",
    "(rows > 0).count_nonzero() * rows",
    "rows[torch.tril_indices(4, 4)[0]]",
    "torch.deg2rad(rows) + torch.special.i0e(rows) + torch.special.entr(target)",
    "torch.addmv(rows[:, 0], rows, rows[0]) + torch.addr(rows, rows[:, 0], rows[0]).sum()",
    "torch.hann_window(6) * torch.normal(0.0, 1.0, (4, 6)) * rows",
    "torch.block_diag(rows, rows)",
    "torch._weight_norm(rows, rows[:, :1].detach().clone(), 0)",
    "torch.view_as_complex(rows.view(4, 3, 2)).abs()",
    "torch.view_as_complex(rows.view(4, 3, 2)).std(0)",
)
CHILD = """
import sys, warnings
import torch, torch.nn.functional as F
import dovetail
warnings.simplefilter("ignore")
torch.manual_seed(0)
for text in sys.argv[1:]:
    image = torch.randn(2, 4, 4, 4, requires_grad=True)
    rows = torch.randn(4, 6, requires_grad=True)
    target = torch.rand(4, 6)
    function = eval("lambda image, rows, target: " + text)
    compiled = dovetail.compile(function, fullgraph=True, backend="aot_eager")
    compiled(image, rows, target).sum().backward()
    if any(name in sys.modules for name in ("torch._dynamo", "torch._inductor")):
        sys.exit(f"imported by {text}")
"""


def test_no_first_call_imports_the_compiler_of_pytorch() -> None:
    """In a process of its own, one function after the other."""
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, *FUNCTIONS], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
