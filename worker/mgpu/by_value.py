"""Classes that the other process cannot import travel as their definition, and keep their identity.

A class from a script, a notebook, a function or a test file is shipped by cloudpickle. Both sides know it from
then on by cloudpickle's own tracking number, so an instance that comes back is an instance of the caller's class.
Everything importable travels by name, as in any pickle.
"""

from __future__ import annotations

import functools
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType

import cloudpickle  # type: ignore[import-untyped, unused-ignore]
from cloudpickle import cloudpickle as tracker

_registry_lock = threading.Lock()  # cloudpickle's list of by-value modules is global to the process
_definitions: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()


def travels_by_value(cls: type) -> bool:
    return "<locals>" in cls.__qualname__ or not is_importable(cls.__module__)


def is_importable(module_name: str) -> bool:
    """Whether another process with the same sys.path finds the very file that this module came from."""
    module = sys.modules.get(module_name)
    if module_name in ("__main__", "__mp_main__") or module is None:
        return False
    path = getattr(module, "__file__", None)
    return path is None or _is_found_at(module_name, path)


@functools.cache
def _is_found_at(module_name: str, path: str) -> bool:
    """Look again as if the module was not loaded: the finders, not sys.modules, are what the child has."""
    parent_name = module_name.rpartition(".")[0]
    parent = sys.modules.get(parent_name)
    if parent_name and (parent is None or not is_importable(parent_name)):
        return False
    for finder in sys.meta_path:
        spec = finder.find_spec(module_name, getattr(parent, "__path__", None))
        if spec is not None:
            is_part_of_python = spec.origin in ("frozen", "built-in")
            return is_part_of_python or os.path.realpath(spec.origin or "") == os.path.realpath(path)
    return False


def reduce_class(cls: type) -> tuple[object, ...]:
    """For `Pickler.reducer_override`: a class as a token, with its definition for a side that lacks it."""
    return _class_of_token, (tracker._get_or_create_tracker_id(cls), class_to_bytes(cls))


def _class_of_token(token: str, definition: bytes) -> type:
    known = tracker._DYNAMIC_CLASS_TRACKER_BY_ID.get(token)
    return known if known is not None else class_from_bytes(definition)


def class_to_bytes(cls: type) -> bytes:
    """Raises TypeError, naming what it could not take along."""
    definition = _definitions.get(cls)
    return define(cls) if definition is None else definition


def define(cls: type) -> bytes:
    """As it is now, and so until it is defined again: a notebook's class changes between two fleets."""
    definition = _definitions[cls] = _define(cls)
    return definition


def class_from_bytes(definition: bytes) -> type:
    cls = pickle.loads(definition)  # noqa: S301  # written by our own parent or child process
    if not isinstance(cls, type):
        raise TypeError(f"expected a class, got {cls!r}")
    return cls


def _define(cls: type) -> bytes:
    if not travels_by_value(cls):
        return pickle.dumps(cls)
    try:
        return _dump(cls, sys.modules.get(cls.__module__))
    except Exception as error:  # reducers of foreign objects raise whatever they like
        culprit = _unpicklable_part(cls) or cls.__qualname__
        raise TypeError(f"{cls.__qualname__} cannot be shipped to the ranks: {culprit}: {error}") from error


def _dump(value: object, module: ModuleType | None) -> bytes:
    if module is None or module.__name__ in ("__main__", "__mp_main__") or is_importable(module.__name__):
        return bytes(cloudpickle.dumps(value))
    with _registry_lock:
        cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(cloudpickle.dumps(value))
        finally:
            cloudpickle.unregister_pickle_by_value(module)


def _unpicklable_part(cls: type) -> str | None:
    """The path of the first attribute, or captured variable, that does not pickle."""
    for path, value in _parts(cls):
        try:
            _dump(value, sys.modules.get(cls.__module__))
        except Exception:  # see _define
            return f"{path} is a {type(value).__name__}"
    return None


def _parts(cls: type) -> Iterator[tuple[str, object]]:
    for name, attribute in vars(cls).items():
        function = getattr(attribute, "__wrapped__", attribute)
        if isinstance(function, FunctionType):
            yield from _captures(f"{cls.__qualname__}.{name}", function)
        elif not name.startswith("__") and name != "_abc_impl":
            yield f"{cls.__qualname__}.{name}", attribute


def _captures(path: str, function: FunctionType) -> Iterator[tuple[str, object]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    captured: Mapping[str, object] = {name: cell.cell_contents for name, cell in cells if name != "__class__"}
    used = {name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__}
    for name, value in {**used, **captured}.items():
        yield f"{path} -> {name}", value
