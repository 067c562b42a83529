"""penstock: an Arrow Flight server that feeds and drains Apache Spark.

import penstock
with penstock.connect() as c:
    c.put("store/demo/trips", table)
    c.get("store/demo/trips").read_all()
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers know the name; importing typing costs 7 ms
if TYPE_CHECKING:
    from penstock import errors as errors
    from penstock.client import connect as connect

__version__ = "0.1.0"
__all__ = ["connect", "errors"]

_HOMES = {"connect": ("penstock.client", "connect"), "errors": ("penstock.errors", None)}


def __getattr__(name: str) -> object:
    """Names are looked up when they are used: `import penstock` alone costs next to nothing."""
    if name not in _HOMES:
        raise AttributeError(f"penstock has no name {name!r}; it has {', '.join(__all__)}")
    import importlib

    module, attribute = _HOMES[name]
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
