"""Constructs: functions and calls.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import sys
import functools
import operator

import pytest
import torch
from construct_cases import Case, CountingBackend, Table, Version, run_case, same
from dovetail_capture import optimize

construct = Table()
SCALE = 3.0
COUNT = {"calls": 0}


def plain(a, b=2, *args, key=1, **kwargs):
    return a * b + sum(args) + key + len(kwargs)


@construct()
def positional_and_default(x):
    return plain(x), plain(x, 3)


@construct()
def keywords(x):
    return plain(x, key=5), plain(b=3, a=x)


@construct()
def star_arguments(x):
    more = [4, 5]
    options = {"key": 2, "other": 3}
    return plain(x, 2, *more, **options), plain(*(x, 1), *more, key=0)


@construct()
def keyword_only_default_of_tensor(x):
    def inner(*, bias=x + 1):
        return bias * 2

    return inner(), inner(bias=x)


@construct()
def positional_only(x):
    def inner(a, b, /, c):
        return a + b * c

    return inner(x, 2, c=3)


@construct()
def collects_kwargs(x):
    def inner(**kwargs):
        kwargs["z"] = x * 2
        return kwargs

    return inner(a=x, b=1)


@construct()
def collects_args(x):
    def inner(*args):
        return args, len(args), args[::-1], args[0] + 1

    return inner(x, 1, "two")


@construct()
def closure_reads(x):
    factor = 2

    def inner(y):
        return y * factor + x

    return inner(x)


@construct()
def closure_writes(x):
    total = x

    def add(y):
        nonlocal total
        total = total + y
        return total

    add(1)
    add(x)
    return total


@construct()
def closure_counter(x):
    count = 0

    def bump():
        nonlocal count
        count += 1
        return count

    return x + bump() + bump(), count


@construct()
def late_binding(x):
    functions = [lambda y: y * i for i in range(3)]
    return [f(x) for f in functions]


@construct()
def default_binding(x):
    functions = [lambda y, i=i: y * i for i in range(3)]
    return [f(x) for f in functions]


@construct()
def returns_closure(x):
    y = x + 1

    def inner(z):
        return y + z

    return inner, inner(x)


@construct()
def returns_lambda_with_default(x):
    return (lambda a, b=2, *, c=3: (a, b, c)), x + 1


@construct()
def lambdas(x):
    double = lambda t: t * 2  # noqa: E731
    return (lambda f, t: f(f(t)))(double, x)


@construct()
def recursion(x):
    def power(y, n):
        return y if n == 0 else power(y * 2, n - 1)

    return power(x, 5)


def module_recursion(x, n):
    return x if n == 0 else module_recursion(x + n, n - 1)


@construct()
def recursion_of_a_global(x):
    return module_recursion(x, 4)


@construct()
def mutual_recursion(x):
    def even(y, n):
        return y if n == 0 else odd(y + 1, n - 1)

    def odd(y, n):
        return y if n == 0 else even(y * 2, n - 1)

    return even(x, 5)


def doubled(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


@doubled
def decorated(x, bias=1):
    return x + bias


@construct()
def call_of_decorated(x):
    return decorated(x), decorated(x, bias=3), decorated.__name__


@construct()
def decorates_inside(x):
    @doubled
    def inner(y):
        return y - 1

    return inner(x), inner.__name__


def parametrised(times):
    def decorator(function):
        def wrapper(x):
            for _ in range(times):
                x = function(x)
            return x

        return wrapper

    return decorator


@parametrised(3)
def stepped(x):
    return x + 0.5


@construct()
def decorator_with_parameter(x):
    return stepped(x)


@construct()
def partials(x):
    add = functools.partial(operator.add, x)
    both = functools.partial(plain, b=4, key=2)
    nested = functools.partial(functools.partial(plain, x), 5)
    return add(1), both(x), nested(), both.keywords, add.args[0] is x


@construct(graphs=0)
def returned_partial(x):
    return functools.partial(plain, x, key=3)


GLOBAL_PARTIAL = functools.partial(plain, b=10)


@construct()
def partial_of_a_global(x):
    return GLOBAL_PARTIAL(x)


@construct()
def reduce_and_compose(x):
    compose = functools.reduce(lambda f, g: lambda y: g(f(y)), [torch.sin, torch.cos, torch.abs])
    return compose(x), functools.reduce(operator.mul, [x, 2, 3])


@functools.cache
def cached(n):
    return n * n


@construct()
def lru_cache_of_numbers(x):
    return x * cached(3) + cached(3)


@functools.cache
def cached_scale():
    return 4


@construct()
def cache_without_arguments(x):
    return x * cached_scale()


@construct()
def global_read(x):
    return x * SCALE


@construct()
def global_write(x):
    global SCALE
    before = SCALE
    SCALE = before + 1
    y = x * SCALE
    SCALE = before
    return y


@construct()
def global_dict_write(x):
    COUNT["calls"] += 1
    COUNT["last"] = x + 1
    return x * COUNT["calls"]


global_dict_write.world = COUNT


@construct()
def function_attributes(x):
    def inner(y):
        return y * inner.factor

    inner.factor = 5
    return inner(x), inner.factor, hasattr(inner, "other"), inner.__name__


@construct()
def function_identity(x):
    def inner():
        return x

    other = inner
    return other is inner, inner == other, callable(inner), x + 1


@construct()
def higher_order(x):
    def apply(f, *args):
        return f(*args)

    return apply(torch.add, x, 1), apply(apply, torch.sin, x), apply(lambda: x * 3)


@construct()
def keyword_named_as_slot(x):
    def inner(self, args, kwargs):
        return self + args + kwargs

    return inner(self=x, args=1, kwargs=2)


@construct()
def walrus(x):
    if (n := x.shape[0]) > 1 and (y := x * n) is not None:
        return y, n
    return x


@construct()
def walrus_in_comprehension(x):
    rows = [last := row * 2 for row in x]
    return rows, last


@construct()
def conditional_expression(x):
    return x + 1 if x.dim() == 2 else x - 1, (x if False else None)


@construct()
def chained_comparison(x):
    return x + 1 if 1 < x.shape[0] <= 2 < x.shape[1] else -x, 0 <= 1 < 2 != 3


@construct()
def multiple_assignment(x):
    a = b = x + 1
    a, b = b, a * 2
    (c, d), *rest = (a, b), 1, 2, 3
    return a, b, c is a, d, rest


@construct()
def starred_unpacking(x):
    first, *middle, last = x, 1, 2, x * 2
    head, *tail = x
    return first, middle, last, head, tail


@construct()
def augmented_assignment(x):
    y = x + 0
    y += 1
    y *= 2
    y -= 3
    y /= 4
    y **= 2
    z = [1]
    z += [2]
    z *= 2
    n = 7
    n //= 2
    n <<= 2
    n |= 1
    n ^= 3
    n &= 14
    n %= 9
    n >>= 1
    return y, z, n


@construct()
def swap_and_delete(x):
    a, b = x, x + 1
    a, b = b, a
    c = a
    del a
    return b, c


@construct(graphs=1)
def unbound_local(x):
    y = x + 1
    del y
    try:
        return y
    except UnboundLocalError as error:
        return x * 2, type(error)


@construct()
def docstring_and_annotations(x: torch.Tensor) -> torch.Tensor:
    """A docstring."""
    y: int = 3
    z: "some text"
    return x * y


@construct()
def string_formatting(x):
    name, n = "layer", 3
    return f"{name}_{n:03d}", f"{n!r:>5}", "%s-%d" % (name, n), "{}/{k}".format(name, k=n), x + 1  # noqa: UP031, UP032


@construct()
def shape_in_text(x):
    return f"{x.shape} {x.dtype} {tuple(x.shape)} {x.dim()=}", x + 1


@construct()
def many_arguments(x):
    def wide(a, b, c, d, e, f, g, h, i=9, *j, k=11, l=12, **m):  # noqa: E741
        return a + b + c + d + e + f + g + h + i + sum(j) + k + l + sum(m.values())

    return wide(x, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, l=0, z=3, y=4)


@construct(graphs=0, breaks=1)
def wrong_arguments(x):
    return plain(x, b=1, **{"b": 2})


@construct()
def caught_wrong_arguments(x):
    def one(a):
        return a

    messages = []
    for call in (lambda: one(), lambda: one(x, x), lambda: one(b=1)):
        try:
            call()
        except TypeError as error:
            messages.append(type(error).__name__)
    return messages, x + 1


@construct()
def returns_itself(x):
    return x


construct.cases[-1] = Case(returns_itself, 0, 0, construct.cases[-1].make, (3, 11))


@construct()
def returns_input_and_more(x):
    y = x + 1
    return x, y, y, x


@construct(graphs=2, make=lambda: (torch.ones(2), [1, 2], {"a": torch.zeros(2)}))
def containers_as_arguments(x, items, table):
    items.append(3)
    table["b"] = x + table["a"]
    return x * items[0], items, table


@construct(make=lambda: (torch.ones(2), plain))
def function_as_argument(x, function):
    return function(x, 3)


@construct(make=lambda: (torch.ones(2), 3, 2.5, True, None, "mode"))
def scalars_as_arguments(x, n, f, flag, nothing, mode):
    y = x * n + f
    if flag and nothing is None and mode == "mode":
        y = y + 1
    return y


@construct()
def generator_expression_argument(x):
    return sum(row.sum() for row in x), max(len(s) for s in ("a", "bcd"))


@construct()
def type_checks(x):
    return isinstance(x, torch.Tensor), type(x) is torch.Tensor, isinstance(3, (int, str)), x * 2


@construct()
def assertion_that_holds(x):
    assert x.dim() == 2, f"wrong {x.dim()}"
    return x + 1


@construct(graphs=0, breaks=None)
def assertion_that_fails(x):
    assert x.dim() == 3, f"wrong {x.dim()}"
    return x + 1


@construct(graphs=None, breaks=None)
def single_dispatch(x):
    return show(3), show("text"), x + 1


@functools.singledispatch
def show(value):
    return "any"


@show.register
def _(value: int):
    return "int"


class Holder:
    def __init__(self, x):
        self.x = x

    @functools.singledispatchmethod
    def kind(self, value):
        return "any"

    @kind.register
    def _(self, value: int):
        return "int"

    half = functools.partialmethod(lambda self, k, t: t * k, 0.5)


@construct()
def partial_method(x):
    return Holder(x).half(x)


@construct(graphs=None, breaks=None)
def single_dispatch_method(x):
    return Holder(x).kind(3), x + 1


@construct()
def class_as_callable_argument(x):
    return [Holder(t).x for t in map(operator.neg, [x, x + 1])]


@construct()
def nested_functions_three_deep(x):
    a = 1

    def one():
        b = 2

        def two():
            nonlocal b
            c = a + b
            b = 10

            def three():
                return x * a + b * c

            return three()

        return two() + b

    return one()


@construct()
def unused_star(x):
    def ignore(*_, **__):
        return None

    return ignore(x, 1, a=2), x + 1


@construct()
def wraps_keeps_wrapped(x):
    return decorated.__wrapped__(x, 2)


@construct()
def total_ordering(x):
    return Version(1) < Version(2), Version(2) >= Version(1), x + 1


@construct()
def attribute_and_item_getters(x):
    pair = operator.itemgetter(0, 2)([x, 1, x + 1])
    shape = operator.attrgetter("shape")(x)
    name = operator.methodcaller("sum", 0)(x)
    return pair, shape, name


@construct()
def eval_order(x):
    log = []

    def note(name, value):
        log.append(name)
        return value

    y = note("a", x) + note("b", 1) * note("c", 2)
    z = {note("k", "key"): note("v", y)}
    return log, z


def _made(name, doc=None):
    def closure(y: torch.Tensor, by: int = 2) -> torch.Tensor:
        "What it does."
        return y * by

    if name is not None:
        closure.__name__, closure.__doc__ = name, doc
    return closure


def _counted(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) + 1

    return wrapper


def _texts(function):
    return function.__name__, function.__qualname__, function.__doc__, function.__module__


def wraps_what_is_given(x, function):
    wrapper = _counted(function)
    return wrapper(x), _texts(wrapper), wrapper.__annotations__, wrapper.__wrapped__(x, 3)


def writes_to_the_fields_of_what_is_given(x, function):
    before = dict(function.__dict__)
    function.__dict__["level"] = 3
    return before, function.level, function(x)


@pytest.mark.parametrize("program", [wraps_what_is_given, writes_to_the_fields_of_what_is_given])
def test_closures_of_one_code_are_told_apart_by_what_is_read_of_them(program) -> None:
    """Functions that each call of `_made` makes anew are known by their code."""
    captured = optimize(program, lambda gm, inputs: gm.forward, fullgraph=True)
    x = torch.ones(2)
    for name, doc in ((None, None), ("first", "a"), ("second", "a"), ("second", "b"), (None, None)):
        theirs, ours = _made(name, doc), _made(name, doc)
        assert same(program(x, theirs), captured(x, ours))
        assert theirs.__dict__ == ours.__dict__


def test_a_wrapper_of_what_is_given_is_returned() -> None:
    def program(x, function):
        return x * 2, _counted(function)

    captured = optimize(program, lambda gm, inputs: gm.forward, fullgraph=True)
    given = _made("given", "text")
    _, wrapper = captured(torch.ones(2), given)
    assert wrapper.__wrapped__ is given and _texts(wrapper) == _texts(given)
    assert wrapper.__annotations__ is given.__annotations__ and given.__dict__ == {}
    torch.testing.assert_close(wrapper(torch.ones(2)), torch.full((2,), 3.0))


_set_attribute, _of_dict, _PAIRS = (
    object.__setattr__.__get__,
    dict.get.__get__,
    {("a", 1), ("b", 2)},
)


class _Frozen:
    __slots__ = ("value", "other")

    def __init__(self, value):
        bound = _set_attribute(self)
        bound("value", value)
        bound("other", 2)

    def __setattr__(self, name, value):
        raise AttributeError(name)


@construct()
def bound_by_hand(x):
    """As the initialisers do that attrs writes, of classes that are frozen."""
    made = _Frozen(x * 2)
    get = _of_dict({"k": x})
    return made.value + made.other, get("k"), get("z", 3), list.append.__get__([1])(2)


@construct()
def members_that_are_tuples(x):
    return x * (3 if ("a", 1) in _PAIRS else 2), ("a", 2) in _PAIRS, sorted(_PAIRS), len(_PAIRS)


def _only_by_place(a, b, /, c, *args, d=4, **others):
    return a * b + c + sum(args) + d + sum(others.values())


class _WithMethods:
    def method(self, x, **others):
        return x

    @classmethod
    def of_class(cls, x):
        return x


@construct()
def calls_that_do_not_fit(x):
    def local(x, y=1, *, z):
        return x + z

    found = []
    for call in (
        lambda: _only_by_place(a=1, b=2, c=3),
        lambda: _only_by_place(1, **{"a": 2, "c": 3}),
        lambda: _only_by_place(1, 2, 3, d=1, **{"d": 2}),
        lambda: _only_by_place(x, 2, 3, a=1),
        lambda: _WithMethods().method(1, q=1, **{"q": 2}),
        lambda: _WithMethods.of_class(1, 2, 3),
        lambda: _WithMethods(3),
        lambda: local(1, 2, 3, z=1),
        lambda: local(*[1], x=2, z=3),
        lambda: local(1, **{"z": 1, "w": 3}),
        lambda: local(1, **3),
        lambda: dict(a=1, **{"a": 2}),
        lambda: torch.add(x, other=1, **{"other": 2}),
    ):
        try:
            found.append(call())
        except TypeError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)


_GENERIC = """
def program(x):
    def inner[T: (int, str)](value: T, *rest: T) -> T:
        return value

    def plain(value):
        return value

    parameters = [fn.__type_params__ for fn in (inner, plain)]
    return inner(x) * 2, [[one.__name__ for one in found] for found in parameters]
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no such syntax")
def test_the_type_parameters_of_functions() -> None:
    namespace = {}
    exec(_GENERIC, namespace)
    program = namespace["program"]
    compiled = optimize(program, CountingBackend())
    for _ in range(2):
        assert same(compiled(torch.ones(2)), program(torch.ones(2)))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="they have them")
def test_functions_without_type_parameters() -> None:
    def program(x):
        return x * (2 if hasattr(lambda: 0, "__type_params__") else 3)

    assert optimize(program, CountingBackend())(torch.ones(1)).item() == 3
