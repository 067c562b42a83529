"""Imports penstock's modules from text. A process of Spark's runs this module's own text first, so it imports nothing
of penstock.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import json
import os
import pickle
import socket
import sys
import zlib
from typing import Any

Bundles = tuple[bytes, ...]
"""Texts of modules by name, as compressed JSON."""


class CarriedModules(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """The modules of one driver."""

    def __init__(self, driver: str, loader: bytes, *, installed: bool) -> None:
        self.driver = driver
        self.loader = loader
        """This very module's code, compressed: it travels on with what this process packs."""
        self.installed = installed
        """Whether the package can be imported without these: they are only packed again then."""
        self.bundles: Bundles = ()
        self.texts: dict[str, str] = {}

    def add(self, bundles: Bundles) -> None:
        """Add modules, each bundle once."""
        for bundle in bundles:
            if bundle not in self.bundles:
                self.bundles += (bundle,)
                self.texts |= {} if self.installed else json.loads(zlib.decompress(bundle))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name in self.texts else None

    def get_source(self, name: str) -> str:
        return self.texts[name]

    def is_package(self, name: str) -> bool:
        return any(other.startswith(name + ".") for other in self.texts)


def acknowledge() -> None:
    """Acknowledge what Spark has sent of this task: the kernel would wait 40 ms, and Spark's next bytes with it.

    The JVM writes without TCP_NODELAY, so that it holds a task's rows back until the task itself is acknowledged.
    """
    if not hasattr(socket, "TCP_QUICKACK"):  # not Linux
        return
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # no socket, or not of TCP
            connection = socket.socket(fileno=int(name))
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            finally:
                connection.detach()


def unpack(package: str, version: str, driver: str, loader: bytes, bundles: Bundles, value: bytes) -> Any:
    """Return the value, once its package can be imported.

    An installed package is used if it has the driver's version. Spark uses processes again: modules that came from
    another driver are replaced.
    """
    acknowledge()
    carried: Any = next((each for each in sys.meta_path if type(each).__name__ == "CarriedModules"), None)
    if carried is not None and carried.driver != driver:
        sys.meta_path.remove(carried)
        for name in [name for name in sys.modules if name.split(".")[0] == package and not carried.installed]:
            del sys.modules[name]
        carried = None
    if carried is None:
        spec = importlib.util.find_spec(package)
        origin = None if spec is None else spec.origin  # without one a folder of that name is no package
        installed = origin is not None
        if installed and (other := importlib.import_module(package).__version__) != version:
            raise ImportError(
                f"{origin} in this worker is {package} {other}, the driver has {version}: install that for "
                "Spark's workers too, or none at all, as the driver's travels with its tasks"
            )
        carried = CarriedModules(driver, loader, installed=installed)
        sys.meta_path.insert(len(sys.meta_path) if installed else 0, carried)
    carried.add(bundles)
    try:
        return pickle.loads(value)  # noqa: S301  # packed by the driver, which has sent this very function
    except ModuleNotFoundError as missing:
        if missing.name != "pyarrow":
            raise
        raise ImportError(
            f"{sys.executable}, the Python of this worker of Spark's, has no pyarrow: install it there, or start Spark "
            "with PYSPARK_PYTHON naming a Python that has it"
        ) from None
