"""Small functions with awkward semantics, against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from aot_testing import as_graph, check, run_fx
from dovetail_autograd_aot import aot_compile, default_partition, min_cut_partition


def p(*shape: int, grad: bool = True) -> torch.Tensor:
    """A parameter-like input."""
    return torch.randn(*shape, requires_grad=grad)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def nonleaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True) * 1.0


CASES = {}


def case(*inputs):
    def add(fn):
        CASES[fn.__name__] = (fn, inputs)
        return fn

    return add


@case(x(2, 3), p(4, 3), p(4))
def linear_gelu(a, w, b):
    return (F.gelu(F.linear(a, w, b)),)


@case(p(2, 3))
def no_op(a):
    return (a,)


@case(p(2, 3))
def only_view(a):
    return (a.view(3, 2),)


@case(p(2, 3))
def view_and_value(a):
    return a.t(), (a * 2), a[0]


@case(p(2, 3))
def constant_outputs(a):
    return a * 2, None, 3, True, 2.5, "text"


@case(p(2, 3))
def same_output_twice(a):
    b = a * 2
    return b, b


@case(p(2, 3))
def aliased_outputs(a):
    b = a * 2
    return b.view(-1), b[0]


@case(p(2, 6))
def aliased_outputs_with_base(a):
    b = a * 2
    return b.t(), b, b.view(3, 4)


@case(p(4, 6))
def chunks(a):
    q, k, v = (a * 2).chunk(3, dim=1)
    return q, k, v


@case(p(4, 6))
def split_uneven(a):
    return (a * 2).split([1, 2, 3], dim=1)


@case(p(3, 2))
def unbind(a):
    return a.unbind(0)


@case(p(2, 3))
def output_and_detached(a):
    b = a * 2
    return b, b.detach()


@case(p(2, 3))
def detached_first(a):
    b = a * 2
    return b.detach(), b.view(-1)


@case(p(2, 3))
def detached_input(a):
    return a.detach(), a * a.detach()


@case(p(2, 3))
def expanded_output(a):
    return (a.sum().expand(3, 4),)


@case(p(2, 3))
def transposed_output(a):
    return ((a * 2).t(),)


@case(p(4, 6))
def sliced_output(a):
    return ((a * 2)[1:3, ::2],)


# --- input mutation ---


@case(x(2, 3))
def mutate_input(a):
    a.add_(1)
    return (a * 2,)


@case(x(2, 3), p(3))
def mutate_input_with_grad(a, w):
    a.mul_(w)
    return (a.sum(),)


@case(x(2, 3))
def mutate_and_return(a):
    a.add_(1)
    return (a,)


@case(x(2, 3), p(2, 3))
def mutate_and_return_view(a, w):
    a.add_(w)
    return a.view(-1), a


@case(x(4, 3))
def mutate_input_through_view(a):
    a[1].zero_()
    a.t()[0].add_(5)
    return (a.sum(),)


@case(nonleaf(2, 3))
def mutate_nonleaf(a):
    a.mul_(3)
    return (a * 2,)


@case(nonleaf(4, 3), p(3))
def mutate_nonleaf_view(a, w):
    a[1].mul_(w)
    return (a.sum(),)


@case(p(2, 3))
def mutate_leaf_no_grad(a):
    with torch.no_grad():
        a.mul_(0.5)
    return (a * 2,)


@case(p(2, 3), x(2, 3))
def read_then_mutate(w, a):
    b = (w * a).sum()
    with torch.no_grad():
        a.add_(1)
    return (b.detach() + a.sum(),)


@case(x(2, 3), p(2, 3))
def old_value_used_in_backward(a, w):
    b = w * a.clone()
    a.add_(1)
    return (b,)


@case(x(3), torch.tensor(0))
def counter(a, n):
    n.add_(1)
    return (a * n,)


@case(x(3, 4).t())
def mutate_transposed_input(a):
    a.add_(1)
    return (a.sum(1),)


@case(x(10)[2:8].view(2, 3))
def mutate_offset_input(a):
    a.mul_(2)
    a[0].add_(1)
    return (a.t(),)


@case(x(8)[::2])
def mutate_strided_input(a):
    a.mul_(2)
    return (a + 1,)


# --- views and in-place inside ---


@case(p(2, 3))
def inplace_chain(a):
    b = a * 2
    b.add_(1).mul_(3).relu_()
    return (b,)


@case(p(4, 4))
def inplace_on_view(a):
    b = a * 2
    b[0].mul_(3)
    b[:, 1].add_(a[0])
    return (b,)


@case(p(4, 4))
def stale_view(a):
    b = a * 2
    c = b.view(16)
    b.mul_(3)
    return (c.sum(),)


@case(p(4, 4))
def view_of_view(a):
    b = a * 2
    c = b.t()[1:3]
    c[:, 0].mul_(5)
    d = b.unsqueeze(0).transpose(1, 2)
    d.add_(1)
    return b, c * 2


@case(p(4, 4))
def base_after_view_write(a):
    b = a.clone()
    v = b.diagonal()
    v.mul_(2)
    return (b * a,)


@case(p(4, 4), x(4))
def setitem(a, v):
    b = a * 1
    b[1] = v
    b[:, 2:] = 0
    return (b,)


@case(p(5, 3), torch.tensor([0, 2, 2]), x(3, 3))
def index_put_accumulate(a, i, v):
    b = a * 1
    b.index_put_((i,), v, accumulate=True)
    return (b,)


@case(p(5, 3), torch.tensor([0, 2]))
def index_and_scatter(a, i):
    return a[i], a.index_select(0, i), a.gather(0, i.view(2, 1).expand(2, 3))


@case(p(4, 4))
def masked_fill(a):
    m = torch.ones(4, 4, dtype=torch.bool).tril()
    return (
        a.masked_fill(m, float("-inf")).softmax(-1) * 0 + a.masked_fill_(m, 0.0)
        if not a.requires_grad
        else (a * 1).masked_fill_(m, 0.0),
    )


@case(p(2, 3))
def zero_and_fill(a):
    b = a * 2
    c = b + 1
    b.zero_()
    c[0].fill_(7)
    return b, c


@case(p(2, 3))
def copy_into(a):
    b = torch.zeros(2, 3, dtype=torch.float64)
    b.copy_(a)
    c = torch.empty(3, 2)
    c.t().copy_(a)
    return b, c


@case(p(3))
def copy_broadcast(a):
    b = torch.zeros(4, 3)
    b.copy_(a)
    return (b,)


@case(p(2, 3))
def copy_is_not_alias(a):
    b = torch.empty(2, 3)
    b.copy_(a)
    return (b,)


@case(p(2, 3))
def clone_is_not_alias(a):
    return a.clone(), a.detach().clone()


@case(p(2, 3), x(2, 3))
def out_argument(a, b):
    c = torch.empty(2, 3)
    with torch.no_grad():
        torch.add(a, b, out=c)
    return (c * a,)


@case(p(1, 2, 1, 3))
def squeeze_in_place(a):
    b = a * 2
    b.squeeze_(0)
    b.unsqueeze_(-1)
    c = b.transpose_(0, 1)
    return (c * 2,)


@case(x(4), x(4))
def foreach(a, b):
    torch._foreach_mul_([a, b], 2.0)
    return torch._foreach_add([a, b], 1)


# --- autograd ---


@case(p(2, 3), p(2, 3))
def no_grad_region(a, b):
    with torch.no_grad():
        c = a * b
    return c, c * a


@case(p(2, 3))
def enable_grad_in_no_grad(a):
    with torch.no_grad():
        b = a * 2
        with torch.enable_grad():
            c = a * 3
    return b, c


@case(p(3, 3))
def reused(a):
    b = a.exp()
    return ((b * b + b).sin(), b)


@case(p(3, 3), p(3, 3))
def unused_input(a, b):
    return (a * 2,)


@case(p(3, 3))
def integer_output(a):
    return a.argmax(), a.max(dim=1).values, a > 0


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a.view_as(a)

    @staticmethod
    def backward(ctx, g):
        return -2 * g


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * a

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return 3 * a * g


@case(p(3, 3))
def custom_function(a):
    return (Square.apply(a) + 1,)


@case(p(3, 3))
def custom_function_view(a):
    return (Reverse.apply(a) * 1.0,)


class Select(torch.autograd.Function):
    """Bears the name of a view of autograd's, and has another gradient."""

    @staticmethod
    def forward(ctx, x):
        return x[1]

    @staticmethod
    def backward(ctx, grad):
        return (grad * 3).expand(3, 3)


@case(p(3, 3))
def custom_function_named_as_a_view(a):
    return (Select.apply(a),)


@case(p(3, 3))
def leaf_made_inside(a):
    b = torch.ones(3)
    b.requires_grad_()
    return a * 2, b


@case(p(3))
def tensor_hook(a):
    b = a * 2
    b.register_hook(lambda g: g * 10)
    return (b.sin(),)


@case(p(6, 4), p(6))
def cross_entropy(a, b):
    target = torch.tensor([0, 1, 2, 3, 1, -100])
    return (F.cross_entropy(a, target) + b.sum(),)


@case(p(2, 8))
def layer_norm(a):
    return F.layer_norm(a, (8,)), F.softmax(a, -1), F.log_softmax(a, 0)


@case(p(2, 4, 8), p(2, 4, 8), p(2, 4, 8))
def attention(q, k, v):
    q, k, v = (t.unsqueeze(1) for t in (q, k, v))
    return (F.scaled_dot_product_attention(q, k, v, is_causal=True),)


@case(p(2, 3, 8, 8), p(4, 3, 3, 3), p(4))
def conv_pool(a, w, b):
    y = F.conv2d(a, w, b, padding=1)
    return F.max_pool2d(y.relu_(), 2), F.adaptive_avg_pool2d(y, 1)


@case(p(2, 3, 4, 4), p(3), p(3), x(3), x(3).abs())
def batch_norm_training(a, w, b, mean, var):
    return (F.batch_norm(a, mean, var, w, b, training=True).relu(),)


@case(p(2, 3, 4, 4), p(3), p(3), x(3), x(3).abs())
def batch_norm_eval(a, w, b, mean, var):
    return (F.batch_norm(a, mean, var, w, b, training=False).relu(),)


@case(p(10, 4), torch.tensor([[1, 2], [3, 3]]))
def embedding(w, i):
    return (F.embedding(i, w) @ w.t(),)


@case(p(2, 3), p(2, 3))
def broadcasting(a, b):
    return (a.unsqueeze(0) * b.unsqueeze(1)).sum(0), a.mean(), torch.cat([a, b]).std(0)


@case(p(2, 3))
def dtype_changes(a):
    return a.double() * 2, a.to(torch.bfloat16), a.half().float()


@case(p(3))
def python_scalars(a):
    return a + 1, a + 1.0, a * True, 2 - a, a**2, 1 / a


@case(p(3))
def signed_zero_is_kept(a):
    return a.detach() * 0.0 + torch.full((3,), -0.0), torch.full((3,), 0.0)


@case(p(4, 3))
def repeated_subexpressions(a):
    return a.sin() + a.sin(), a.t().t().sin()


@case(p(3), torch.arange(6.0).view(2, 3))
def constants(a, b):
    c = torch.tensor([1.0, 2.0, 3.0])
    c += 1
    return (a * c + torch.arange(3),)


@case(p(4, 8))
def dropout(a):
    return (F.dropout(a, 0.5, True) * F.dropout(a, 0.25, True),)


@case(p(4, 8))
def random_numbers(a):
    b = torch.rand(4, 8) + torch.rand(4, 8) + torch.randn_like(a)
    c = torch.empty(4, 8).uniform_() + torch.zeros(4, 8).normal_() + torch.randint(0, 9, (8,))
    return (a * b * c,)


@case(p(4, 8))
def unused_random_numbers(a):
    torch.rand(3)
    F.dropout(a, 0.5, True)
    return (a * torch.rand(4, 8),)


@case(p(8, 8), x(4, 8))
def autocast(w, a):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        b = F.linear(a, w)
        with torch.autocast("cpu", enabled=False):
            c = F.linear(a, w)
    return b, c + b.float()


@case(x(2, 3), x(2, 3))
def inference_only(a, b):
    return a + b, (a @ b.t()).view(-1)


@case(x(4), x(2))
def complex_numbers(a, b):
    z = torch.view_as_complex(a.view(2, 2))
    return torch.view_as_real(z * z), z.abs()


def duplicated(fn):
    a = p(3)
    CASES[fn.__name__] = (fn, (a, a))
    return fn


@duplicated
def same_input_twice(a, b):
    return a * b, b


def duplicated_mutated(fn):
    a = x(3)
    CASES[fn.__name__] = (fn, (a, a))
    return fn


@duplicated_mutated
def same_input_twice_mutated(a, b):
    a.add_(1)
    return a * b, b


def disjoint(fn):
    a = x(6)
    CASES[fn.__name__] = (fn, (a[:3], a[3:]))
    return fn


@disjoint
def disjoint_views_of_one_storage(a, b):
    a.add_(b)
    return (a * b,)


@pytest.mark.parametrize("table", ["aten", "core"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_training(name, table):
    fn, inputs = CASES[name]
    check(fn, inputs, table=table)


@pytest.mark.parametrize("name", sorted(CASES))
def test_default_partition(name):
    fn, inputs = CASES[name]
    check(
        fn,
        inputs,
        table="core",
        partition=default_partition,
        calls=1,
    )


@pytest.mark.parametrize("name", sorted(CASES))
def test_no_grad(name):
    fn, inputs = CASES[name]
    if name in ("mutate_nonleaf", "mutate_nonleaf_view", "tensor_hook"):
        inputs = tuple(t.detach() for t in inputs)
    if name == "tensor_hook":
        pytest.skip("a hook needs a tensor that requires grad")
    with torch.no_grad():
        check(
            fn,
            inputs,
            table="core",
            partition=min_cut_partition,
            grad=False,
        )


def test_input_that_is_written_to_with_what_it_holds_and_saved() -> None:
    """Its version counter tells of a write; the backward must not take that for a later one."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            x.conj_physical_()
        return x * x, x.sin()

    check(fn, [torch.randn(3, requires_grad=True)])
    x = torch.randn(3, requires_grad=True)
    compiled = aot_compile(as_graph(fn, 1), [x], forward_compiler=run_fx)
    (g,) = torch.autograd.grad(compiled(x)[0].sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(g.sum(), x)[0], torch.full((3,), 2.0))


@pytest.mark.parametrize("grad", [False, True])
def test_version_counters_tell_of_each_write(grad: bool) -> None:
    def fn(
        x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, w: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        x.add_(1).mul_(2)[0] = 3
        y.mul_(2)
        y.add_(x)
        z.t_()
        z.unsqueeze_(0).mul_(2)
        x.data.add_(1)
        z[:0].mul_(2)  # of no element
        return x * y * w, x[1:]

    def inputs() -> list[torch.Tensor]:
        w = torch.ones(4, requires_grad=grad)
        return [torch.ones(4), torch.ones(4) * w, torch.ones(2, 2), w]

    run = aot_compile(as_graph(fn, 4), inputs(), forward_compiler=run_fx)
    counts = []
    for each in (fn, run):
        given = inputs()
        _, view = each(*given)
        counts.append([t._version for t in (*given, view)])
    assert counts[1] == counts[0]
