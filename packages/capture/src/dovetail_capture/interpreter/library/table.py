"""All that the interpreter knows of library functions, in one table."""

from __future__ import annotations

import functools
import types
from typing import Any

from dovetail_capture.interpreter.library import (
    autograd_functions,
    builtin_functions,
    checkpointing,
    checks,
    container_methods,
    context_variables,
    copying,
    data_parts,
    differentiation,
    draws,
    flex,
    function_modes,
    getters,
    higher_order,
    hooks,
    iteration_functions,
    itertools_functions,
    lazy_modules,
    local_classes,
    mapping_proxies,
    normalisation,
    numpy_functions,
    optimizers,
    own_functions,
    partials,
    polyfills,
    settings,
    stdlib,
    storages,
    tensor_attributes,
    tensor_creation,
    torch_functions,
    torch_polyfills,
    transforms,
    triton_launches,
    weak_references,
    wrapping_tensors,
)
from dovetail_capture.interpreter.library.conversions import to_text
from dovetail_capture.interpreter.library.handlers import Handler
from dovetail_capture.interpreter.library.operations import is_operation
from dovetail_capture.interpreter.library.tensor_attributes import tensor_property
from dovetail_capture.interpreter.library.type_functions import is_instance
from dovetail_capture.interpreter.protocols import class_attributes

__all__ = [
    "CODE_HANDLERS",
    "HANDLERS",
    "NAMED_HANDLERS",
    "NEW_HANDLERS",
    "PURE_CLASSES",
    "call_transformed",
    "is_instance",
    "is_operation",
    "is_pure",
    "mapping_of",
    "numpy_functions",
    "require_truth",
    "set_class_attr",
    "tensor_property",
    "to_text",
]  # fmt: skip

HANDLERS: dict[Any, Handler] = {
    **container_methods.HANDLERS,
    **builtin_functions.HANDLERS,
    **iteration_functions.HANDLERS,
    **stdlib.HANDLERS,
    **context_variables.HANDLERS,
    **weak_references.HANDLERS,
    **partials.HANDLERS,
    **getters.HANDLERS,
    **itertools_functions.HANDLERS,
    **torch_functions.HANDLERS,
    **tensor_attributes.HANDLERS,
    **storages.HANDLERS,
    **settings.HANDLERS,
    **own_functions.HANDLERS,
    **wrapping_tensors.HANDLERS,
    **tensor_creation.HANDLERS,
    **polyfills.HANDLERS,
    **torch_polyfills.HANDLERS,
    **checkpointing.HANDLERS,
    **optimizers.HANDLERS,
    **transforms.HANDLERS,
    **autograd_functions.HANDLERS,
    **differentiation.HANDLERS,
    **hooks.HANDLERS,
    **draws.HANDLERS,
    **copying.HANDLERS,
    **numpy_functions.HANDLERS,
    **checks.HANDLERS,
    **data_parts.HANDLERS,
    **local_classes.HANDLERS,
    **mapping_proxies.HANDLERS,
    **function_modes.HANDLERS,
    **higher_order.HANDLERS,
}
as_subclass = own_functions.as_subclass
check_input_stays = own_functions.check_input_stays
through_modes = function_modes.through_modes
ask_objects = own_functions.ask_objects
require_truth = checks.require_truth
mapping_of = mapping_proxies.mapping_of
set_class_attr = local_classes.set_class_attr
call_transformed = transforms.call_transformed
CODE_HANDLERS = {
    **polyfills.CODE_HANDLERS,
    **optimizers.CODE_HANDLERS,
    **transforms.CODE_HANDLERS,
    **normalisation.CODE_HANDLERS,
    **lazy_modules.CODE_HANDLERS,
}
# By module and qualified name: of what is never imported or named here.
NAMED_HANDLERS: dict[tuple[str, str], Handler] = {
    **flex.BY_NAME,
    **torch_polyfills.BY_NAME,
    **triton_launches.BY_NAME,
}
NEW_HANDLERS = {
    **builtin_functions.NEW_HANDLERS,
    **tensor_creation.NEW_HANDLERS,
    **own_functions.NEW_HANDLERS,
    functools.partial: partials.partial_of_class,
}
PURE_CLASSES: frozenset[type] = stdlib.PURE_CLASSES | torch_functions.PURE_CLASSES

_NUMPY_EFFECTS = frozenset({"copyto", "put", "place", "putmask", "put_along_axis", "fill_diagonal",
                            "save", "savetxt", "savez", "savez_compressed"})  # fmt: skip
_PURE_TYPES = stdlib.PURE_TYPES + torch_functions.PURE_TYPES


def is_pure(fn: Any) -> bool:
    """Is `fn` known to have no effect and to depend on its arguments only?"""
    if isinstance(fn, class_attributes.C_METHODS):
        return issubclass(fn.__objclass__, _PURE_TYPES) or fn in stdlib.PURE_FUNCTIONS
    if type(fn).__name__ == "_ArrayFunctionDispatcher" and type(fn).__module__ == "numpy":
        return fn.__name__ not in _NUMPY_EFFECTS
    if isinstance(fn, types.BuiltinFunctionType):
        if fn in stdlib.PURE_FUNCTIONS or fn.__module__ in stdlib.PURE_MODULES:
            return True
        return isinstance(fn.__self__, _PURE_TYPES)
    try:
        return fn in stdlib.PURE_FUNCTIONS
    except TypeError:
        return False
