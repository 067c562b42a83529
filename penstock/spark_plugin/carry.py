"""What travels to Spark's processes: a value, and the text of its modules, so that workers need no penstock.

A task carries `worker/` and the modules that it imports, 24 kB in all, and `decode/` if it decodes or encodes payloads;
the processes at the driver that plan for the data source get the other modules, too.

Pickling modules by value would break on everything that Python finds by name (caches, type hints, lazy imports;
dataclasses on Spark 3.5). Text doesn't, and a process compiles it once.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import marshal
import pickle
import sys
import threading
import tokenize
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import penstock

_LOADER = "penstock.spark_plugin.worker.loader"
_TASKS = ("penstock.spark_plugin.worker.tasks", "penstock.spark_plugin.worker.pieces")
_DECODING = ("penstock.decode.decoding", "penstock.rows.to_json")
_PLANNING = ("penstock.spark_plugin.source",)
_UNPACK = "exec(__import__('marshal').loads(__import__('zlib').decompress(loader)), globals()) or unpack(*arguments)"
"""Evaluated on unpickling: only builtins are pickled by name. The loader travels as code, as compiling its text would
take 0.3 ms of each task. Spark checks that all its Pythons have the same minor version."""

_READING = threading.Lock()
"""Two threads of a driver may write their first frames at once: in Python 3.11 `ast.parse` fails in one of them."""


def pack(
    value: object, *, planning: bool = False, decoding: bool = False
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the `__reduce__` of an object that is unpickled as `value`: in a task, which may decode or encode, or in a
    process that plans.
    """
    with _READING:
        driver, loader, *bundles = _texts()
    needed = tuple(bundles if planning else bundles[: 2 if decoding else 1])
    arguments = penstock.__name__, penstock.__version__, driver, loader, needed, pickle.dumps(value)
    return eval, (_UNPACK, {"loader": loader, "arguments": arguments})


class CarriedTask:
    """A task as mapInArrow takes it."""

    def __init__(self, task: Callable[..., Any], *, decoding: bool = False) -> None:
        self._task, self._decoding = task, decoding

    def __call__(self, batches: Any) -> Any:
        return self._task(batches)

    def __reduce__(self) -> tuple[Any, ...]:
        return pack(self._task, decoding=self._decoding)


class PickledCall:
    """Pickles as a call: it is unpickled as the call's result."""

    def __init__(self, function: Callable[..., Any], *values: Any) -> None:
        self._function, self._values = function, values

    def __reduce__(self) -> tuple[Any, ...]:
        return self._function, self._values


@cache
def _texts() -> tuple[Any, ...]:
    """Return the digest of this driver's modules, the loader, the modules that tasks need, those that decode, and those
    of planning.
    """
    carried: Any = next((each for each in sys.meta_path if type(each).__name__ == "CarriedModules"), None)
    if carried is not None:  # to read the modules takes each process that plans 40 ms
        return carried.driver, carried.loader, *carried.bundles
    tasks = read_modules(_TASKS)
    decoding = {name: text for name, text in read_modules(_DECODING).items() if name not in tasks}
    known = tasks | decoding
    planning = {name: text for name, text in read_modules((*_PLANNING, _LOADER)).items() if name not in known}
    bundles = [zlib.compress(json.dumps(modules).encode(), 9) for modules in (tasks, decoding, planning)]
    return hashlib.sha256(b"".join(bundles)).hexdigest(), _code(planning[_LOADER]), *bundles


def _code(text: str) -> bytes:
    return zlib.compress(marshal.dumps(compile(text, "<penstock>", "exec", dont_inherit=True)), 9)


def read_modules(names: Iterable[str]) -> dict[str, str]:
    """Return the text of modules of penstock, and of those that they import, by name; without their words, which are
    a third.
    """
    texts: dict[str, str] = {}
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        file = _file_of(name)
        if file is not None and name not in texts:
            tree = ast.parse(text := file.read_text("utf-8"))
            texts[name] = _without_words(text, tree)
            waiting += [name.rpartition(".")[0], *(each for each in _imports(tree) if each.startswith("penstock"))]
    return dict(sorted(texts.items()))


def _file_of(name: str) -> Path | None:
    path = Path(penstock.__file__).parents[1] / name.replace(".", "/")
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if name and file.is_file()), None)


def _imports(node: ast.AST) -> Iterator[str]:
    """Yield the names that a module imports, inside functions too, but not for the type checker alone."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module:
        yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    for child in ast.iter_child_nodes(node):
        yield from _imports(child)


def _without_words(text: str, tree: ast.Module) -> str:
    """Return the text without comments and with empty docstrings; every line keeps its number, for tracebacks."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            end = node.end_lineno or node.lineno
            lines[node.lineno - 1 : end] = [f"{' ' * node.col_offset}''", *[""] * (end - node.lineno)]
    return "\n".join(lines)
