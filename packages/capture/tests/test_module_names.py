"""Names of parameters and modules, and state dicts, of optimized modules."""

from __future__ import annotations

import copy
import inspect
import typing

import dovetail_capture as dc
import pytest
import torch
from torch import nn
from torch.nn.utils import prune


def backend(gm, inputs):
    return gm.forward


def optimize(module, **settings):
    return dc.optimize(module, backend, **settings)


def prefixed(module):
    return optimize(module, state_dict_prefix=True)


FORMS = pytest.mark.parametrize("form", [optimize, prefixed], ids=["clean", "prefixed"])


def net():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.1))


class Nested(nn.Module):
    """A module of which a part is optimized, and may own parameters itself."""

    def __init__(self, form):
        super().__init__()
        self.part = form(net())
        self.head = form(nn.Linear(3, 1))

    def forward(self, x):
        return self.head(self.part(x))


def is_equal(left, right):
    return list(left) == list(right) and all(torch.equal(left[k], right[k]) for k in left)


def test_names_are_those_of_the_wrapped_module():
    plain = net()
    module = optimize(plain)
    for walk in ("named_parameters", "named_buffers"):
        expected = [(name, id(x)) for name, x in getattr(plain, walk)()]
        assert [(name, id(x)) for name, x in getattr(module, walk)()] == expected
    assert next(module.modules()) is module
    assert [(n, m) for n, m in module.named_modules() if m is not module] == [
        *plain.named_modules()
    ]
    outer, expected = Nested(optimize), Nested(lambda module: module)
    assert [n for n, _ in outer.named_parameters()] == [n for n, _ in expected.named_parameters()]
    assert {n for n, _ in outer.named_modules()} == {n for n, _ in expected.named_modules()}
    assert list(outer.state_dict()) == list(expected.state_dict())
    assert list(outer.state_dict()._metadata) == list(expected.state_dict()._metadata)
    optimizer = torch.optim.SGD(outer.named_parameters(), 0.1)
    assert optimizer.param_groups[0]["param_names"][0] == "part.0.weight"


def test_prefix_by_setting():
    plain = net()
    module = prefixed(plain)
    assert [n for n, _ in module.named_children()] == ["_orig_mod"]
    assert list(module.state_dict()) == ["_orig_mod." + k for k in plain.state_dict()]
    assert [n for n, _ in module.named_modules()][:2] == ["", "_orig_mod"]
    for copied in (copy.deepcopy(module), copy.copy(module)):
        assert list(copied.state_dict()) == list(module.state_dict())
    module._orig_mod = other = net()
    assert module.get_submodule("_orig_mod") is other is module._orig_mod


@FORMS
@pytest.mark.parametrize("source", [optimize, prefixed, lambda m: m], ids=["c", "p", "plain"])
@pytest.mark.parametrize("assign", [False, True])
def test_both_forms_are_loaded(form, source, assign):
    for make in (lambda f: f(net()), Nested):
        module, other = make(form), make(source)
        saved = other.state_dict()
        before = dict(saved)
        assert (
            str(module.load_state_dict(saved, assign=assign)) == "<All keys matched successfully>"
        )
        assert dict(saved) == before  # what is loaded is not written to
        inner = {k.replace("_orig_mod.", ""): v for k, v in module.state_dict().items()}
        assert is_equal(inner, {k.replace("_orig_mod.", ""): v for k, v in saved.items()})
        first = next(module.parameters())
        assert (first.data_ptr() == next(other.parameters()).data_ptr()) == assign


@pytest.mark.parametrize("given", ["", "_orig_mod."])
@pytest.mark.parametrize("nested", [False, True])
def test_errors_name_keys_as_the_wrapped_module_would(given, nested):
    saved = dict(net().state_dict())
    del saved["0.bias"]
    saved |= {"zz": torch.ones(1), "0.weight": torch.ones(5)}
    place = "0." if nested else ""
    saved = {f"{place}{given}{name}": value for name, value in saved.items()}
    module = nn.Sequential(optimize(net())) if nested else optimize(net())
    with pytest.raises(RuntimeError) as info:
        module.load_state_dict(saved)
    assert f'Missing key(s) in state_dict: "{place}0.bias".' in str(info.value)
    assert f'Unexpected key(s) in state_dict: "{place}zz".' in str(info.value)
    assert f"size mismatch for {place}0.weight" in str(info.value)
    del saved[f"{place}{given}0.weight"]
    missing, unexpected = module.load_state_dict(saved, strict=False)
    assert set(missing) == {f"{place}0.bias", f"{place}0.weight"} and unexpected == [f"{place}zz"]


def test_versions_of_what_was_saved_are_seen():
    """A batch norm of an old version has no counter, which loading then does not miss."""

    def seen(module, saved):
        seen = []
        module._orig_mod[1]._register_load_state_dict_pre_hook(
            lambda state, prefix, metadata, *_: seen.append(metadata.get("version"))
        )
        module.load_state_dict(saved)
        return seen

    saved = net().state_dict()
    for form in (optimize, prefixed):
        assert seen(form(net()), saved) == [2]
        assert seen(form(net()), prefixed(net()).state_dict()) == [2]


@FORMS
def test_hooks_of_state_dicts_run_once(form):
    inner = net()
    module, ran = form(inner), []
    inner.register_state_dict_pre_hook(lambda *_: ran.append("pre"))
    inner.register_state_dict_post_hook(lambda *_: ran.append("post"))
    inner.register_load_state_dict_pre_hook(lambda *_: ran.append("load"))
    inner.register_load_state_dict_post_hook(lambda *_: ran.append("loaded"))
    module.register_state_dict_post_hook(lambda m, *_: ran.append("wrapper"))
    module.load_state_dict(module.state_dict())
    assert sorted(ran) == ["load", "loaded", "post", "pre", "wrapper"]
    ran.clear()
    outer = nn.Sequential(module)
    outer.load_state_dict(outer.state_dict())
    assert sorted(ran) == ["load", "loaded", "post", "pre", "wrapper"]


def test_methods_of_the_wrapped_module_are_honoured():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.modes = nn.Parameter(torch.ones(2)), []

        def forward(self, x):
            return x * self.weight

        def state_dict(self, *args, **kwargs):
            return {"mine": 1, **super().state_dict(*args, **kwargs)}

        def load_state_dict(self, state_dict, strict=True):
            self.loaded = state_dict.pop("mine")
            return super().load_state_dict(state_dict, strict=strict)

        def train(self, mode=True):
            self.modes.append(mode)
            return super().train(mode)

    own = Own()
    module = optimize(own)
    saved = module.state_dict()
    assert list(saved) == ["mine", "weight"]
    module.load_state_dict(saved)
    module.eval()
    nn.Sequential(module).train()
    assert own.loaded == 1 and own.modes == [False, True]


def test_what_is_registered_is_registered_with_the_wrapped_module():
    inner = net()
    module = optimize(inner)
    module.register_buffer("steps", torch.zeros(1))
    module.register_parameter("scale", nn.Parameter(torch.ones(1)))
    module.add_module("more", nn.Linear(1, 1))
    module.extra = nn.Linear(1, 1)
    assert {"steps", "scale", "more.weight", "extra.bias"} <= set(module.state_dict())
    assert inner.steps is module.steps and inner.more is module.get_submodule("more")
    applied = []
    module.apply(applied.append)
    assert inner in applied and applied[-1] is module
    module.to(torch.float64)
    assert {p.dtype for p in inner.parameters()} == {torch.float64}
    del inner[2]
    assert [n for n, _ in module.named_modules()][2:] == ["0", "1", "2", "3"] and len(module) == 4


class Scaled(nn.Module):
    """A module with parameters and buffers of its own beside those of its parts."""

    def __init__(self):
        super().__init__()
        self.scale, self.part = nn.Parameter(torch.ones(2)), nn.Linear(2, 2)
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x):
        return self.part(x) * self.scale + self.shift


@FORMS
@pytest.mark.parametrize("nested", [False, True])
def test_functional_calls_put_tensors_in_the_place_of_named_ones(form, nested):
    inner = Scaled()
    module = nn.Sequential(form(inner)) if nested else form(inner)
    given = {name: torch.full_like(x, 2.0) for name, x in module.named_parameters()}
    kept, x = inner.scale, torch.ones(3, 2)
    got = torch.func.functional_call(module, given, x)
    assert torch.equal(got, (x * 2).sum(1, keepdim=True).expand(3, 2) * 2 + 2 * 2 + 1)
    assert inner.scale is kept
    loss = torch.func.grad(lambda p: torch.func.functional_call(module, p, x).sum())
    assert torch.equal(next(iter(loss(given).values())), torch.full((2,), 18.0))


def test_an_ensemble_of_optimized_modules():
    parts = [optimize(Scaled()) for _ in range(2)]
    parameters, buffers = torch.func.stack_module_state(parts)
    base, x = optimize(Scaled()), torch.ones(3, 2)
    got = torch.vmap(lambda p, b: torch.func.functional_call(base, (p, b), x))(parameters, buffers)
    torch.testing.assert_close(got, torch.stack([part(x) for part in parts]))


def test_passes_that_move_a_parameter():
    """Pruning and the older norms of weights compute a parameter of another one in a hook."""
    inner = nn.Linear(2, 2)
    module = optimize(inner)
    prune.l1_unstructured(module, "weight", 0.5)
    assert [name for name, _ in module.named_parameters()] == ["bias", "weight_orig"]
    assert torch.equal(module(torch.zeros(1, 2)), inner.bias[None])
    assert int((inner.weight == 0).sum()) == 2
    with pytest.raises(ValueError, match="does not have a parameter"):
        nn.utils.parametrizations.weight_norm(optimize(nn.Linear(2, 2)))
    assert module.get_buffer("weight_mask") is inner.weight_mask
    assert nn.Sequential(module).get_parameter("0.bias") is inner.bias


def test_an_attribute_of_the_class_is_set_on_the_wrapper():
    """Some programs wrap `state_dict` and `forward` of whatever module they are given."""
    inner = net()
    module = optimize(inner)
    whole = module.state_dict
    module.state_dict = lambda: {k: v for k, v in whole().items() if k.startswith("0.")}
    assert list(module.state_dict()) == ["0.weight", "0.bias"] and len(inner.state_dict()) == 7
    run = module.forward
    module.forward = lambda x: run(x) + 1
    inner.eval()
    x = torch.ones(2, 2)
    assert torch.equal(module(x), inner(x) + 1)


def test_averaged_copies_follow():
    torch.manual_seed(0)
    module = optimize(nn.Linear(2, 1))
    averaged = torch.optim.swa_utils.AveragedModel(module)
    kept = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        module(torch.ones(3, 2)).sum().backward()
        optimizer.step()
        averaged.update_parameters(module)
        for mine, theirs in zip(
            kept.state_dict().values(), module.state_dict().values(), strict=True
        ):
            mine.lerp_(theirs, 0.5)
    assert list(averaged.state_dict()) == ["n_averaged", "module.weight", "module.bias"]
    assert not torch.equal(kept.weight, module.weight) and isinstance(kept, dc.OptimizedModule)
    x = torch.ones(1, 2)
    assert torch.equal(kept(x), nn.functional.linear(x, kept.weight, kept.bias))


def test_signature_of_a_module_is_its_forwards():
    class Model(nn.Module):
        def forward(self, input_ids: torch.Tensor, mask: bool = False) -> torch.Tensor:
            "What it does."
            return input_ids if mask else input_ids + 1

    model = Model()
    module = optimize(model)
    expected = inspect.signature(model.forward)
    assert inspect.signature(module) == inspect.signature(module.forward) == expected
    assert (module.forward.__name__, module.forward.__doc__) == ("forward", "What it does.")
    assert module.forward.__wrapped__ == model.forward
    assert typing.get_type_hints(module.forward) == typing.get_type_hints(model.forward)
    assert inspect.signature(dc.OptimizedModule)  # of the class itself
    assert inspect.signature(optimize(model.forward)) == expected
