"""What Spark takes to its workers: a task, and the text of penstock's modules, as workers needn't have it installed.

Pickling the modules by value breaks on what Python keeps by name (caches, type hints, a lazy import; dataclasses on
Spark 3.5). Their text doesn't: it is 65 kB, and compiled once by each worker process.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import penstock


def arrive(package: str, version: str, digest: str, text: bytes, task: bytes) -> Any:
    """In the worker: the task, once its package can be imported. Pickled by value, so all it needs is in here.

    An installed package is used as it is, if it has the driver's version. Workers are used again: text that another
    driver brought is replaced.
    """
    import importlib.abc
    import importlib.util
    import json
    import pickle
    import sys
    import zlib

    class Luggage(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
        def __init__(self) -> None:
            self.text, self.digest = text, digest
            self.modules = json.loads(zlib.decompress(text))

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            return importlib.util.spec_from_loader(name, self) if name in self.modules else None

        def get_source(self, name: str) -> Any:
            return self.modules[name]

        def is_package(self, name: str) -> bool:
            return any(other.startswith(name + ".") for other in self.modules)

    old = [finder for finder in sys.meta_path if type(finder).__name__ == "Luggage"]
    if not any(finder.__dict__["digest"] == digest for finder in old):
        for name in [name for name in sys.modules if old and name.split(".")[0] == package]:
            del sys.modules[name]
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in old]
        there = importlib.util.find_spec(package)
        if there is None or there.origin is None:  # a folder of that name is no package
            sys.meta_path.insert(0, Luggage())
        elif (other := importlib.import_module(package).__version__) != version:
            raise ImportError(
                f"{there.origin} in this worker is {package} {other}, the driver has {version}: install that for "
                "Spark's workers too, or none at all, as the driver's travels with its tasks"
            )
    return pickle.loads(task)  # noqa: S301  # what the driver packed, from whom this very function came


def packed(task: object) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What a `__reduce__` returns for an object that is to arrive as `task`."""
    _arrive_by_value()
    digest, text = _text()
    return arrive, (penstock.__name__, penstock.__version__, digest, text, pickle.dumps(task))


class Carried:
    """A task as mapInArrow takes it."""

    def __init__(self, task: Callable[..., Any]) -> None:
        self._task = task

    def __call__(self, batches: Any) -> Any:
        return self._task(batches)

    def __reduce__(self) -> tuple[Any, ...]:
        return packed(self._task)


class Call:
    """Pickles as the call, and so arrives as what that returns."""

    def __init__(self, function: Callable[..., Any], *values: Any) -> None:
        self._function, self._values = function, values

    def __reduce__(self) -> tuple[Any, ...]:
        return self._function, self._values


@cache
def _arrive_by_value() -> None:
    import sys

    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])


@cache
def _text() -> tuple[str, bytes]:
    """The modules that run in a worker: penstock's ground, its client, this room."""
    brought: Any = getattr(penstock.__spec__, "loader", None)
    if hasattr(brought, "digest"):  # in a worker that packs again, as the data source's planning does
        return brought.digest, brought.text
    root = Path(penstock.__file__).parent
    rooms = ("wire", "rows", "client", "spark_plugin")
    files = sorted([*root.glob("*.py"), *(file for room in rooms for file in root.glob(f"{room}/**/*.py"))])
    names = [".".join([penstock.__name__, *file.relative_to(root).with_suffix("").parts]) for file in files]
    modules = {name.removesuffix(".__init__"): file.read_text("utf-8") for name, file in zip(names, files, strict=True)}
    text = zlib.compress(json.dumps(modules).encode(), 9)
    return hashlib.sha256(text).hexdigest(), text
