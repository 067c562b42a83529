"""`fn`: the functions of Spark's SQL by their names, whichever they are.

fn.sum("amount")    fn.date_format("day", "yyyy-MM")    fn.transform("items", lambda item: item.price * 1.25)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

from penstock.spark.errors import InvalidPlan
from penstock.spark.expressions import Column, Value, call, col, column_of, condition_of, expr, flat, lit, literal
from penstock.spark.plans import Node, node

if TYPE_CHECKING:
    from penstock.spark.frame import Frame

_RENAMED = {
    "bitwise_not": "~", "bitwiseNOT": "~", "create_map": "map", "mean": "avg", "negate": "negative", "pow": "power",
    "timestamp_add": "timestampadd", "timestamp_diff": "timestampdiff", "toDegrees": "degrees", "toRadians": "radians",
    "approxCountDistinct": "approx_count_distinct",
}  # fmt: skip
"""pyspark's names of functions that Spark's SQL calls otherwise."""
_DISTINCT = {
    "count_distinct": "count", "countDistinct": "count", "sum_distinct": "sum", "sumDistinct": "sum",
    "listagg_distinct": "listagg", "string_agg_distinct": "string_agg",
}  # fmt: skip
_SORTED = ("asc", "desc", "asc_nulls_first", "asc_nulls_last", "desc_nulls_first", "desc_nulls_last")
_TRIMS = ("trim", "ltrim", "rtrim")
_LISTED = ("array", "struct", "create_map", "map", "map_concat")
"""Functions that pyspark calls with a list of columns, too."""
_REST = tuple(range(1, 100))
_TEXTS: dict[str, Sequence[int]] = {
    name: positions
    for positions, names in {
        (0,): "concat_ws current_time date_trunc format_string raise_error schema_of_csv schema_of_json schema_of_xml "
        "timestamp_add timestamp_diff",
        (0, 2): "locate",
        (1,): "array_append array_contains array_position array_prepend array_remove assert_true collate date_format "
        "decode element_at encode from_csv from_json from_unixtime from_utc_timestamp from_xml get_json_object listagg "
        "listagg_distinct map_contains_key next_day session_window split string_agg string_agg_distinct to_date "
        "to_timestamp to_utc_timestamp trunc try_to_date try_variant_array_append try_variant_insert unix_timestamp "
        "variant_array_append variant_insert",
        (1, 2): "array_join lag lead lpad regexp_extract rpad substring_index translate try_variant_get variant_get",
        (1, 2, 3): "instr regexp_replace window",
        (1, 3): "try_variant_set variant_set",
        (2,): "array_insert",
        _REST: "json_tuple variant_delete",
    }.items()
    for name in names.split()
}
"""The arguments that pyspark takes for text where they are strings; it takes any other string for a column's name."""
_DEPTH: ContextVar[int] = ContextVar("penstock-lambdas", default=0)


class Functions:
    """Spark's functions. A string is a column's name, but where pyspark takes it for text, such as a format."""

    col, lit, expr = staticmethod(col), staticmethod(lit), staticmethod(expr)
    column = col  # pyspark's name

    def __getattr__(self, name: str) -> Callable[..., Column]:
        if name.startswith("_"):  # what Python and notebooks look for
            raise AttributeError(name)
        if name in _SORTED:
            return lambda column: getattr(Column(column_of(column)), name)()
        return partial(_invoke, name)

    def __repr__(self) -> str:
        return "fn: Spark's functions by their names, fn.sum('amount')"

    def when(self, condition: Column, value: Value) -> Column:
        """Return the value where the condition holds; go on with .when(…) and .otherwise(…)."""
        arguments = (condition_of(condition), literal(value))
        return Column(node("unresolved_function", function_name="when", arguments=arguments))

    def call_function(self, name: str, *arguments: Value) -> Column:
        """Call a function by a name that is no word of Python's: "catalog.schema.function"."""
        return Column(node("call_function", function_name=name, arguments=tuple(map(column_of, arguments))))

    def broadcast(self, frame: Frame) -> Frame:
        """Let Spark send a small frame to all executors, for a join."""
        return frame.hint("broadcast")


fn = Functions()


def _invoke(name: str, /, *arguments: Value, **named: Value) -> Column:
    """Return a call of a function by pyspark's name."""
    if named:
        raise InvalidPlan(f"fn.{name}({', '.join(named)}=…): arguments go by position, as in fn.first('a', True)")
    texts, nodes = _TEXTS.get(name, ()), []
    for number, argument in enumerate(flat(arguments) if name in _LISTED else arguments):
        if isinstance(argument, str) and number in texts:
            nodes.append(literal(argument))
        elif callable(argument) and not isinstance(argument, Column | type):
            nodes.append(_lambda(argument))
        else:
            nodes.append(column_of(argument))
    if name in _TRIMS:
        nodes.reverse()  # SQL has what is trimmed away first
    return call(
        _DISTINCT.get(name) or _RENAMED.get(name, name), *map(Column, nodes), distinct=name in _DISTINCT or None
    )


def _lambda(function: Callable[..., Column]) -> Node:
    """Return a Python function of columns as a lambda of Spark's."""
    parameters = list(inspect.signature(function).parameters)
    if not 1 <= len(parameters) <= 3:
        raise InvalidPlan(f"a function of {len(parameters)} arguments can't be Spark's lambda: it has one to three")
    depth = _DEPTH.get()
    variables = [node("unresolved_named_lambda_variable", name_parts=(f"{name}_{depth}",)) for name in parameters]
    token = _DEPTH.set(depth + 1)  # a lambda within this one has other names
    try:
        result = literal(function(*map(Column, variables)))
    finally:
        _DEPTH.reset(token)
    return node("lambda_function", function=result, arguments=tuple(Node("", each.fields) for each in variables))
