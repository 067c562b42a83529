"""Where a session's frames come from: SQL, tables and files, ranges, rows of this side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from penstock.client.put import batches_to_put
from penstock.spark import protos
from penstock.spark.errors import CorruptResponse, InvalidPlan
from penstock.spark.expressions import Value, literal
from penstock.spark.frame import Frame
from penstock.spark.plans import Node, Received, encode, node
from penstock.spark.reader import Reader
from penstock.text import format_size

if TYPE_CHECKING:
    from penstock.spark.session import Session

_MOST_LOCAL = 96 << 20
"""Bytes of rows within a plan: a server takes messages of 128 MiB."""


def _named(rows: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return tuples as dicts."""
    if isinstance(names, str) or not all(isinstance(each, str) for each in names):
        raise InvalidPlan(
            f"create_frame(schema={names!r:.80}): expected a list of names; a pyarrow.Table has types, too"
        )
    named = []
    for row in rows:
        if not isinstance(row, tuple | list) or len(row) != len(names):
            raise InvalidPlan(f"create_frame(): expected a tuple of {len(names)} values for each row, got {row!r:.80}")
        named.append(dict(zip(names, row, strict=True)))
    return named


class Sources:
    """The methods of a session that make frames."""

    __slots__ = ()

    @property
    def read(self) -> Reader:
        """Tables and files: spark.read.parquet("s3://lake/orders")."""
        return Reader(self._session)

    def sql(self, text: str, args: Sequence[Value] | Mapping[str, Value] | None = None) -> Frame:
        """Run a command of Spark's SQL at once, or return the frame of a query.

        `args` are values: a list for `?`, a dict for `:name`.
        """
        if args is not None and (isinstance(args, str) or not isinstance(args, Sequence | Mapping)):
            raise InvalidPlan(f"sql(args={args!r}): expected a list for ?, or a dict for :name")
        named = {name: literal(value) for name, value in args.items()} if isinstance(args, Mapping) else {}
        by_position = tuple(map(literal, args)) if isinstance(args, Sequence) else ()
        query = node("sql", query=text, named_arguments=named, pos_arguments=by_position)
        answer = self.run(node("sql_command", input=query), "SqlCommandResult")
        return Frame(self._session, Received("sql", query.fields, answer.relation))

    def table(self, name: str) -> Frame:
        """Return the rows of a table or a view."""
        return self.read.table(name)

    def range(self, start: int, end: int | None = None, step: int = 1, numPartitions: int | None = None) -> Frame:
        """Return numbers as `id`: range(10), range(5, 10, 2)."""
        first, last = (0, start) if end is None else (start, end)
        return Frame(self._session, node("range", start=first, end=last, step=step, num_partitions=numPartitions))

    def create_frame(self, data: Any, schema: Sequence[str] | None = None) -> Frame:
        """Return rows of this side as a frame: a Table, dicts, or whatever has `__arrow_c_stream__`, up to 96 MiB.

        `schema` are the names of the columns, for rows that are tuples. They travel with each query.
        """
        if schema is not None:
            data = _named(data, schema)
        schema, batches = batches_to_put(data, None)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            for each in batches:
                stream.write(each)
                if sink.tell() > _MOST_LOCAL:
                    raise InvalidPlan(
                        f"the rows are more than {format_size(_MOST_LOCAL)}, which a plan doesn't carry: write them "
                        "where Spark reads them, as Parquet, or by penstock's put and penstock.read"
                    )
        return Frame(self._session, node("local_relation", data=sink.getvalue().to_pybytes()))

    def run(self, command: Node, answer: str | None = None, **options: Any) -> Any:
        """Run a command, and return what the server answers, which is a message of this name if there is one."""
        plan = protos.Plan()
        encode(command, plan.command)
        with self._session.execute(plan, **options) as result:
            for _ in result:
                pass
        if answer is not None and (result.answer is None or result.answer.DESCRIPTOR.name != answer):
            raise CorruptResponse(f"the server ended a {command.kind} without its answer, a {answer}")
        return result.answer

    createDataFrame = create_frame  # pyspark's name

    @property
    def _session(self) -> Session:
        return cast("Session", self)
