"""Recipes of iterators: what is left of one, over the same container or of the same parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail_capture import rebuild
from dovetail_capture import recipe as r
from dovetail_capture.interpreter.protocols import dicts, truth_and_length
from dovetail_capture.interpreter.signals import CannotRebuild
from dovetail_capture.interpreter.values.base import Constant, Value
from dovetail_capture.interpreter.values.containers import DictValue, DictView, ListValue, SetValue
from dovetail_capture.interpreter.values.functions import IteratorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.recipes.rebuilder import Rebuilder


def iterator_recipe(rebuilder: Rebuilder, item: IteratorValue) -> r.Recipe:
    """What is left of an iterator, over the same container or of the same parts."""
    over = item.over[0] if item.plain and item.over else None
    if isinstance(over, Constant) and type(over.value) in (range, str, bytes):
        # Of a range only its ends are written down: it may be long.
        left = over.value[:0] if item.ended else over.value[item.taken :]
        return r.CallFunction(r.Const(iter), (r.Const(left),))
    if item.plain or item.ended or item.over is None:
        rest = r.Build("tuple", () if item.ended else rebuilder.recipes(list(item.iterator)))
        return r.CallFunction(r.Const(iter), (rest,))
    if item.cls is enumerate:
        iterator, start = item.over
        count = r.Const(rebuilder.vm.as_python(start) + item.taken)
        return r.CallFunction(r.Const(enumerate), (rebuilder.recipe(iterator), count))
    new = r.CallFunction(r.Const(item.remake), rebuilder.recipes(item.over))
    if item.size is None:
        return new
    container = rebuilder.vm.native(item.over[0])
    if isinstance(container, DictView):
        container = rebuilder.vm.native(container.dictionary)
    if isinstance(container, ListValue) and container.cls is list:
        place = item.taken if item.remake is iter else item.size - 1 - item.taken
    elif truth_and_length.length(rebuilder.vm, container) == item.size and _as_begun(
        rebuilder, item, container
    ):
        place = item.taken
    else:
        raise CannotRebuild(f"{item.describe()}, whose container has changed,", item.born)
    found = r.CallFunction(r.Const(rebuild.go_on), (new, r.Const(place)))
    if isinstance(container, SetValue):  # one made anew may have another order
        assert item.members is not None
        left = r.Build("tuple", rebuilder.recipes(member for _, member in item.members[place:]))
        parts = (rebuilder.recipe(item.over[0]), left, r.Const(item.size))
        found = r.CallFunction(r.Const(rebuild.rest_of_set), parts)
    if item.over[0].source is not None or container is not item.over[0]:
        rebuilder.at_places.append((found, item))
    return found


def _as_begun(rebuilder: Rebuilder, item: IteratorValue, container: Value) -> bool:
    """Has the container that an iterator goes through the members of when it began?"""
    if isinstance(container, (DictValue, ListValue, SetValue)) and container.left != item.left:
        return False
    keys = [key for key, _ in item.members or ()]
    if isinstance(container, DictValue):
        return list(dicts.materialise(rebuilder.vm, container)) == keys
    return not isinstance(container, SetValue) or container.items.keys() == set(keys)


def replay_steps(rebuilder: Rebuilder) -> None:
    """The steps of iterators that existed before come first: no change is seen by them."""
    rebuilder.effects[:0] = [
        r.RunCall(r.CallFunction(r.Const(rebuild.advance), (rebuilder.recipe(it), r.Const(count))))
        for it, count in rebuilder.vm.session.iterators.steps
    ]


def check_iterators(rebuilder: Rebuilder) -> None:
    """An iterator over what existed before goes on where it is once all changes are made: no
    effect may need it before."""
    uses: dict[int, int] = {}
    if rebuilder.at_places:
        r.below(rebuilder.effects, uses)
    for found, item in rebuilder.at_places:
        if id(found) in uses:
            raise CannotRebuild(f"{item.describe()}, kept in what existed before,", item.born)
