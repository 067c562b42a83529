"""Columns, values and functions as expressions; what is wrong fails at once, with what was meant."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import pickle
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("grpc")

from google.protobuf import text_format

from penstock.spark import col, expr, fn, lit, protos
from penstock.spark.errors import InvalidPlan
from penstock.spark.expressions import Column
from penstock.spark.plans import encode

ANY: Any = int
A: Any = col("a")
OSLO = dt.timezone(dt.timedelta(hours=1))


class Colour(enum.Enum):
    """A value with a name."""

    RED = "red"


def sent(column: Column) -> str:
    """Return the message of a column, on one line."""
    message = encode(column.expression, protos.Expression())
    return str(text_format.MessageToString(message, as_one_line=True, as_utf8=True)).strip()


VALUES: list[tuple[Any, str]] = [
    (None, "null { null { } }"),
    (True, "boolean: true"),
    (5, "integer: 5"),
    (-(1 << 31), "integer: -2147483648"),
    (1 << 31, "long: 2147483648"),
    (1.5, "double: 1.5"),
    (float("nan"), "double: nan"),
    ("ø", 'string: "ø"'),
    (b"\x00", 'binary: "\\000"'),
    (bytearray(b"a"), 'binary: "a"'),
    (decimal.Decimal("12.340"), 'decimal { value: "12.340" precision: 5 scale: 3 }'),
    (decimal.Decimal("1E+3"), 'decimal { value: "1000" precision: 4 scale: 0 }'),
    (decimal.Decimal("-0.001"), 'decimal { value: "-0.001" precision: 3 scale: 3 }'),
    (dt.date(1969, 12, 31), "date: -1"),
    (dt.datetime(1970, 1, 1, 0, 0, 1), "timestamp_ntz: 1000000"),  # noqa: DTZ001
    (dt.datetime(1970, 1, 1, 1, 0, 1, tzinfo=OSLO), "timestamp: 1000000"),
    (dt.time(0, 0, 1, 5), "time { nano: 1000005000 precision: 6 }"),
    (dt.timedelta(milliseconds=-1), "day_time_interval: -1000"),
    (Colour.RED, 'string: "red"'),
    (pa.scalar(7), "integer: 7"),
]


@pytest.mark.parametrize(("value", "literal"), VALUES, ids=lambda each: str(each)[:30])
def test_a_value_becomes_a_literal(value: Any, literal: str) -> None:
    assert sent(lit(value)) == f"literal {{ {literal} }}"


def test_numpys_values_become_literals() -> None:
    numpy = pytest.importorskip("numpy")
    assert sent(lit(numpy.int64(7))) == sent(lit(7))
    assert sent(lit(numpy.float32(1.5))) == sent(lit(1.5))
    assert sent(lit(numpy.bool_(True))) == sent(lit(True))
    assert sent(lit(numpy.array([1, 2]))) == sent(lit([1, 2]))
    moment = dt.datetime(2026, 1, 31, 12, 0, 0, 5)  # noqa: DTZ001
    for unit in ("us", "ns"):
        time, length = numpy.datetime64(moment, unit), numpy.timedelta64(5000, "us").astype(f"m8[{unit}]")
        assert sent(lit(time)) == sent(lit(moment))
        assert sent(lit(length)) == sent(lit(dt.timedelta(milliseconds=5)))
        assert sent(lit(numpy.array([time]))) == sent(lit([moment]))
    assert sent(lit(numpy.datetime64("2026-01-31"))) == sent(lit(dt.date(2026, 1, 31)))
    for unlike in (numpy.timedelta64(3, "M"), numpy.datetime64("20000-01-01T00:00", "s")):
        with pytest.raises(InvalidPlan, match="no time of Python's"):
            lit(unlike)


def test_lists_and_dicts_become_calls() -> None:
    """Spark finds the type that all elements have."""
    assert sent(lit([1, 2.5])) == sent(fn.array(1, 2.5))
    assert sent(lit({"a": 1})) == sent(fn.create_map(lit("a"), 1))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1 << 63, "more than 64 bits"),
        (decimal.Decimal("NaN"), "no decimal"),
        (decimal.Decimal(10) ** 40, "41 digits"),
        (object(), "object is no value"),
        ({1}, "set is no value"),
        (dt.time(12, tzinfo=dt.UTC), r"has a zone.*replace\(tzinfo=None\)"),
    ],
)
def test_what_is_no_value_is_refused(value: Any, words: str) -> None:
    with pytest.raises(InvalidPlan, match=words):
        lit(value)


def test_a_surrogate_is_refused_by_name() -> None:
    with pytest.raises(InvalidPlan, match="can't be sent as string"):
        sent(lit("\ud800"))


OPERATORS: list[tuple[Column, str]] = [
    (col("a") == 1, "== a 1"),
    (col("a") != 1, "not(== a 1)"),
    (col("a") < 1, "< a 1"),
    (1 < col("a"), "> a 1"),  # noqa: SIM300
    (col("a") + 1, "+ a 1"),
    (1 + col("a"), "+ 1 a"),
    (1 - col("a"), "- 1 a"),
    (2 * col("a"), "* 2 a"),
    (1 / col("a"), "/ 1 a"),
    (7 % col("a"), "% 7 a"),
    (2 ** col("a"), "power 2 a"),
    (-col("a"), "negative a"),
    (True & col("a"), "and true a"),
    (False | col("a"), "or false a"),
    (col("a").eq_null_safe(None), "<=> a null"),
    (col("a").isin(1, 2), "in a 1 2"),
    (col("a").isin([1, 2]), "in a 1 2"),
    (col("a").between(1, 2), "and(>= a 1)(<= a 2)"),
]


def brief(message: Any) -> str:
    """Return a call as its name and arguments."""
    kind = message.WhichOneof("expr_type")
    if kind != "unresolved_function":
        value = message.unresolved_attribute.unparsed_identifier
        literal = message.literal.WhichOneof("literal_type")
        return value or {"null": "null", "boolean": str(message.literal.boolean).lower()}.get(
            literal, str(message.literal.integer)
        )
    call = message.unresolved_function
    arguments = [brief(each) for each in call.arguments]
    if any(" " in each for each in arguments):
        return f"{call.function_name}{''.join(f'({each})' for each in arguments)}"
    return " ".join([call.function_name, *arguments])


@pytest.mark.parametrize(("column", "call"), OPERATORS, ids=lambda each: str(each)[:30])
def test_operators_become_calls(column: Column, call: str) -> None:
    assert brief(encode(column.expression, protos.Expression())) == call


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (col("a").is_null(), "isNull(a)"),
        (col("a").isNotNull(), "isNotNull(a)"),
        (col("a").starts_with("x"), "startsWith(a, 'x')"),
        (col("a").contains("x"), "contains(a, 'x')"),
        (col("a").like("x%"), "like(a, 'x%')"),
        (col("a").cast("decimal(10,2)"), "CAST(a AS decimal(10,2))"),
        (col("a")["b"], "a['b']"),
        (col("a").b[0], "a['b'][0]"),
        (col("a")[1:3], "substr(a, 1, 3)"),
        (col("a").desc(), "a DESC"),
        (col("a").alias("b"), "a AS b"),
        (expr("a + 1"), "a + 1"),
        (col("t.*"), "t.*"),
        ((col("a") > 1) & col("b"), "((a > 1) and b)"),
        (fn.when(col("a") > 1, "x").otherwise("y"), "when((a > 1), 'x', 'y')"),
        (fn.when(col("a") > 1, "x").when(col("a") > 0, "z"), "when((a > 1), 'x', (a > 0), 'z')"),
        (fn.count("*"), "count(*)"),
        (fn.sum("a"), "sum(a)"),
        (fn.date_format("a", "yyyy"), "date_format(a, 'yyyy')"),
        (fn.concat_ws(",", "a", "b"), "concat_ws(',', a, b)"),
        (fn.concat("a", lit("b")), "concat(a, 'b')"),
        (fn.trim("a", lit("x")), "trim('x', a)"),
        (fn.anything_at_all("a", 2), "anything_at_all(a, 2)"),
        (col("a") == dt.time(12, 0, 1), "(a == 12:00:01)"),
        (col("a") == decimal.Decimal("1.50"), "(a == 1.50)"),
    ],
    ids=str,
)
def test_a_column_reads_as_what_it_is(one: Column, other: str) -> None:
    assert repr(one) == f"Column<{other!r}>"


def test_nested_lambdas_have_variables_of_their_own() -> None:
    text = sent(fn.transform("xs", lambda x: fn.transform(x, lambda y: x + y)))
    assert [text.count(f'name_parts: "{name}"') for name in ("x_0", "y_1")] == [3, 2]
    assert sent(fn.aggregate("xs", lit(0), lambda x, y: x + y)).count("lambda_function") == 1
    with pytest.raises(InvalidPlan, match="one to three"):
        fn.transform("xs", lambda: lit(1))


def test_distinct_counts_say_so() -> None:
    assert "is_distinct: true" in sent(fn.count_distinct("a", "b"))
    assert "is_distinct" not in sent(fn.approx_count_distinct("a"))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: A and col("b"), "& for and"),
        (lambda: A or col("b"), "| for or"),
        (lambda: not col("a"), "~ for not"),
        (lambda: 1 if A else 2, r"fn\.when"),
        (lambda: 1 < col("a") < 3, "between"),
        (lambda: "x" in col("a"), "isin.*contains"),
        (lambda: col("a") == None, "is_null"),  # noqa: E711
        (lambda: col("a").isnul(), "no method isnul, did you mean 'is_?[nN]ull'"),
        (lambda: col("a").startsWith("x"), "did you mean 'starts_?with'"),
        (lambda: col("a").asc().desc(), "sorted already"),
        (lambda: fn.when(col("a"), 1).otherwise(2).otherwise(3), r"fn\.when"),
        (lambda: col("a").otherwise(3), r"fn\.when"),
        (lambda: col("a").cast(ANY), "type of Spark's SQL"),
        (lambda: col(ANY), "a column's name"),
        (lambda: col("a")[1:2:3], "no step"),
        (lambda: fn.first("a", ignorenulls=True), r"ignorenulls=….*by position"),
        (lambda: fn.sum("a").over(1), r"expr\('sum\(a\) over"),
    ],
)
def test_what_is_wrong_says_what_was_meant(wrong: Any, words: str) -> None:
    with pytest.raises(InvalidPlan, match=words):
        wrong()


def test_a_column_is_frozen_and_no_sequence() -> None:
    column = col("a")
    with pytest.raises(AttributeError, match="frozen"):
        column.b = 1
    with pytest.raises(TypeError, match="no values"):
        list(column)
    with pytest.raises(TypeError, match="unhashable"):
        hash(column)
    assert not hasattr(column, "_repr_html_")
    assert not hasattr(fn, "_repr_html_")


def test_rows_are_tuples_with_names() -> None:
    from penstock.spark.rows import to_rows

    table = pa.table(
        {
            "id": [1, 2],
            "place": [{"city": "Oslo", "tags": [{"k": 1}]}, None],
            "sizes": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int8())),
        }
    )
    first: Any
    first, second = to_rows(table)
    assert (first.id, first["id"], first[0], first.place.city) == (1, 1, 1, "Oslo")
    assert first.place.tags[0].k == 1
    assert (first.sizes, second.sizes, second.place) == ({"a": 1}, None, None)
    assert first == (1, ("Oslo", [(1,)]), {"a": 1})
    assert repr(second) == "Row(id=2, place=None, sizes=None)"
    assert first.as_dict(recursive=True)["place"] == {"city": "Oslo", "tags": [{"k": 1}]}
    assert pickle.loads(pickle.dumps(first)) == first
    assert "id" in first
    with pytest.raises(AttributeError, match="did you mean 'place'"):
        _ = first.plase
    with pytest.raises(KeyError, match="plase"):
        _ = first["plase"]
    assert to_rows(pa.table({"a": []})) == []
    assert to_rows(pa.table({"a": [1, 1]}).select([])) == [(), ()]
