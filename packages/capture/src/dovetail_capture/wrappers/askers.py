"""Code that a wrapper of a module answers otherwise than other code.

The rule: a wrapper answers by what it is. It answers by the name of the module that asks only where
code outside of the program was written for torch.compile's wrapper, or for none, and goes wrong
with a true answer; each such module stands in one of the sets below, which says what it asks. Only
`OptimizedModule` may ask `is_asked_by`. (Of a wrapped function one such question is answered in C:
`switched_class` in `csrc/wrappers.h`, its class, to what looks for sources and signatures.)
"""

from __future__ import annotations

import sys
from types import FrameType

import torch

# Code that makes parameters' names from those of children, or looks for torch.compile's wrapper in
# order to find its name within them: to it, this is the wrapped module.
READS_NAMES = frozenset(
    {
        "accelerate.big_modeling",
        "accelerate.hooks",
        "accelerate.utils.modeling",
        "torch.distributed.checkpoint.state_dict",
        "lightning.pytorch.strategies.model_parallel",
        "pytorch_lightning.strategies.model_parallel",
    }
)
# Code that expects names as torch.compile's wrapper gives them of whatever has an `_orig_mod`.
EXPECTS_PREFIX = frozenset({"peft.utils.hotswap"})
# FSDP walks down by children's names, and leaves out this one: of another wrapper with clean names.
FSDP, LEFT_OUT = frozenset({"torch.distributed.fsdp._common_utils"}), "_dmp_wrapped_module"
_BETWEEN = ("abc", torch.nn.Module.__module__)
# Code that gives a module a class with a property for one of its parameters: the wrapper has none.
CHANGES_CLASS = frozenset({"torch.nn.utils.parametrize"})


def is_asked_by(modules: frozenset[str], depth: int) -> bool:
    """Whether the frame `depth` above this one (1: the caller) is of code of one of these modules,
    through methods of `nn.Module` or an abstract class's `__instancecheck__` if need be."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") in modules


def torchs_class() -> type | None:
    """torch.compile's class of wrappers, where the program has loaded it."""
    module = sys.modules.get("torch._dynamo.eval_frame")
    return getattr(module, "OptimizedModule", None)
