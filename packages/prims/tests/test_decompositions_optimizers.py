"""The fused steps of optimizers against PyTorch's kernels."""

import pytest
import torch
from dovetail_prims.decompositions import core_aten_table

aten = torch.ops.aten
SHAPES = ((3, 4), (5,), ())
ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


def sgd(momentum, dampening, nesterov, first):
    return {"momentum": momentum, "dampening": dampening, "nesterov": nesterov,
            "is_first_step": first}  # fmt: skip


STEPS = {
    "_fused_adam": (4, ADAM | {"amsgrad": False}),
    "_fused_adam amsgrad": (4, ADAM | {"amsgrad": True}),
    "_fused_adamw": (4, ADAM | {"amsgrad": True}),
    "_fused_sgd": (1, sgd(0.9, 0.2, False, False)),
    "_fused_sgd nesterov": (1, sgd(0.9, 0.0, True, False)),
    "_fused_sgd first": (1, sgd(0.9, 0.0, False, True)),
    "_fused_sgd plain": (0, sgd(0.0, 0.0, False, False)),
    "_fused_adagrad": (2, {"lr_decay": 0.1, "eps": 1e-10}),
}  # fmt: skip


def tensors(dtype):
    return [torch.rand(shape).to(dtype) + 0.1 for shape in SHAPES]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_fused_step(name, dtype):
    torch.manual_seed(0)
    kept, options = STEPS[name]
    lists = [tensors(dtype) for _ in range(kept + 2)]
    if name.startswith("_fused_adam") or name.startswith("_fused_adagrad"):
        steps = [torch.tensor(float(n + 1)) for n in range(len(SHAPES))]
        adam = not name.startswith("_fused_adagrad")
        if not adam:
            lists = lists[:3]
        elif options["amsgrad"]:
            lists = lists[:5]
        else:
            lists = [*lists[:4], []]
        lists.append(steps)
    else:
        lists = [*lists[:2], lists[2] if kept else []]
    base = name.split()[0]
    scaling = {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(0.0)}
    found = {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(1.0)}
    for extra in ({}, scaling, found):
        for weight_decay, maximize in ((0.0, False), (0.1, True)):
            for overload, rate in (("default", 0.1), ("tensor_lr", torch.tensor(0.1))):
                plain = {"lr": rate, "weight_decay": weight_decay, "maximize": maximize}
                own = [[x.clone() for x in part] for part in lists]
                theirs = [[x.clone() for x in part] for part in lists]
                getattr(getattr(aten, base + "_"), overload)(*theirs, **plain, **options, **extra)
                function = core_aten_table()[getattr(getattr(aten, base), overload)]
                results = function(*own, **plain, **options, **extra)
                for part, ours in enumerate(results):
                    if part == 1 and extra is found:
                        continue  # nobody reads gradients that are not finite
                    for x, y in zip(ours, theirs[part], strict=True):
                        torch.testing.assert_close(x, y)
