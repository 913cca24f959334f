"""Views, rearrangements, creation and indexing against eager's ops."""

import inspect
import itertools

import pytest
import torch
from decomposition_checks import check
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.dialects.opsets import CORE_ATEN
from dovetail_prims.ops.common import promote_types
from eager_oracle import name_of, run_expanded

aten = torch.ops.aten
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool)


def draw(*shape, dtype=torch.float32):
    if not dtype.is_floating_point:
        return torch.randint(0, 2, shape).to(dtype)
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def test_signatures_match_schemas():
    """Names, order, kinds and defaults of every entry's parameters are its op's; a layout
    and pinned memory, which none looks at, it may take together."""
    for op, function in core_aten_table().items():
        parameters = list(inspect.signature(function).parameters.values())
        arguments = op._schema.arguments
        if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
            named = {p.name for p in parameters[:-1]}
            ignored = {a.name for a in arguments} - named
            assert ignored <= {"layout", "pin_memory"}, op
            arguments = [a for a in arguments if a.name in named]
            parameters.pop()
        assert [p.name for p in parameters] == [a.name for a in arguments], op
        for p, a in zip(parameters, arguments, strict=True):
            assert (p.kind is p.KEYWORD_ONLY) == a.kwarg_only, f"{op}: {p.name}"
            if a.has_default_value():
                default = list(p.default) if isinstance(p.default, tuple) else p.default
                default = 4 if default is torch.int64 else default  # as schemas number it
                assert default == a.default_value, f"{op}: {p.name}={p.default}, {a.default_value}"
            else:
                assert p.default is p.empty, f"{op}: {p.name}"


def test_no_entry_for_core_ops():
    """But what is taken apart in some cases alone: bags of maxima, numbers ..."""
    some = {"index_put.default", "_embedding_bag.default", "col2im.default",
            "gather.default", "scatter.src", "scatter.value", "scatter_add.default",
            "scatter_reduce.two", "index_reduce.default"}  # fmt: skip
    assert {name_of(op) for op in core_aten_table()} & set(CORE_ATEN) <= some


def test_promotion_table():
    """Our promotion equals ATen's for every pair of ordinary dtypes."""
    dtypes = [
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128),
    ]
    for a in dtypes:
        for b in dtypes:
            assert promote_types(a, b) == torch.promote_types(a, b), (a, b)


def test_core_names_exist():
    for name in CORE_ATEN:
        op, overload = name.split(".")
        assert overload in getattr(aten, op).overloads(), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views(dtype):
    x = draw(2, 3, 4, dtype=dtype)
    for rank in (0, 1, 2):
        check(aten.t.default, [draw(*(3, 4)[:rank], dtype=dtype)])
    for a, b in ((0, 1), (-1, 0), (1, 1)):
        check(aten.transpose.int, [x, a, b])
    check(aten.transpose.int, [draw(dtype=dtype), 0, -1])
    check(aten._unsafe_view.default, [x, [6, 4]])
    check(aten._reshape_alias.default, [x, [6, 4], [4, 1]])
    for shape in ((1, 3, 1), (2, 3), (), (1,)):
        y = draw(*shape, dtype=dtype)
        check(aten.squeeze.default, [y])
        check(aten.squeeze.dim, [y, 0])
        check(aten.squeeze.dim, [y, -1])
    for op in (aten.split.Tensor, aten.unsafe_split.Tensor):
        for size, dim in ((1, 0), (2, 1), (3, 1), (9, -1)):
            check(op, [x, size, dim])
        check(op, [draw(0, 3, dtype=dtype), 2, 0])
    for op in (aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default):
        check(op, [x, [1, 0, 2], 1])
        check(op, [x, [1, 3], -1])
    check(aten.unbind.int, [x, 1])
    check(aten.unbind.int, [x, -1])
    for name in ("detach", "lift_fresh", "lift", "lift_fresh_copy"):
        check(getattr(aten, name).default, [x])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_share_storage(dtype):
    x = draw(2, 3, 4, dtype=dtype)
    table = core_aten_table()
    for op, args in (
        (aten.transpose.int, (x, 0, 1)),
        (aten.detach.default, (x,)),
        (aten.squeeze.dim, (x, 0)),
        (aten._reshape_alias.default, (x, [6, 4], [4, 1])),
    ):
        assert table[op](*args).data_ptr() == x.data_ptr()
    pieces = table[aten.unbind.int](x, 1)
    assert [p.data_ptr() for p in pieces] == [p.data_ptr() for p in x.unbind(1)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rearrangements(dtype):
    x = draw(2, 3, 4, dtype=dtype)
    for dim in (0, 1, -1):
        check(aten.stack.default, [[x, x, x], dim])
    check(aten.stack.default, [[draw(dtype=dtype), draw(dtype=dtype)]])
    for repeats in ((2, 1, 3), (2, 2, 1, 1), (0, 1, 1)):
        check(aten.repeat.default, [x, repeats])
    check(aten.repeat.default, [draw(dtype=dtype), [3]])
    check(aten.repeat.default, [x.permute(2, 0, 1), [1, 2, 1]])
    for shifts, dims in (([1], [0]), ([-1, 2], [1, 2]), ([5], []), ([0], [0]), ([7], [1])):
        check(aten.roll.default, [x, shifts, dims])
    check(aten.roll.default, [draw(0, 3, dtype=dtype), [1], [0]])
    for k in range(-1, 5):
        check(aten.rot90.default, [x, k, [0, 1]])
        check(aten.rot90.default, [x, k, [2, 0]])
    image = draw(2, 8, 4, 6, dtype=dtype)
    check(aten.pixel_shuffle.default, [image, 2])
    check(aten.pixel_unshuffle.default, [image, 2])
    check(aten.channel_shuffle.default, [image, 4])


@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like"])
@pytest.mark.parametrize("shape", [(2, 1, 1), (1, 2, 1, 3), (1, 1, 4), (2, 0, 1), (1, 5)])
def test_dimensions_of_one_element_keep_their_strides_in_new_tensors(shape, name):
    """How a result of the new tensor lies depends on them."""
    op = getattr(aten, name).default
    for dims in itertools.permutations(range(len(shape))):
        x = torch.empty([shape[d] for d in dims]).permute([dims.index(d) for d in range(len(dims))])
        new, _ = run_expanded(core_aten_table(), op, [x], {})
        assert new.stride() == op(x).stride(), (x.shape, x.stride())


def test_an_empty_tensor_like_one_whose_strides_no_order_gives_is_row_major():
    new, _ = run_expanded(core_aten_table(), aten.zeros_like.default, [draw(1, 2).expand(0, 2)], {})
    assert new.stride() == (2, 1)


OPTIONS = ({}, {"dtype": torch.float64}, {"dtype": torch.int32}, {"dtype": torch.bool})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_creation(options):
    cpu = {**options, "device": torch.device("cpu")}
    for size in ([2, 3], [], [0]):
        check(aten.zeros.default, [size], cpu)
        check(aten.ones.default, [size], cpu)
    last = draw(2, 3, 4, 5).to(memory_format=torch.channels_last)
    permuted = draw(2, 3, 4).permute(2, 0, 1)
    sliced = draw(4, 6)[:, ::2]
    for x in (draw(2, 3), last, permuted, sliced, sliced.t(), draw(3, 1).expand(3, 4), draw()):
        for name in ("zeros_like", "ones_like"):
            check(getattr(aten, name).default, [x], options)
            row_major = {**options, "memory_format": torch.contiguous_format}
            check(getattr(aten, name).default, [x], row_major)
        check(aten.full_like.default, [x, 3], options)
        check(aten.empty_like.default, [x], options, values=False)
        check(aten.new_zeros.default, [x, [2, 2]], options)
        check(aten.new_ones.default, [x, [2, 2]], options)
        check(aten.new_full.default, [x, [2, 2], 5], options)
        check(aten.new_empty.default, [x, [2, 2]], options, values=False)
        check(aten.new_empty_strided.default, [x, [2, 2], [1, 2]], options, values=False)
    channels = {**options, "memory_format": torch.channels_last}
    check(aten.zeros_like.default, [draw(2, 3, 4, 5)], channels)
    if options.get("dtype") != torch.bool:
        check(aten.arange.default, [5], options)
        check(aten.arange.default, [4.5], options)
        check(aten.arange.start, [2, 7], options)
        check(aten.arange.start, [2.5, 7], options)
    check(aten.eye.default, [3], options)
    check(aten.eye.m, [3, 5], options)
    check(aten.eye.m, [3, 0], options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_triangles(dtype):
    for shape in ((3, 4), (2, 4, 3), (0, 3)):
        for diagonal in (0, 1, -1, 5):
            check(aten.tril.default, [draw(*shape, dtype=dtype), diagonal])
            check(aten.triu.default, [draw(*shape, dtype=dtype), diagonal])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_indexing(dtype):
    torch.manual_seed(0)
    x = draw(4, 5, 3, dtype=dtype)
    index = torch.tensor([3, 0, 2])
    for dim in (0, 1, -1, 2):
        index = index % 3
        check(aten.index_select.default, [x, dim, index])
        check(aten.index_select.default, [x, dim, index[0]])
        check(aten.index_fill.int_Scalar, [x, dim, index, 1])
        check(aten.index_fill.int_Tensor, [x, dim, index, draw(dtype=dtype)])
        shape = list(x.shape)
        shape[dim] = 3
        source = draw(*shape, dtype=dtype)
        check(aten.index_copy.default, [x, dim, torch.tensor([0, 2, 1]), source])
        check(aten.index_add.default, [x, dim, torch.tensor([0, 2, 1]), source])
        if dtype != torch.bool:
            check(aten.index_add.default, [x, dim, index, source], {"alpha": 2})
    point = draw(dtype=dtype)
    check(aten.index_select.default, [point, 0, torch.tensor([0])])
    check(aten.index_copy.default, [point, 0, torch.tensor([0]), draw(1, dtype=dtype)])
    check(aten.take.default, [x, torch.tensor([[0, 59], [7, 7]])])
    check(aten._unsafe_index.Tensor, [x, [None, index]])
    for accumulate in (False, True):
        put = [x, [torch.tensor([0, 2]), torch.tensor([1, 1])], draw(2, 3, dtype=dtype), accumulate]
        check(aten._unsafe_index_put.default, put)
    mask = torch.rand(4, 5, 3) > 0.5
    check(aten.masked_scatter.default, [x, mask, draw(60, dtype=dtype)])
    check(aten.masked_scatter.default, [draw(5, 3, dtype=dtype), mask, draw(60, dtype=dtype)])


def test_index_put_impl_writes_in_place_in_eager():
    """Its functional form is what the gradient of indexing becomes; eager's name mutates."""
    x, index, values = torch.zeros(4, 3), torch.tensor([1, 1]), torch.ones(2, 3)
    for accumulate in (False, True):
        args = [x, [index], values, accumulate]
        check(aten._index_put_impl.default, args)


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16), ids=str)
def test_gradients_of_views(dtype):
    g = draw(2, 4, dtype=dtype)
    check(aten.select_backward.default, [g, [2, 3, 4], 1, 2])
    check(aten.select_backward.default, [g, [2, 3, 4], 1, -1])
    for start, end, step in ((1, 3, 1), (0, 9, 1), (0, 4, 2), (-2, 9, 1), (2, 2, 1)):
        part = draw(2, 5, 4, dtype=dtype)[:, start:end:step]
        check(aten.slice_backward.default, [part, [2, 5, 4], 1, start, end, step])
    check(aten.diagonal_backward.default, [draw(2, 3, dtype=dtype), [3, 4, 2], 0, 0, 1])
    check(aten.diagonal_backward.default, [draw(4, 3, dtype=dtype), [3, 4, 4], 1, 0, 2])
    for dim, size, step in ((1, 3, 1), (1, 2, 2), (0, 2, 1), (-1, 3, 1)):
        part = draw(2, 7, 4, dtype=dtype).unfold(dim, size, step)
        check(aten.unfold_backward.default, [part, [2, 7, 4], dim, size, step])
