"""Imports penstock's modules from text. A process of Spark's runs this module's own text first, so it imports nothing
of penstock.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import pickle
import sys
import zlib
from typing import Any

Bundles = tuple[bytes, ...]
"""Texts of modules by name, as compressed JSON."""


class CarriedModules(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """The modules of one driver."""

    def __init__(self, driver: str) -> None:
        self.driver = driver
        self.bundles: Bundles = ()
        self.texts: dict[str, str] = {}

    def add(self, bundles: Bundles) -> None:
        """Add modules, each bundle once."""
        for bundle in bundles:
            if bundle not in self.bundles:
                self.bundles += (bundle,)
                self.texts |= json.loads(zlib.decompress(bundle))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name in self.texts else None

    def get_source(self, name: str) -> str:
        return self.texts[name]

    def is_package(self, name: str) -> bool:
        return any(other.startswith(name + ".") for other in self.texts)


def unpack(package: str, version: str, driver: str, bundles: Bundles, value: bytes) -> Any:
    """Return the value, once its package can be imported.

    An installed package is used if it has the driver's version. Spark uses processes again: modules that came from
    another driver are replaced.
    """
    carried: Any = next((each for each in sys.meta_path if type(each).__name__ == "CarriedModules"), None)
    if carried is not None and carried.driver != driver:
        sys.meta_path.remove(carried)
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            del sys.modules[name]
        carried = None
    if carried is None:
        installed = importlib.util.find_spec(package)
        if installed is None or installed.origin is None:  # a folder of that name is no package
            carried = CarriedModules(driver)
            sys.meta_path.insert(0, carried)
        elif (other := importlib.import_module(package).__version__) != version:
            raise ImportError(
                f"{installed.origin} in this worker is {package} {other}, the driver has {version}: install that for "
                "Spark's workers too, or none at all, as the driver's travels with its tasks"
            )
    if carried is not None:
        carried.add(bundles)
    return pickle.loads(value)  # noqa: S301  # packed by the driver, which has sent this very function
