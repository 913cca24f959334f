"""Settings of torch that kernels obey, changed in a captured frame: each graph runs as they are in
eager mode at its place, and the program leaves and reads them as eager mode does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from dovetail_capture import export, optimize
from dovetail_capture.errors import CaptureError

BACKENDS = torch.backends
PLACE = torch.tensor([9])
LAYER = torch.nn.LSTM(2, 3)


def settings() -> tuple[Any, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_num_threads(),
        BACKENDS.cudnn.enabled,
        BACKENDS.cudnn.benchmark,
        BACKENDS.mkldnn.enabled,
        BACKENDS.cuda.matmul.allow_tf32,
        torch.get_float32_matmul_precision(),
    )


def put_back(before: tuple[Any, ...]) -> None:
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    torch.set_num_threads(before[2])
    BACKENDS.cudnn.enabled, BACKENDS.cudnn.benchmark, BACKENDS.mkldnn.enabled = before[3:6]
    torch.set_float32_matmul_precision(before[7])
    BACKENDS.cuda.matmul.allow_tf32 = before[6]


@pytest.fixture(autouse=True)
def as_they_were() -> Iterator[None]:
    before = settings()
    yield
    put_back(before)


def _deterministic(x, look):
    torch.use_deterministic_algorithms(True, warn_only=True)
    return (
        look(x),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_deterministic_debug_mode(),
    )


def _deterministic_for_a_block(x, look):
    torch.use_deterministic_algorithms(True)
    try:
        return look(x) + 1
    finally:
        torch.use_deterministic_algorithms(False)


def _deterministic_at_the_end(x, look):
    y = look(x)
    torch.use_deterministic_algorithms(True)
    return y


def _deterministic_alone(x, look):
    torch.use_deterministic_algorithms(True)


def _flags_for_a_block(x, look):
    with BACKENDS.cudnn.flags(enabled=False, benchmark=True):
        y = look(x)
    return y, BACKENDS.cudnn.enabled


def _flags_by_assignment(x, look):
    BACKENDS.cudnn.benchmark = not BACKENDS.cudnn.benchmark
    BACKENDS.mkldnn.enabled = False
    return look(x), BACKENDS.cudnn.benchmark, BACKENDS.mkldnn.enabled


def _tf32(x, look):
    BACKENDS.cuda.matmul.allow_tf32 = True
    return look(x), BACKENDS.cuda.matmul.allow_tf32


def _precision(x, look):
    torch.set_float32_matmul_precision("high")
    return look(x), torch.get_float32_matmul_precision()


def _tf32_twice(x, look):
    BACKENDS.cuda.matmul.allow_tf32 = True
    BACKENDS.cuda.matmul.allow_tf32 = False
    y = look(x), BACKENDS.cuda.matmul.allow_tf32
    BACKENDS.cuda.matmul.allow_tf32 = False
    BACKENDS.cuda.matmul.allow_tf32 = True
    return y


def _tf32_by_the_precision(x, look):
    BACKENDS.cuda.matmul.allow_tf32 = True
    torch.set_float32_matmul_precision("highest")
    BACKENDS.cuda.matmul.allow_tf32 = True
    torch.set_float32_matmul_precision("highest")
    y = look(x)
    torch.set_float32_matmul_precision("high")
    BACKENDS.cuda.matmul.allow_tf32 = True
    return y


def _recurrent_layer_without_cudnn(x, look):
    with BACKENDS.cudnn.flags(enabled=False):
        return LAYER(look(x)[None]), LAYER.training


def _threads(x, look):
    torch.set_num_threads(3)
    y = look(x), torch.get_num_threads()
    torch.set_num_threads(1)
    return y


def _raises_in_a_block(x, look):
    with BACKENDS.cudnn.flags(enabled=False):
        return look(x)[PLACE]


def _between_operations(x, look):
    y = look(x)
    torch.use_deterministic_algorithms(True)
    y = look(y)
    torch.use_deterministic_algorithms(False)
    return look(y)


def _between_operations_of_an_inlined_call(x, look):
    def inner(y):
        torch.use_deterministic_algorithms(True)
        return look(y)

    return inner(look(x)) + look(x)


def _precision_read_by_another_name(x, look):
    torch.set_float32_matmul_precision("high")
    return look(x), BACKENDS.cuda.matmul.allow_tf32


ONE_GRAPH = [
    _deterministic, _deterministic_for_a_block, _deterministic_at_the_end, _deterministic_alone,
    _flags_for_a_block, _flags_by_assignment, _tf32, _precision, _threads, _raises_in_a_block,
    _tf32_twice, _tf32_by_the_precision, _recurrent_layer_without_cudnn,
]  # fmt: skip
SEVERAL = [
    _between_operations,
    _between_operations_of_an_inlined_call,
    _precision_read_by_another_name,
]


def outcome(call: Callable[[], Any], seen: list[Any]) -> tuple[Any, ...]:
    before = settings()
    seen.clear()
    try:
        try:
            result = repr(call())
        except IndexError as error:
            result = type(error).__name__
        return result, list(dict.fromkeys(seen)), settings()
    finally:
        put_back(before)


@pytest.mark.parametrize("program", [*ONE_GRAPH, *SEVERAL])
def test_graphs_run_under_the_settings_of_their_place(program: Callable[..., Any]) -> None:
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        compiled_under.append(settings())

        def run(*args: Any) -> Any:
            seen.append(settings())
            return gm(*args)

        return run

    def look(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            seen.append(settings())
        return x * 2

    compiled_under: list[Any] = []
    captured = optimize(program, backend, fullgraph=program in ONE_GRAPH)
    x, before = torch.ones(2), settings()
    for _ in range(3):
        expected = outcome(lambda: program(x, look), seen)
        assert outcome(lambda: captured(x, look), seen) == expected
        assert settings() == before  # capture itself leaves nothing
    if program in (_deterministic, _deterministic_for_a_block, _flags_by_assignment, _threads):
        assert compiled_under == expected[1]


def test_a_setting_that_is_read_is_guarded() -> None:
    def program(x: torch.Tensor) -> Any:
        more = 1 if BACKENDS.cudnn.benchmark else 2
        return x + more, torch.is_deterministic_algorithms_warn_only_enabled()

    captured = optimize(program, lambda gm, _: gm.forward, fullgraph=True)
    x = torch.ones(2)
    for benchmark, warns in ((False, False), (True, False), (True, True), (False, False)):
        BACKENDS.cudnn.benchmark = benchmark
        torch.use_deterministic_algorithms(True, warn_only=warns)
        assert repr(captured(x)) == repr(program(x))


def test_a_changed_setting_is_not_exported() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch.set_num_threads(3)
        return x + 1

    with pytest.raises(CaptureError, match="set_num_threads"):
        export(program, (torch.ones(2),))


def _reads_a_flag(x: torch.Tensor) -> Any:
    return x + 1, BACKENDS.cuda.matmul.allow_tf32


def _reads_the_precision(x: torch.Tensor) -> Any:
    return x + 1, torch.get_float32_matmul_precision()


def _sets_the_precision(x: torch.Tensor) -> Any:
    torch.set_float32_matmul_precision("high")
    return x + 1


@pytest.mark.parametrize("program", [_reads_a_flag, _reads_the_precision, _sets_the_precision])
@pytest.mark.parametrize("mixed_first", [True, False])
def test_precisions_that_torch_does_not_tell(
    program: Callable[..., Any], mixed_first: bool
) -> None:
    """Where old and new ways to set it were mixed, torch raises: a guard must not."""

    def result(call: Callable[..., Any], mixed: bool) -> str:
        torch.set_float32_matmul_precision("medium" if mixed else "highest")
        BACKENDS.cuda.matmul.allow_tf32 = False
        try:
            return repr(call(torch.ones(2)))
        except RuntimeError as error:
            return str(error)
        finally:
            torch.set_float32_matmul_precision("highest")

    captured = optimize(program, lambda gm, _: gm.forward)
    for mixed in (mixed_first, not mixed_first, mixed_first):
        assert result(captured, mixed) == result(program, mixed)
