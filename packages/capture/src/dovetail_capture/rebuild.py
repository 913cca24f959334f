"""Functions that replacement code calls to read and write objects exactly as recipes mean it, and
to make iterators of `itertools` anew that a frame has begun.
"""

from __future__ import annotations

import itertools
import warnings
from _thread import allocate_lock, start_new_thread
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from operator import is_
from types import CellType, CodeType, FrameType, FunctionType, MemberDescriptorType, TracebackType
from typing import Any

import torch

from dovetail_capture._frame_hook import Switched
from dovetail_capture._frame_hook import get_item as get_item
from dovetail_capture._frame_hook import replace_dict as replace_dict
from dovetail_capture.bytecode.assembler import encode_lines
from dovetail_capture.environment.callers import users_part
from dovetail_capture.knobs import FULL_TRACEBACKS

Place = tuple[FrameType, int, int]
"""Where an exception passed: a frame, the offset of its instruction, the line."""


def get_key(base: dict[Any, Any], index: int) -> Any:
    """The key at a position of a dict, in insertion order."""
    keys = OrderedDict.__iter__(base) if isinstance(base, OrderedDict) else dict.__iter__(base)
    return next(islice(keys, index, None))


def _slot_of(target: Any, name: str) -> Any:
    for klass in type(target).__mro__:
        found = klass.__dict__.get(name)
        if isinstance(found, MemberDescriptorType):
            return found
    return None


def go_on(iterator: Any, place: int) -> Any:
    """An iterator over a container, moved to a place: of a list by index, else after so many
    steps."""
    if hasattr(iterator, "__setstate__"):
        iterator.__setstate__(place)
    else:
        next(islice(iterator, place, place), None)
    return iterator


def ended_generator(code: CodeType) -> Any:
    """A generator of this code that has ended."""
    made = FunctionType(code, {}, code.co_name, None, tuple(CellType() for _ in code.co_freevars))
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    generator = made(*[None] * code.co_argcount, **dict.fromkeys(named))
    generator.close()
    return generator


def advance(iterator: Iterator[Any], steps: int) -> None:
    """Take steps of an iterator, the one after its last item included."""
    for _ in range(steps):
        next(iterator, None)


def as_array(tensor: Any) -> Any:
    """The array of a tensor's memory. Its base is an array, too: programs look into that."""
    return tensor.numpy().view()


def rest_of_set(items: set[Any], left: tuple[Any, ...], size: int) -> Iterator[Any]:
    """An iterator over a set of so many members that has these left: the set's own, unless its
    order is another one."""
    order = list(set.__iter__(items))
    if len(order) == size and all(map(is_, order[size - len(left) :], left)):
        return go_on(set.__iter__(items), size - len(left))  # type: ignore[no-any-return]
    return _while_sized(items, left, size)


def _while_sized(items: set[Any], left: tuple[Any, ...], size: int) -> Iterator[Any]:
    for step in range(len(left) + 1):
        if set.__len__(items) != size:
            raise RuntimeError("Set changed size during iteration")
        if step < len(left):
            yield left[step]


def take_all(items: list[Any]) -> tuple[Any, ...]:
    """The items of a list, which holds them no longer."""
    taken = tuple(items)
    items.clear()
    return taken


def uncaptured(code: CodeType, globals_: dict[str, Any], closure: tuple[Any, ...]) -> Switched:
    """A function of this code that runs, with all that it calls, as Python runs it."""
    return Switched(FunctionType(code, globals_, code.co_name, None, closure or None), None)


def random_states(*devices: str) -> tuple[tuple[str, Any], ...]:
    """The states of the generators of devices."""
    return tuple((device, _generators(device).get_rng_state(*_place(device))) for device in devices)


def set_random_states(states: tuple[tuple[str, Any], ...]) -> None:
    """Put generators back to where they were."""
    for device, state in states:
        _generators(device).set_rng_state(state, *_place(device))


def copies(*tensors: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Tensors with copies of what they hold."""
    with torch._C.DisableTorchFunction():
        return tuple((tensor, tensor.detach().clone()) for tensor in tensors)


def put_back(saved: tuple[tuple[torch.Tensor, torch.Tensor], ...]) -> None:
    """Let tensors hold again what they held."""
    with torch._C.DisableTorchFunction():
        for tensor, held in saved:
            tensor.detach().copy_(held)


def _generators(device: str) -> Any:
    return torch if device == "cpu" else torch.get_device_module(device)


def _place(device: str) -> tuple[str, ...]:
    return () if device == "cpu" else (device,)


def all_hold(*holds: Any) -> bool:
    """Do all checks hold? Reading them waits for their devices."""
    with torch._C.DisableTorchFunction():
        return all(map(bool, holds))


def tell_of_graph_error(error: Exception) -> None:
    """Say that a graph raised where the program, run again, did not."""
    warnings.warn(
        f"a compiled graph raised {error!r}; the function was run again, uncompiled, and did not "
        "raise. Please report this.",
        RuntimeWarning,
        stacklevel=3,
    )


def hide_ours(error: BaseException) -> None:
    """Take the frames of what ran a graph out of the traceback of what it raised."""
    if not FULL_TRACEBACKS:
        error.__traceback__ = users_part(error.__traceback__)


def hide_caller(error: BaseException) -> None:
    """Take away the newest entry of an exception's traceback, that of the frame which handles it:
    what it called is the same function of the user's, and has an entry of its own."""
    entry = error.__traceback__
    if entry is not None and entry.tb_next is not None:
        error.__traceback__ = entry.tb_next


def del_attribute(target: Any, name: str) -> None:
    """Delete straight from the instance."""
    slot = _slot_of(target, name)
    if slot is not None:
        slot.__delete__(target)
    elif issubclass(type(target), type):
        type.__delattr__(target, name)
    else:
        del object.__getattribute__(target, "__dict__")[name]


def move_keys(target: dict[Any, Any], moves: tuple[str, ...], *keys: Any) -> None:
    """Let the keys of a dictionary come and go, as they did in the program, without values."""
    base = OrderedDict if isinstance(target, OrderedDict) else dict
    for move, key in zip(moves, keys, strict=True):
        match move:
            case "put":
                base.__setitem__(target, key, None)
            case "pop":
                base.__delitem__(target, key)
            case "popitem":  # the next key takes the place of the last one
                base.popitem(target)
            case "clear":
                base.clear(target)
            case _:
                assert isinstance(target, OrderedDict)
                OrderedDict.move_to_end(target, key, move == "last")


def set_items(target: dict[Any, Any], pairs: Iterable[tuple[Any, Any]]) -> None:
    """Give keys of a dictionary these values: those that it has keep their places."""
    base = OrderedDict if isinstance(target, OrderedDict) else dict
    for key, value in pairs:
        base.__setitem__(target, key, value)


def replace_list(target: list[Any], items: Iterable[Any]) -> None:
    """Give a list these items, in place."""
    list.__setitem__(target, slice(None), items)


def replace_set(target: set[Any], items: Iterable[Any]) -> None:
    """Only what differs is touched: iterators over the set may be under way."""
    wanted = {item: item for item in items}
    for member in list(set.__iter__(target)):
        if type(wanted.get(member, wanted)) is not type(member):
            set.discard(target, member)
    for item in wanted:
        set.add(target, item)


def replace_deque(target: deque[Any], items: Iterable[Any]) -> None:
    """Give a deque these items, in place."""
    deque.clear(target)
    deque.extend(target, items)


def with_traceback(error: BaseException, places: tuple[Place, ...]) -> BaseException:
    """Give an exception that was raised while capturing the traceback it has in eager: `places`
    are those it passed through, outermost first."""
    found: TracebackType | None = None
    for frame, offset, line in reversed(places):
        found = TracebackType(found, frame, offset, line)
    return error.with_traceback(found)


@lru_cache(maxsize=256)
def place_of_error(code: CodeType, offset: int) -> Place:
    """What a traceback entry for an instruction of `code` is made of. It needs a frame: that of
    code that raises, named and placed as the user's. It runs in a thread of its own: a frame keeps
    those below it alive."""
    positions = next(islice(code.co_positions(), offset // 2, None))
    line = positions[0] or code.co_firstlineno
    raising = compile("raise Exception", code.co_filename, "exec").replace(
        co_name=code.co_name, co_qualname=code.co_qualname, co_firstlineno=line
    )
    table = encode_lines([(positions, len(raising.co_code) // 2)], line)
    found: list[Place] = []
    done = allocate_lock()
    done.acquire()
    start_new_thread(_raise, (raising.replace(co_linetable=table), line, found, done))
    done.acquire()
    return found[0]


def _raise(code: CodeType, line: int, found: list[Place], done: Any) -> None:
    try:
        exec(code, {})
    except Exception as error:
        assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
        entry = error.__traceback__.tb_next
        found.append((entry.tb_frame, entry.tb_lasti, line))
        del entry
    finally:
        done.release()


REPLACERS = {
    "list": replace_list,
    "grown list": list.extend,
    "dict": replace_dict,
    "grown dict": set_items,
    "OrderedDict": replace_dict,
    "defaultdict": replace_dict,
    "set": replace_set,
    "deque": replace_deque,
}


def new_function(
    code: Any,
    globals_: dict[str, Any],
    name: str,
    defaults: tuple[Any, ...] | None,
    kwdefaults: dict[str, Any] | None,
    closure: tuple[Any, ...],
    annotations: Any,
) -> FunctionType:
    """A function as MAKE_FUNCTION makes it."""
    function = FunctionType(code, globals_, name, defaults, closure or None)
    if kwdefaults is not None:
        function.__kwdefaults__ = kwdefaults
    if annotations is not None:
        if isinstance(annotations, tuple):  # flat: name, annotation, name, annotation ...
            annotations = dict(zip(annotations[::2], annotations[1::2], strict=True))
        function.__annotations__ = annotations
    return function


def evaluate(expr: Any, names: tuple[str, ...], *values: int) -> int:
    """A whole number that depends on sizes and other numbers."""
    number: int = expr.evaluate(dict(zip(names, values, strict=True)))
    return number


def shuffled(generator: Any, items: list[Any]) -> list[Any]:
    """The list, shuffled."""
    generator.shuffle(items)
    return items


Function = Callable[[Any, Any], Any] | None


def chained(current: Iterator[Any], parts: Iterable[Any]) -> Iterator[Any]:
    """A `chain` that has begun with its `current` part, with more `parts` to come."""
    return itertools.chain.from_iterable(itertools.chain((current,), parts))


def cycled(items: Iterator[Any], again: int, *saved: Any) -> Iterator[Any]:
    """A `cycle` that has `saved` items, and has given so many of them again."""
    made = itertools.cycle(itertools.chain(saved, items))
    for _ in range(len(saved) + again):
        next(made)
    return made


def paired(last: Any, items: Iterator[Any]) -> Iterator[Any]:
    """A `pairwise` that has come to `last`."""
    return itertools.pairwise(itertools.chain((last,), items))


def zipped_longest(fill: Any, *parts: Iterator[Any]) -> Iterator[Any]:
    """`zip_longest`."""
    return itertools.zip_longest(*parts, fillvalue=fill)


def accumulated(items: Iterator[Any], function: Function, initial: Any) -> Iterator[Any]:
    """`accumulate`."""
    return itertools.accumulate(items, function, initial=initial)


def accumulated_from(items: Iterator[Any], function: Function, total: Any) -> Iterator[Any]:
    """An `accumulate` that has come to this total."""
    made = itertools.accumulate(itertools.chain((total,), items), function)
    next(made)
    return made


def no_longer_dropped(items: Iterator[Any]) -> Iterator[Any]:
    """A `dropwhile` that drops nothing any more."""
    return itertools.dropwhile(_never, items)


def _never(item: Any) -> bool:
    return False
