"""torch.compile's settings: each row of the table, in `dovetail.config` and as an option."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dovetail
from dovetail import config
from dovetail.settings.store import Settings
from dovetail.settings.table import TABLE, Teller
from dovetail.settings.torch_settings import (
    ChangesNothing,
    Refused,
    SetsArgument,
    SetsOption,
    SetsSwitch,
    Setting,
)

_OTHER_VALUES: dict[type, Any] = {bool: None, int: 3, float: 0.5, str: "other", type(None): "other"}


def other_value(setting: Setting) -> Any:
    """A value of the same type that is not the default."""
    default = setting.default
    return not default if isinstance(default, bool) else _OTHER_VALUES.get(type(default), [1])


@pytest.fixture(autouse=True)
def fresh_teller(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    config.SETTINGS.clear()  # what other tests assigned
    monkeypatch.setattr(config.SETTINGS, "_teller", Teller())
    yield
    assert not config.SETTINGS.given()


def rows(kind: type) -> list[str]:
    return [name for name, row in TABLE.items() if isinstance(row.meaning, kind)]


def test_no_two_settings_of_one_name() -> None:
    from dovetail.settings.torch_settings import TORCH_SETTINGS

    names = [name for rows in TORCH_SETTINGS.values() for _, row in rows for name in row]
    assert sorted(names) == sorted(TABLE)
    assert all(row.name == name for name, row in TABLE.items())


@pytest.mark.parametrize("name", TABLE)
def test_the_default_is_read_and_set_in_silence(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with config.patch(name, TABLE[name].default):
            assert config.setting(name) == TABLE[name].default


@pytest.mark.parametrize("name", rows(ChangesNothing))
def test_what_changes_nothing_warns_once_with_the_reason(name: str) -> None:
    value, row = other_value(TABLE[name]), TABLE[name]
    with pytest.warns(UserWarning, match="changes nothing here") as told:
        with config.patch({name: value}):
            assert config.setting(name) == value
    assert row.meaning.reason in str(told[0].message)  # type: ignore[union-attr]
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with config.patch({name: value}):
            pass
    assert config.setting(name) == row.default


@pytest.mark.parametrize("name", rows(Refused))
def test_what_cannot_be_had_is_refused_with_the_reason(name: str) -> None:
    row = TABLE[name]
    with pytest.raises(ValueError, match=f"{name}=.*cannot be honoured") as refused:
        with config.patch({name: other_value(row)}):
            pass
    assert row.meaning.reason in str(refused.value)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", rows(SetsOption))
def test_options_of_the_process(name: str) -> None:
    row, value = TABLE[name], other_value(TABLE[name])
    field = row.meaning.field  # type: ignore[union-attr]
    with config.patch({name: value}):
        assert config.options_set() == {field: value}
        options = _options_of(dovetail.compile(torch.nn.Identity()))
        assert getattr(options, field) == value
    with pytest.raises(TypeError, match=name):
        config.SETTINGS.set({name: "text"})


@pytest.mark.parametrize("name", rows(SetsSwitch))
def test_switches_of_the_process(name: str) -> None:
    from dovetail_capture.environment import torch_switches

    switch = TABLE[name].meaning.switch  # type: ignore[union-attr]
    with config.patch({name: True}):
        assert getattr(torch_switches._Own.switches, switch) is True
    assert getattr(torch_switches._Own.switches, switch) is False


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [
        ("automatic_dynamic_shapes", False),
        ("assume_static_by_default", True),
        ("dynamic_shapes", False),
    ],
)
def test_arguments_of_the_process(name: str, dynamic: bool) -> None:
    assert set(rows(SetsArgument)) == {
        "automatic_dynamic_shapes",
        "assume_static_by_default",
        "dynamic_shapes",
    }
    with config.patch({name: False}):
        assert config.default_dynamic() is dynamic
    assert config.default_dynamic() is None


@pytest.mark.parametrize("name", [n for n, row in TABLE.items() if row.module == "inductor"])
def test_inductors_names_are_options(name: str) -> None:
    row, value = TABLE[name], other_value(TABLE[name])
    if isinstance(row.meaning, Refused):
        with pytest.raises(ValueError, match="cannot be honoured"):
            dovetail.compile(torch.nn.Identity(), options={name: value})
    elif isinstance(row.meaning, SetsOption):
        options = _options_of(dovetail.compile(torch.nn.Identity(), options={name: value}))
        assert getattr(options, row.meaning.field) == value
    else:
        with pytest.warns(UserWarning, match="changes nothing") as told:
            dovetail.compile(torch.nn.Identity(), options={name: value})
        assert told[0].filename == __file__


def _options_of(compiled: Any) -> Any:
    return compiled.capture_context.backend.options


def test_modes_and_options_come_before_the_process() -> None:
    with config.patch({"triton.cudagraphs": False, "recompile_limit": 3}):
        assert _options_of(dovetail.compile(torch.nn.Identity(), mode="reduce-overhead")).cudagraphs
        options = {"recompile_limit": 5}
        compiled: Any = dovetail.compile(torch.nn.Identity(), options=options)
        assert _options_of(compiled).recompile_limit == 5
    both = {"max_autotune": True, "max_autotune_gemm": False}
    assert _options_of(dovetail.compile(torch.nn.Identity(), options=both)).max_autotune


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="'recompile_limit'"):
        config.recompile_limitt = 3
    with pytest.raises(AttributeError, match=r"'triton\.cudagraphs'"):
        _ = config.triton.cudagraph
    with pytest.raises(AttributeError, match="'suppress_errors'"):
        config.patch(supress_errors=True)
    with pytest.raises(ValueError, match="'epilogue_fusion'"):
        dovetail.compile(torch.sin, options={"epilog_fusion": True})
    with pytest.raises(ValueError, match=r"dovetail\.config\.suppress_errors"):
        dovetail.compile(torch.sin, options={"suppress_errors": True})


def test_groups_aliases_and_copies() -> None:
    assert dovetail.compiler.config is config
    config.triton.cudagraphs = True
    assert config.triton.cudagraphs is True
    assert config.get_config_copy()["triton.cudagraphs"] is True
    assert "cudagraphs" in dir(config.triton) and "triton" in dir(config)
    config.SETTINGS.clear()
    with config.patch(cache_size_limit=3):
        assert config.recompile_limit == config.cache_size_limit == 3


def test_patch_is_a_decorator_that_nests() -> None:
    @dovetail.patch_dynamo_config(recompile_limit=2)
    def inner(depth: int) -> list[int]:
        return [config.recompile_limit, *(inner(depth - 1) if depth else [])]

    with config.patch("recompile_limit", 4):
        assert inner(2) == [2, 2, 2]
        with pytest.raises(KeyError), config.patch(recompile_limit=6):
            raise KeyError
        assert config.recompile_limit == 4
    assert config.recompile_limit == 8


def test_threads_lose_nothing() -> None:
    settings = Settings(lambda given: None)

    def work(name: str) -> None:
        for _ in range(300):
            settings.restore(settings.set({name: True}))
        settings.set({name: True})

    names = ("max_autotune", "freezing", "triton.cudagraphs")
    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(settings.given()) == set(names)
