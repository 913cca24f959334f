"""Every view, each way it can matter: written through, read after its base was written to, handed
out beside its base; of inputs and of values made inside; with gradients and without."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from aot_testing import as_graph, run_fx
from dovetail_autograd_aot import TraceError, aot_compile
from dovetail_autograd_aot.trace.input_storages import lies_on_itself
from dovetail_prims.node_facts import blamed
from torch import Tensor
from view_programs import Input, Program, Step, check_program, random_program

# The arguments of each view, for a tensor of the shape.
VIEWS: dict[str, tuple[tuple[int, ...], tuple[object, ...]]] = {
    "transpose": ((3, 4), (0, 1)), "permute": ((2, 3, 2), ((2, 0, 1),)), "t": ((3, 4), ()),
    "view": ((3, 4), ((2, 6),)), "reshape": ((3, 4), ((12,),)), "flatten": ((2, 3, 2), ()),
    "slice": ((3, 4), (0, 1, 3, 1)), "select": ((3, 4), (1, -1)),
    "diagonal": ((4, 4), (1, 0, 1)), "unfold": ((6,), (0, 2, 3)),
    "as_strided": ((3, 4), ((2, 2), (4, 1), 1)), "squeeze": ((2, 1, 3), ()),
    "squeeze_dim": ((2, 1, 3), (1,)), "unsqueeze": ((3, 4), (1,)), "chunk": ((3, 4), (2, 1, 1)),
    "split": ((3, 4), (3, 1, 1)), "unbind": ((3, 4), (0, 0, 2)), "detach": ((3, 4), ()),
    "alias": ((3, 4), ()), "movedim": ((2, 3, 2), (0, 2)), "narrow": ((3, 4), (1, 1, 0, 0)),
    "data": ((3, 4), ()), "expand": ((2, 1, 3), ((2, 2, 3),)),
}  # fmt: skip
COMPLEX = {"real": (), "imag": (), "view_as_real": (), "conj": ()}

VIEW_OF_INPUT = 1  # the value that the first step makes


def scenario(name: str, view: Step) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """The steps after the input (value 0), and what is returned."""
    inside = Step(view.name, (1,), view.args)
    return {
        "written through": ((view, Step("mul_", (1,), (0.5,))), (1, 0)),
        "stale": ((view, Step("add_", (0,), (1.25,)), Step("square", (1,))), (1, 3)),
        "inside, written through": (
            (Step("clone", (0,)), inside, Step("mul_", (2,), (0.5,)), Step("square", (1,))),
            (1, 2, 4),
        ),
        "inside, two beside no base": (
            (Step("half", (0,)), inside, inside, Step("neg_", (2,))),
            (2, 3),
        ),
        "without gradient": ((view, Step("mul_", (1,), (0.5,), no_grad=True)), (1,)),
        "set to a number": ((view, Step("zero_", (1,)), Step("square", (0,))), (3,)),
    }[name]


SCENARIOS = ["written through", "stale", "inside, written through", "inside, two beside no base",
             "without gradient", "set to a number"]  # fmt: skip
# Writes that eager refuses, or we do: an expanded tensor has one memory location for several.
NOT_WRITTEN = {"expand"}


def programs() -> dict[str, Program]:
    found = {}
    cases = [(n, s, a, torch.float32) for n, (s, a) in VIEWS.items()]
    cases += [(n, (3, 4), a, torch.complex64) for n, a in COMPLEX.items()]
    for name, shape, args, dtype in cases:
        for what in SCENARIOS:
            if name in NOT_WRITTEN and what != "stale":
                continue
            for grad in ("none", "nonleaf"):
                steps, outputs = scenario(what, Step(name, (0,), args))
                program = Program(1, (Input(shape, dtype, grad=grad),), steps, outputs)
                found[f"{name}, {what}, {grad}"] = program
    return found


PROGRAMS = programs()
# Autograd refuses a write to one of several views that one operator made, or to their base.
REFUSED_BY_EAGER = {
    f"{name}, {what}, nonleaf" for name in ("chunk", "split", "unbind") for what in SCENARIOS
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_view(name: str) -> None:
    expected = "eager refuses: RuntimeError" if name in REFUSED_BY_EAGER else "ok"
    for table in ("aten", "core"):
        assert check_program(PROGRAMS[name], table) == expected


def leaf(shape: tuple[int, ...] = (3, 4)) -> Input:
    return Input(shape, grad="leaf")


PLAIN = Input((3, 4))
GRADED = Input((3, 4), grad="nonleaf")
OTHERS = {
    "an input transposed in place": Program(1, (PLAIN,), (Step("t_", (0,)),), (0,)),
    "written, then transposed": Program(
        1, (PLAIN,), (Step("mul_", (0,), (2,)), Step("t_", (0,)), Step("square", (0,))), (0, 3)
    ),
    "transposed, then written": Program(
        1, (PLAIN,), (Step("t_", (0,)), Step("setitem", (0,), (0, 0, 2, 1, 0))), ()
    ),
    "a view before and after": Program(
        1, (PLAIN,), (Step("slice", (0,), (0, 1, 3, 1)), Step("t_", (0,)), Step("t", (0,))), (1, 3)
    ),
    "with a gradient": Program(
        1, (GRADED,), (Step("transpose_", (0,), (0, 1)), Step("square", (0,))), (0, 2)
    ),
    "squeezed": Program(1, (Input((2, 1, 3)),), (Step("squeeze_", (0,)),), ()),
    "unsqueezed": Program(1, (PLAIN,), (Step("unsqueeze_", (0,), (1,)),), (0,)),
    "as_strided_ of an input": Program(
        1, (PLAIN,), (Step("as_strided_", (0,), ((2, 2), (2, 1))), Step("neg_", (0,))), ()
    ),
    "an input made smaller": Program(
        1, (PLAIN,), (Step("resize_", (0,), ((2, 3),)), Step("mul_", (0,), (2,))), (0,)
    ),
    "a value made smaller": Program(
        1, (PLAIN,), (Step("clone", (0,)), Step("resize_", (1,), ((2, 3),))), (1,)
    ),
    "an empty tensor as out": Program(
        1, (PLAIN,),
        (Step("clone", (0,)), Step("resize_", (1,), ((0,),)), Step("add_out", (1, 0))), (1,),
    ),
    "detached in place": Program(1, (GRADED,), (Step("detach_", (0,)), Step("square", (0,))), (2,)),
    "a parameter detached": Program(1, (leaf(),), (Step("detach_", (0,)),), (0,)),
    "set_ to an input": Program(
        1, (PLAIN, PLAIN), (Step("half", (0,)), Step("set_", (2, 1)), Step("neg_", (2,))), (2, 1)
    ),
    "copy_ between dtypes": Program(
        1, (GRADED, Input((3, 4), torch.float64)),
        (Step("copy_", (1, 0)), Step("square", (1,))), (3,),
    ),
    "copy_ of numbers": Program(
        1, (PLAIN, Input((3, 4), torch.int64)), (Step("copy_", (0, 1)),), (0,)
    ),
    "a parameter under no_grad": Program(
        1, (leaf(), PLAIN),
        (Step("square", (0,)), Step("add_tensor", (1, 2), (), True),
         Step("addcmul_", (0, 1), (), True)),
        (1,),
    ),
    "foreach": Program(
        1, (PLAIN, PLAIN), (Step("foreach_add_", (0, 1)), Step("foreach_mul_", (1,))), (0,)
    ),
    "rows of itself": Program(1, (GRADED,), (Step("map_rows", (0,)),), (0,)),
    "a part of a dtype": Program(
        1, (PLAIN,), (Step("view_dtype", (0,), (torch.int32,)), Step("zero_", (1,))), (1,)
    ),
    "a conjugate beside its base, written to later": Program(
        1, (Input((4, 4), torch.float64, grad="leaf"),),
        (Step("complex", (0,)), Step("conj", (1,))), (2, 1), after=(0,),
    ),
    "a negative beside its base, written to later": Program(
        1, (GRADED,), (Step("half", (0,)), Step("neg_view", (1,))), (2, 1), after=(0,),
    ),
    "a view that autograd lost": Program(
        1, (leaf(),), (Step("alias", (0,)), Step("t", (1,), (), True), Step("slice", (2,),
        (0, 1, 3, 1))), (3,),
    ),
    "an alias and its view, written to unseen, the alias again later": Program(
        1, (leaf(),),
        (Step("add", (0, 0)), Step("alias", (1,)), Step("lerp_", (2, 0)), Step("t", (2,)),
         Step("fill_diagonal_", (4,), (), True)),
        (3, 5), after=(0,),
    ),
}  # fmt: skip

RELATIONS = ["same", "detached", "first half", "second half", "transposed"]
SHARED = {
    f"{relation}, {grad}, {what}": Program(
        1,
        (Input((4, 4), grad=grad), Input((), of=0, relation=relation)),
        {
            "first": (Step("mul_", (0,), (0.5,)), Step("square", (1,))),
            "second": (Step("add_", (1,), (1.25,)), Step("square", (0,))),
            "both": (
                Step("mul_", (0,), (0.5,)), Step("add_", (1,), (1.25,)), Step("t", (1,)),
            ),
            "with no gradient": (
                Step("mul_", (0,), (0.5,), no_grad=True), Step("square", (1,)),
            ),
        }[what],
        (0, 1, 3),
    )
    for relation in RELATIONS
    for grad in ("none", "nonleaf")
    for what in ("first", "second", "both", "with no gradient")
}  # fmt: skip


@pytest.mark.parametrize("name", [*OTHERS, *SHARED])
def test_other(name: str) -> None:
    program = OTHERS[name] if name in OTHERS else SHARED[name]
    assert check_program(program, "aten", calls=2) == "ok"


REFUSED = {
    "set_ of what requires grad": (
        Program(1, (GRADED,), (Step("half", (0,)), Step("set_", (0, 1), no_grad=True)), ()),
        "set_ of input 0, which requires grad",
    ),
    "a view of another input": (
        Program(1, (GRADED, Input((), of=0, relation="view")), (Step("mul_", (0,), (2,)),), ()),
        "another input is a view of the same tensor",
    ),
    "written and reshaped": (
        Program(1, (GRADED,), (Step("mul_", (0,), (2,)), Step("t_", (0,), no_grad=True)), ()),
        "changes its shape in place under no_grad",
    ),
    "an expanded input": (
        Program(1, (Input((3, 4), layout="expanded"),), (Step("masked_fill_", (0,)),), ()),
        "more than one element of the written-to",
    ),
    "a write of nothing to an expanded input": (
        Program(1, (Input((3, 4), layout="expanded", grad="leaf"),),
                (Step("alias", (0,)), Step("conj_physical_", (0,), (), True)), (1,)),
        "input 0 is written to, but more than one",
    ),
    "as_strided of a diagonal, written": (
        Program(1, (Input((2, 1, 3), grad="nonleaf"),),
                (Step("diagonal", (0,), (0, 0, 2)), Step("as_strided", (1,), ((3,), (1,))),
                 Step("mul_", (0,), (3,))), (2,)),
        "as_strided of another view",
    ),
    "as_strided beyond an input with gaps, written": (
        Program(1, (Input((3, 4)), Input((), of=0, relation="even"), Input((2, 3), grad="leaf")),
                (Step("as_strided", (1,), ((2, 3), (3, 1), 2)), Step("lerp_", (3, 2))), ()),
        "beyond the tensor",
    ),
    "as_strided of an input that begins elsewhere, written": (
        Program(1, (Input((3, 4)), Input((), of=0, relation="column"), Input((2, 3), grad="leaf")),
                (Step("as_strided", (1,), ((2, 3), (3, 1), 2)), Step("lerp_", (3, 2))), ()),
        "does not begin where",
    ),
    "as_strided on itself": (
        Program(1, (PLAIN,), (Step("as_strided", (0,), ((2, 2), (1, 1))),
                              Step("foreach_mul_", (1,))), ()),
        "more than one element of the written-to",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    program, why = REFUSED[name]
    outcome = check_program(program, "aten")
    assert outcome.startswith("refused: ") and why in outcome


ONCE_REFUSED = {
    "set_ of an input": Program(1, (PLAIN,), (Step("half", (0,)), Step("set_", (0, 1))), (0, 1)),
    "written and reshaped": Program(
        1, (GRADED,), (Step("mul_", (0,), (2,)), Step("t_", (0,))), (0, 1)
    ),
    "as integers": Program(
        1,
        (PLAIN, Input((), of=0, relation="elements")),
        (Step("mul_", (0,), (2,)), Step("as_strided", (1,), ((2,), (1,), 1))),
        (0, 3),
    ),
    "an out= of more": Program(1, (PLAIN, Input((2,))), (Step("add_out", (1, 0)),), (1,)),
}  # fmt: skip


@pytest.mark.parametrize("name", ONCE_REFUSED)
@pytest.mark.parametrize("table", ["aten", "core"])
def test_programs_that_were_refused(name: str, table: str) -> None:
    assert check_program(ONCE_REFUSED[name], table, calls=2) == "ok"


@pytest.mark.parametrize("seed", range(0, 200, 10))
@pytest.mark.parametrize("table", ["aten", "core"])
def test_fuzz(seed: int, table: str) -> None:
    """A small budget; `view_programs.py` runs any number."""
    for number in range(100_000 + seed, 100_000 + seed + 10):
        program = random_program(number)
        if program is not None:
            print(f"seed {number}")
            check_program(program, table)


def test_two_outputs_of_a_tensor_that_became_a_part_of_its_storage():
    """as_strided looks at the storage, also where outputs are taken apart."""
    steps = (
        Step("cat", (0, 0)),
        Step("as_strided_", (1,), ((2, 1), (1, 1))),
        Step("index_copy_", (1,), no_grad=True),
        Step("as_strided", (3,), ((3, 2), (1, 3))),
        Step("imag", (4,)),
    )
    given = (Input((6,), dtype=torch.complex128, layout="transposed", grad="nonleaf"),)
    assert check_program(Program(1, given, steps, (5, 4)), "aten") == "ok"


def test_a_column_seen_as_another_dtype_after_a_write_through_its_transpose():
    """A dimension of one element keeps its stride, which decides whether that can be seen."""
    steps = (
        Step("sum", (0,), (-1,)),
        Step("t", (1,)),
        Step("squeeze", (2,)),
        Step("view_dtype", (1,), (torch.float16,)),
        Step("index_fill_", (3,)),
    )
    given = (Input((2, 1, 3), grad="leaf"),)
    program = Program(0, given, steps, outputs=(4, 1), after=(), grad_mode=True)
    assert check_program(program, "aten") == "ok"


def _through_data(x: Tensor) -> tuple[Tensor, ...]:
    data, y = x.data, x * 2
    return x.data[0], data, data[1], x[1], y.data.t(), y, y.detach()


@pytest.mark.parametrize("written", range(7))
def test_outputs_through_data_have_the_version_counters_that_eager_gives_them(written: int) -> None:
    """Those of `.data` are not their base's; autograd checks by them that what it saved stays."""
    x = torch.randn(3, 3)
    run = aot_compile(
        as_graph(_through_data, 1),
        [x],
        forward_compiler=lambda gm, examples: gm,
    )

    def versions(fn: Callable[..., tuple[Tensor, ...]]) -> list[int]:
        given = x.clone()
        results = fn(given)
        before = [t._version for t in (given, *results)]
        results[written].mul_(2)
        return [t._version - v for t, v in zip((given, *results), before, strict=True)]

    assert versions(run) == versions(_through_data)


@pytest.mark.parametrize(
    ("shape", "stride", "overlaps"),
    [
        ((2, 2), (1, 1), True),
        ((4, 2), (1, 1), True),
        ((3, 2), (2, 1), False),
        ((2, 3), (3, 2), False),  # they reach into one another, and miss each other's elements
        ((2, 4), (3, 2), False),
        ((3, 4), (3, 2), True),
        ((3,), (0,), True),
        ((1, 3), (0, 1), False),
        ((0, 3), (0, 1), False),
        ((1, 1), (5, 0), False),
    ],
)
def test_inputs_that_lie_on_themselves(
    shape: tuple[int, ...], stride: tuple[int, ...], overlaps: bool
) -> None:
    places = torch.arange(40).as_strided(shape, stride)
    assert (places.unique().numel() != places.numel()) == overlaps
    assert lies_on_itself(shape, stride) == overlaps


def test_windows_that_are_given_are_not_written_back() -> None:
    """What was not written to would be, over what was: their memory is."""
    graph = as_graph(lambda windows: (windows[:1].mul_(2),), 1)
    given = [torch.arange(5.0).unfold(0, 2, 1) for _ in range(2)]
    compiled = aot_compile(graph, [torch.arange(5.0).unfold(0, 2, 1)], forward_compiler=run_fx)
    (part,) = compiled(given[0])
    given[1][:1].mul_(2)
    assert torch.equal(given[0], given[1]) and torch.equal(part, given[1][:1])


def test_lazy_inputs_are_written_back_beside_others() -> None:
    def fn(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        x.mul_(2)
        y.mul_(3)
        z.mul_(4)
        return ()

    def given() -> list[Tensor]:
        x = torch.arange(6.0)
        return [torch._neg_view(x), x + 1, torch._neg_view(x + 2)]

    ours, theirs = given(), given()
    aot_compile(as_graph(fn, 3), given(), forward_compiler=run_fx)(*ours)
    fn(*theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b) and a.is_neg() == b.is_neg()


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    z = x * 2
    return (z, *z.split(2, 1), *z.unbind(0), z.split(1)[0][0], z[:1])


@pytest.mark.parametrize("index", range(8))
def test_a_part_that_was_made_with_others_is_not_written_to(index: int) -> None:
    def written(parts: tuple[Tensor, ...]) -> str:
        try:
            parts[index].mul_(3)
        except RuntimeError as error:
            return str(error).split("This view")[-1]
        return ""

    x = torch.arange(12.0).view(3, 4).requires_grad_()
    compiled = aot_compile(as_graph(_parts, 1), [x], forward_compiler=run_fx)
    refused = written(_parts(x))
    assert written(compiled(x)) == refused and bool(refused) == (0 < index < 7)
    with torch.no_grad():
        ours, theirs = compiled(x), _parts(x)
        assert written(ours) == written(theirs) == ""
        torch.testing.assert_close(ours, theirs)


def test_what_autograd_lost_track_of_is_only_asked_by_the_program() -> None:
    """Under no_grad a part can be written to; only its own gradient is lost by that."""

    def function(x: Tensor) -> tuple[Tensor]:
        z = x * 2
        part = z.split(2, 1)[0]
        with torch.no_grad():
            part.zero_()
        return (z,)

    x = torch.arange(12.0).view(3, 4).requires_grad_()
    compiled = aot_compile(as_graph(function, 1), [x], forward_compiler=run_fx)
    (ours,), (theirs,) = compiled(x), function(x)
    torch.testing.assert_close(ours, theirs)
    (a,), (b,) = (torch.autograd.grad(out.sum(), x) for out in (ours, theirs))
    torch.testing.assert_close(a, b)


def _lost_among_several(x: Tensor) -> tuple[Tensor, ...]:
    z = x * 2
    part = z.split(2, 1)[0]
    z.mul_(3)
    return (z, part)


def _lost_under_no_grad(x: Tensor) -> tuple[Tensor, ...]:
    z = x * 2
    with torch.no_grad():
        part = z[0]
    z.mul_(3)
    return (z, part)


@pytest.mark.parametrize("of_a_view", [False, True])
def test_a_view_of_a_leaf_from_before_a_write_is_eagers(of_a_view: bool) -> None:
    """Made and written to under no_grad, it says that it requires grad, and nothing more."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        part, row = x[1:], x.narrow(0, 0, 1)
        return part.mul_(2), row.copy_(x[2:]), x[1:][1:], row[:, 1:].diagonal()

    def found(call: Callable[[Tensor], tuple[Tensor, ...]]) -> object:
        x = (base.clone()[:] if of_a_view else base.clone()).requires_grad_()
        with torch.no_grad():
            outputs = call(x)
        for out in outputs[:2]:
            with nullcontext() if of_a_view else pytest.raises(RuntimeError, match="modified inpl"):
                out.grad_fn  # noqa: B018 (it is asked whether it can be asked)
        return [(out.detach().tolist(), out.requires_grad, out._is_view()) for out in outputs]

    base = torch.linspace(0.1, 1, 12).view(3, 4).clone()
    x = base.clone().requires_grad_()
    with torch.no_grad():
        compiled = aot_compile(as_graph(function, 1), [x], forward_compiler=run_fx)
    assert found(compiled) == found(function)


@pytest.mark.parametrize("dims", [(1, 3), (0, 3), (2, 3)])
def test_dimensions_of_one_element_keep_their_strides_when_written(dims: tuple[int, int]) -> None:
    """They show where results of the tensor lie."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        stacked = torch.stack([x, x])
        turned = stacked.transpose(*dims)
        turned.mul_(turned)
        return stacked, turned, torch.stack([turned, turned]), turned * 2

    x = torch.randn(2, 1, 3)
    compiled = aot_compile(as_graph(function, 1), [x], forward_compiler=run_fx)
    assert [t.stride() for t in compiled(x)] == [t.stride() for t in function(x)]


def _turned_and_a_part(x: Tensor) -> tuple[Tensor, ...]:
    y = x.square()
    y.swapaxes_(0, 1)
    return y, y[:2]


def _parts_of_what_was_turned(x: Tensor) -> tuple[Tensor, ...]:
    y = x.square()
    y.t_()
    return y[0], y[1:, 1]


@pytest.mark.parametrize("function", [_turned_and_a_part, _parts_of_what_was_turned])
@pytest.mark.parametrize("written", [0, 1])
def test_outputs_of_what_changed_its_shape_are_views_of_one_another(
    function: Callable[[Tensor], tuple[Tensor, ...]], written: int
) -> None:
    """A write to one of them changes the other's gradient."""

    def gradient(call: Callable[[Tensor], tuple[Tensor, ...]]) -> list[float]:
        x = torch.linspace(0.1, 1, 12).view(3, 4).requires_grad_()
        outputs = call(x)
        outputs[written].mul_(3)
        sum((out * (k + 2)).sum() for k, out in enumerate(outputs)).backward()
        assert x.grad is not None
        return x.grad.tolist()  # type: ignore[no-any-return]

    x = torch.linspace(0.1, 1, 12).view(3, 4).requires_grad_()
    compiled = aot_compile(as_graph(function, 1), [x], forward_compiler=run_fx)
    assert gradient(compiled) == gradient(function)


def test_a_view_of_before_a_change_of_shape_is_refused_beside_it() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x.square()
        row = y[0]
        return row, y.t_()

    x = torch.ones(3, 4, requires_grad=True)
    with pytest.raises(TraceError, match="before it changed its shape") as refused:
        aot_compile(as_graph(function, 1), [x], forward_compiler=run_fx)
    assert blamed(refused.value) == "function"


def _detached_after_use(x: Tensor) -> tuple[Tensor, ...]:
    y = x * x
    z, w = y * x, x.sin()
    y.detach_()
    return z, w, y + 1, w * 2


def _written_after_use(x: Tensor) -> tuple[Tensor, ...]:
    y = x.exp()
    z = y * 3
    y.add_(1)
    return z.sin(), x.cos(), y, x * 2


@pytest.mark.parametrize("function", [_detached_after_use, _written_after_use])
def test_an_output_without_a_backward_leaves_the_others_theirs(
    function: Callable[[Tensor], tuple[Tensor, ...]],
) -> None:
    def found(call: Callable[[Tensor], tuple[Tensor, ...]], used: tuple[int, ...]) -> object:
        x = torch.linspace(0.1, 1, 12).view(3, 4).requires_grad_()
        outputs = call(x)
        flags = [(out.requires_grad, out.is_leaf) for out in outputs]
        try:
            sum(outputs[i].sum() for i in used if flags[i][0]).backward()
        except RuntimeError as error:
            return str(error)[:40], flags
        assert x.grad is not None
        return x.grad.tolist(), flags

    x = torch.linspace(0.1, 1, 12).view(3, 4).requires_grad_()
    compiled = aot_compile(as_graph(function, 1), [x], forward_compiler=run_fx)
    for used in ((0,), (1,), (3,), (1, 3), (0, 1), (1, 2)):
        assert found(compiled, used) == found(function, used)


@pytest.mark.parametrize("function", [_lost_among_several, _lost_under_no_grad])
def test_what_autograd_lost_track_of_gives_no_gradient_in_silence(
    function: Callable[[Tensor], tuple[Tensor, ...]],
) -> None:
    """Where eager refuses to compute with a view, the backward through ours raises its error."""
    x = torch.arange(12.0).view(3, 4).requires_grad_()
    compiled = aot_compile(as_graph(function, 1), [x], forward_compiler=run_fx)
    with pytest.raises(RuntimeError, match="has been modified inplace") as eagers:
        function(x)[1].sum().backward()
    whole, part = compiled(x)
    torch.testing.assert_close(part.detach(), function(x)[1].detach())
    assert part.data_ptr() == whole.data_ptr()
    with pytest.raises(RuntimeError, match="has been modified inplace") as ours:
        (whole.sum() + part.sum()).backward()
    assert str(ours.value).split(".")[0] == str(eagers.value).split(".")[0]
    (gradient,) = torch.autograd.grad(compiled(x)[0].sum(), x)
    torch.testing.assert_close(gradient, torch.full_like(x, 6))
    with torch.no_grad():
        assert not compiled(x)[1].requires_grad


@pytest.mark.parametrize("with_result", [False, True])
def test_a_view_under_no_grad_of_a_result_whose_backward_raises(with_result: bool) -> None:
    """It says that it requires a gradient, as the result does."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        z = x.square()
        with torch.no_grad():
            row, column = z[0], z[:, 1]
        tracked = z[1]
        x.zero_()  # (which square has saved)
        return (x + 1, row, column, tracked, *((z,) if with_result else ()))

    def found(call: Callable[[Tensor], tuple[Tensor, ...]]) -> object:
        leaf = torch.linspace(0.1, 1, 12).view(3, 4).clone().requires_grad_()
        first, row, column, tracked, *rest = call(leaf * 1)
        flags = [(t.requires_grad, t.is_leaf) for t in (first, row, column, tracked, *rest)]
        is_view = [t._base is tracked._base for t in (row, column)]
        for out in (tracked, *rest):
            with pytest.raises(RuntimeError, match="modified by an inplace"):
                out.sum().backward(retain_graph=True)
            with pytest.raises(RuntimeError, match="modified by an inplace"):
                torch.autograd.grad(out.sum(), leaf, retain_graph=True)
        first.sum().backward()
        return flags, is_view, [t.tolist() for t in (row, column, tracked, *rest, leaf.grad)]

    x = torch.ones(3, 4, requires_grad=True) * 1
    compiled = aot_compile(as_graph(function, 1), [x], forward_compiler=run_fx)
    assert found(compiled) == found(function)


def test_a_piece_is_no_view_of_what_was_taken_under_no_grad() -> None:
    """Both outputs go through one `unbind`; one of them is taken under no_grad from there on."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        x.fill_(2)
        (piece,) = x.unbind(0)
        with torch.no_grad():
            column = piece.flatten()[1:]
        return column, piece

    def found(call: Callable[[Tensor], tuple[Tensor, ...]]) -> object:
        outputs = call(torch.randn(1, 3, requires_grad=True) * 1)
        return [(t.requires_grad, t.is_leaf, t.tolist()) for t in outputs]

    x = torch.randn(1, 3, requires_grad=True) * 1
    compiled = aot_compile(as_graph(function, 1), [x], forward_compiler=run_fx)
    assert found(compiled) == found(function)


def test_a_view_of_one_made_under_no_grad_is_taken_before_the_write() -> None:
    """Since the write autograd refuses views of it."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        row = x[0]
        with torch.no_grad():
            x.mul_(2)
        return (row,)

    def given() -> Tensor:
        leaf = torch.linspace(0.1, 1, 12).view(3, 4).clone().requires_grad_()
        with torch.no_grad():
            return leaf[1:]

    compiled = aot_compile(as_graph(function, 1), [given()], forward_compiler=run_fx)
    (ours,), (theirs,) = compiled(given()), function(given())
    assert torch.equal(ours.detach(), theirs.detach())
    assert ours.requires_grad == theirs.requires_grad


@pytest.mark.parametrize("start", [0, 2])
def test_a_copy_of_an_input_that_is_written_to_begins_where_its_memory_does(start: int) -> None:
    """Kernels of `*_scatter` copy all the memory that the input lies in."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        copy = torch.zeros_like(x)
        copy.copy_(x)
        view = copy.as_strided((2, 2), (4, 1))
        copy[:, 0].zero_()
        return copy, view, view + 1

    x = torch.arange(24.0).view(6, 4)[start:]
    compiled = aot_compile(as_graph(fn, 1), [x], forward_compiler=lambda gm, examples: gm)
    ours, theirs = compiled(x), fn(x)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b) and a.storage_offset() == b.storage_offset()
