"""One change of the ledger: what the functions get that carry it out."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import pyarrow as pa

from penstock.ledger.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Transaction:
    """All of it happens or nothing does. `Ledger.transaction` opens it and ends it."""

    sql: sqlite3.Connection
    now: float
    catalog: Catalog
    """What is known, with what this transaction has done so far."""

    def schema_id(self, schema: pa.Schema | None) -> int | None:
        """The id of a schema's row, made if need be."""
        if schema is None:
            return None
        ipc = schema.serialize().to_pybytes()
        self.sql.execute("INSERT OR IGNORE INTO schemas(ipc) VALUES (?)", (ipc,))
        found: int = self.sql.execute("SELECT id FROM schemas WHERE ipc = ?", (ipc,)).fetchone()["id"]
        return found
