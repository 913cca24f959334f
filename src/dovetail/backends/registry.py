"""Backends by name: ours, what programs register, and what packages publish as entry points.

A backend is what PyTorch's users know: `(gm, example_inputs) -> callable`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, TypeVar, overload

from torch.fx import GraphModule

from dovetail.config import options_set
from dovetail.options import Options, resolve_options, unknown_name
from dovetail.pipeline import CompilerBackend

Backend = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]
B = TypeVar("B", bound=Callable[..., Any])

_ENTRY_POINT_GROUPS = ("dovetail_backends", "torch_dynamo_backends")
_OURS = ("dovetail", "inductor")  # the second is the name that torch.compile's users pass
_TORCH_REGISTRY = "torch._dynamo.backends.registry"
_DEBUG = ("debug",)
# Options that are capture's, whatever the backend.
_OF_CAPTURE = ("recompile_limit", "guard_filter_fn", "on_error", "state_dict_prefix")


@dataclass(frozen=True)
class _Named:
    """A backend that comes with this package: the module beside this one that defines a function
    of its name, or of `function`. `packages` is what must be installed, by the names that are
    imported. `configurable`: it takes what `compile` was told as keywords `mode` and `options`, as
    backends that are not ours do. `makes`: the function is given these, and makes the backend."""

    module: str
    tags: tuple[str, ...] = ()
    function: str = ""
    packages: tuple[str, ...] = ()
    configurable: bool = False
    makes: bool = False

    def installed(self) -> bool:
        return all(find_spec(package) is not None for package in self.packages)


_NAMED: Mapping[str, _Named] = {
    "cudagraphs": _Named("cudagraphs", makes=True),
    "eager": _Named("eager_kernels", _DEBUG),
    "eager_noexcept": _Named("eager_kernels", _DEBUG),
    "eager_debug": _Named("eager_kernels", _DEBUG),
    "pre_dispatch_eager": _Named("eager_kernels", _DEBUG),
    "aot_eager": _Named("eager_kernels", _DEBUG),
    "aot_eager_decomp_partition": _Named("eager_kernels", _DEBUG, "aot_eager"),
    "aot_eager_decomp_partition_with_mode": _Named("eager_kernels", _DEBUG, configurable=True),
    "aot_eager_default_partitioner": _Named("eager_kernels", _DEBUG),
    "aot_ts": _Named("eager_kernels", _DEBUG),
    "ts": _Named("eager_kernels", _DEBUG),
    "onnxrt": _Named("onnxrt", packages=("onnxruntime", "onnx"), makes=True),
    "openvino": _Named("openvino", packages=("openvino", "onnx"), makes=True),
    "tvm": _Named("tvm", packages=("tvm", "onnx"), makes=True),
}


@dataclass(frozen=True)
class _Imported:
    """A backend that `package`, when it is imported, registers with torch.compile as `name`.
    `requirement` installs it; `defaults` are options that it is given unless told otherwise."""

    package: str
    name: str
    requirement: str
    defaults: Mapping[str, Any] = field(default_factory=dict)


# (Torch-TensorRT would run what it fails for as it is, with no more than a line of a log.)
_TENSORRT = _Imported(
    "torch_tensorrt", "torch_tensorrt", "torch-tensorrt", {"pass_through_build_failures": True}
)
_IMPORTED: Mapping[str, _Imported] = {
    "tensorrt": _TENSORRT,
    "torch_tensorrt": _TENSORRT,
    "ipex": _Imported("intel_extension_for_pytorch", "ipex", "intel-extension-for-pytorch"),
}

# Names of torch.compile's that mean nothing here, with the reason.
_REFUSED: Mapping[str, str] = {
    "invoke_subgraph": "it makes one operator of a graph for a trace around torch.compile, and "
    "Dovetail's graphs are not traced from outside; backend='aot_eager' runs the same graphs",
    "aot_eager_decomp_partition_crossref": "it runs PyTorch's fake tensors beside the graph, and "
    "Dovetail has its own; backend='aot_eager_decomp_partition' runs the same graphs",
}


class _Registered:
    """What programs registered: for the whole process, as a name is known everywhere."""

    def __init__(self) -> None:
        self.backends: dict[str, Backend] = {}
        self.tags: dict[str, tuple[str, ...]] = {}
        self.default: str | Backend | None = None


_REGISTERED = _Registered()


@overload
def register_backend(
    compiler_fn: None = ..., name: str | None = ..., tags: Sequence[str] = ...
) -> Callable[[B], B]: ...


@overload
def register_backend(compiler_fn: B, name: str | None = ..., tags: Sequence[str] = ...) -> B: ...


def register_backend(
    compiler_fn: Any = None, name: str | None = None, tags: Sequence[str] = ()
) -> Any:
    """Make a backend known by name; a decorator, with or without arguments.

    Args:
        compiler_fn: the backend, `(gm, example_inputs) -> callable`.
        name: its name; by default that of the function.
        tags: `list_backends` leaves out those tagged "debug" or "experimental", unless told.

    Raises:
        TypeError: it is not callable.
        ValueError: the name is taken.
    """
    if compiler_fn is None:
        return functools.partial(register_backend, name=name, tags=tags)
    if not callable(compiler_fn):
        raise TypeError(f"a backend is a callable, got {type(compiler_fn).__name__}")
    called: str = name or compiler_fn.__name__
    if any(called in names for names in (_REGISTERED.backends, _NAMED, _IMPORTED, _OURS)):
        raise ValueError(f"there is a backend named {called!r} already")
    _REGISTERED.backends[called] = compiler_fn
    _REGISTERED.tags[called] = tuple(tags)
    return compiler_fn


def set_default_backend(backend: str | Backend | None) -> None:
    """Let later calls of `compile` that name no backend use this one; None: ours again.

    Raises:
        TypeError: it is neither a name nor callable.
    """
    if backend is not None and not isinstance(backend, str) and not callable(backend):
        raise TypeError(f"backend must be a name or a callable, got {type(backend).__name__}")
    _REGISTERED.default = backend


def get_default_backend() -> str | Backend:
    """What `compile` uses where no backend is named: that of `set_default_backend`, or else the one
    that the program set for torch.compile, or "dovetail"."""
    if _REGISTERED.default is not None:
        return _REGISTERED.default
    theirs = getattr(sys.modules.get(_TORCH_REGISTRY), "_default_backend", "inductor")
    return "dovetail" if theirs == "inductor" else theirs


def list_backends(exclude_tags: Sequence[str] | None = ("debug", "experimental")) -> list[str]:
    """The names that `backend=` accepts, without those that need a package that is not installed.

    Args:
        exclude_tags: backends with one of these tags are left out; None leaves out none.
    """
    excluded = set(exclude_tags or ())
    tags = {name: named.tags for name, named in _NAMED.items() if named.installed()}
    tags |= {n: () for n, imported in _IMPORTED.items() if find_spec(imported.package) is not None}
    tags |= _REGISTERED.tags
    published = {point.name for group in _ENTRY_POINT_GROUPS for point in entry_points(group=group)}
    untagged = published.difference(_NAMED, _IMPORTED, _OURS)
    kept = {name for name, own in tags.items() if excluded.isdisjoint(own)}
    return sorted({*_OURS, *kept, *untagged})


def lookup_backend(
    backend: str | Backend, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> tuple[Backend, Options]:
    """The backend called `backend` (a callable is taken as it is), told `mode` and `options`, and
    what they say to capture.

    Ours takes the modes and options of `dovetail.Options`, and so do the debugging backends, which
    compile nothing. Any other is given them as keywords, like torch.compile's: a mode that is not
    "default", and options that are not capture's.

    Raises:
        ValueError: an unknown name, mode or option; the message names the near ones.
        RuntimeError: both mode and options.
        ImportError: a backend whose package is not installed.
        TypeError: the backend takes no such keywords.
    """
    if mode is not None and options:
        raise RuntimeError("either mode or options can be given, not both")
    named = _NAMED.get(backend) if isinstance(backend, str) else None
    if backend in _OURS or (named is not None and not (named.configurable or named.makes)):
        chosen = resolve_options(mode, options, options_set())
        if named is None:
            return CompilerBackend(chosen), chosen
        assert isinstance(backend, str)
        return _load(backend, named), chosen
    own = {k: v for k, v in (options or {}).items() if k in _OF_CAPTURE}
    told: dict[str, Any] = {}
    if mode not in (None, "default"):
        told["mode"] = mode
    imported = _IMPORTED.get(backend) if isinstance(backend, str) else None
    defaults = {} if imported is None else imported.defaults
    if defaults or len(own) < len(options or {}):
        told["options"] = {**defaults, **{k: v for k, v in (options or {}).items() if k not in own}}
    found = _told(backend, _find(backend), told, made=named is not None and named.makes)
    return found, resolve_options(None, own)


def _find(backend: str | Backend) -> Backend:
    """A backend that is a callable, comes with a package, or was registered."""
    if not isinstance(backend, str):
        if not callable(backend):
            raise TypeError(f"backend must be a name or a callable, got {type(backend).__name__}")
        return backend
    if backend in _REFUSED:
        raise ValueError(f"backend {backend!r} is not one of Dovetail's: {_REFUSED[backend]}")
    if backend in _NAMED:
        return _load(backend, _NAMED[backend])
    if backend in _IMPORTED:
        return _import(backend, _IMPORTED[backend])
    if backend in _REGISTERED.backends:
        return _REGISTERED.backends[backend]
    for group in _ENTRY_POINT_GROUPS:
        for point in entry_points(group=group, name=backend):
            loaded: Backend = point.load()
            return loaded
    theirs = _registered_with_torch(backend)
    if theirs is not None:
        return theirs
    raise ValueError(unknown_name("backend", backend, list_backends(None)))


def _load(name: str, named: _Named) -> Backend:
    if not named.installed():
        missing = ", ".join(p for p in named.packages if find_spec(p) is None)
        raise ImportError(
            f"backend {name!r} needs {missing}, which is not installed: "
            f'pip install "dovetail[{name}]"'
        )
    module = importlib.import_module(f"dovetail.backends.{named.module}")
    found: Backend = getattr(module, named.function or name)
    return found


def _import(name: str, imported: _Imported) -> Backend:
    if find_spec(imported.package) is None:
        raise ImportError(
            f"backend {name!r} needs {imported.package}, which is not installed: "
            f"pip install {imported.requirement}"
        )
    try:
        importlib.import_module(imported.package)
    except Exception as error:  # (of another version of PyTorch, or without its libraries)
        raise ImportError(
            f"backend {name!r}: importing {imported.package} failed: {error!r}"
        ) from error
    found = _registered_with_torch(imported.name)
    if found is None:
        raise ImportError(
            f"{imported.package} was imported, and registered no backend {imported.name!r}"
        )
    return found


def _registered_with_torch(name: str) -> Backend | None:
    """What the program, or a package that it imported, registered with torch.compile."""
    registry = sys.modules.get(_TORCH_REGISTRY)
    found: Backend | None = getattr(registry, "_COMPILER_FNS", {}).get(name)
    return found


def _told(backend: str | Backend, found: Backend, told: Mapping[str, Any], made: bool) -> Backend:
    """`found`, called with these keywords, if it takes them; with `made`, what it then makes."""
    try:
        inspect.signature(found).bind(*(() if made else (None, None)), **told)
    except TypeError:
        if not told:
            return found  # (a backend of another signature is told of when it is called)
        name = backend if isinstance(backend, str) else getattr(found, "__qualname__", repr(found))
        given = " and ".join(f"{k}={v!r}" for k, v in told.items())
        raise TypeError(f"backend {name} takes no {given}") from None
    except ValueError:  # (a signature that cannot be told)
        pass
    if made:
        backend_made: Backend = found(**told)  # type: ignore[call-arg]
        return backend_made
    return functools.partial(found, **told) if told else found
