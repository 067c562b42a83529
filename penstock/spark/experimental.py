"""The catalog of a session. Spark's own messages for it are marked as unstable: these names may change with them.

from penstock.spark.experimental import Catalog
Catalog(spark).list_tables().show()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.spark.frame import Frame
from penstock.spark.plans import node

if TYPE_CHECKING:
    from penstock.spark.session import Session


class Catalog:
    """Databases, tables, columns and functions; lists are frames."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def current_catalog(self) -> str:
        """Return the catalog in use."""
        return str(self._value("current_catalog"))

    def set_current_catalog(self, name: str) -> None:
        """Use a catalog."""
        self._value("set_current_catalog", catalog_name=name)

    def current_database(self) -> str:
        """Return the database in use."""
        return str(self._value("current_database"))

    def set_current_database(self, name: str) -> None:
        """Use a database."""
        self._value("set_current_database", db_name=name)

    def list_catalogs(self, pattern: str | None = None) -> Frame:
        """Return the catalogs, or those like a pattern."""
        return self._frame("list_catalogs", pattern=pattern)

    def list_databases(self, pattern: str | None = None) -> Frame:
        """Return the databases, or those like a pattern."""
        return self._frame("list_databases", pattern=pattern)

    def list_tables(self, database: str | None = None, pattern: str | None = None) -> Frame:
        """Return the tables and views of a database, temporary ones included."""
        return self._frame("list_tables", db_name=database, pattern=pattern)

    def list_columns(self, table: str, database: str | None = None) -> Frame:
        """Return the columns of a table or view."""
        return self._frame("list_columns", table_name=table, db_name=database)

    def list_functions(self, database: str | None = None, pattern: str | None = None) -> Frame:
        """Return the functions that SQL may call."""
        return self._frame("list_functions", db_name=database, pattern=pattern)

    def database_exists(self, name: str) -> bool:
        """Return whether there is such a database."""
        return bool(self._value("database_exists", db_name=name))

    def table_exists(self, name: str, database: str | None = None) -> bool:
        """Return whether there is such a table or view."""
        return bool(self._value("table_exists", table_name=name, db_name=database))

    def function_exists(self, name: str, database: str | None = None) -> bool:
        """Return whether there is such a function."""
        return bool(self._value("function_exists", function_name=name, db_name=database))

    def drop_temp_view(self, name: str) -> bool:
        """Remove a temporary view; return whether it was there."""
        return bool(self._value("drop_temp_view", view_name=name))

    def _frame(self, kind: str, /, **fields: Any) -> Frame:
        return Frame(self._session, node("catalog", **{kind: node("", **fields)}))

    def _value(self, kind: str, /, **fields: Any) -> Any:
        rows = self._frame(kind, **fields).collect()
        return rows[0][0] if rows else None
