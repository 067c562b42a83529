"""Frames on a real Spark Connect server: what is read, computed and shown is right, and asked for once."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

pytest.importorskip("grpc")

from penstock.errors import LimitExceeded
from penstock.spark import col, expr, fn, lit, notebook
from penstock.spark.errors import InvalidPlan, Remote, Unsupported
from penstock.spark.experimental import Catalog
from penstock.spark.frame import Frame
from penstock.spark.session import Session
from tests.kit.wait import eventually

pytestmark = [pytest.mark.spark, pytest.mark.process]

ORDERS = 20_000
OSLO = dt.timezone(dt.timedelta(hours=1))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Orders and their customers, as Parquet."""
    folder = tmp_path_factory.mktemp("lake")
    numbers = range(ORDERS)
    orders = pa.table(
        {
            "id": list(numbers),
            "customer": pa.array([n * 7919 % 500 for n in numbers], pa.int32()),
            "amount": [n * 31 % 1000 / 4 for n in numbers],
            "day": [dt.date(2026, 1, 1) + dt.timedelta(days=n % 90) for n in numbers],
        }
    )
    customers = pa.table({"customer": pa.array(range(400), pa.int32()), "country": [f"c{n % 9}" for n in range(400)]})
    pq.write_table(orders, folder / "orders.parquet", row_group_size=5_000)
    pq.write_table(customers, folder / "customers.parquet")
    return folder


@pytest.fixture
def orders(remote: Session, lake: Path) -> Frame:
    return remote.read.parquet(str(lake / "orders.parquet"))


@pytest.fixture
def sent(remote: Session, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that a session sends: execute for a query, analyze for a question."""
    calls: list[str] = []
    for name in ("execute", "analyze"):
        original = getattr(Session, name)

        def call(self: Session, *plans: Any, name: str = name, original: Any = original, **options: Any) -> Any:
            root = plans[0].root.WhichOneof("rel_type") if plans else None
            calls.append(f"{name} {root}" if root else name)
            return original(self, *plans, **options)

        monkeypatch.setattr(Session, name, call)
    return calls


def test_one_and_a_range_are_counted(remote: Session) -> None:
    assert remote.sql("SELECT 1").collect() == [(1,)]
    assert remote.range(1_234).count() == 1_234
    assert remote.range(5, 10, 2).collect() == [(5,), (7,), (9,)]
    assert remote.range(3).take(2) == [(0,), (1,)]
    assert remote.range(0).first() is None
    assert remote.range(9).tail(2) == [(7,), (8,)]
    assert (remote.range(9).isEmpty(), remote.range(0).isEmpty()) == (False, True)


def test_parquet_is_filtered_and_projected(orders: Frame, lake: Path) -> None:
    rows = (
        orders.filter((col("amount") > 200) & (col("day") < dt.date(2026, 2, 1))).select("id", "amount").order_by("id")
    )
    table = pq.read_table(lake / "orders.parquet")
    kept = table.filter((pc.field("amount") > 200) & (pc.field("day") < dt.date(2026, 2, 1))).select(["id", "amount"])
    assert rows.to_arrow().equals(kept.cast(rows.to_arrow().schema))
    assert rows.count() == kept.num_rows > 1_000


def test_files_of_each_format_are_read(remote: Session, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id;city\n1;Oslo\n2;\n")
    (tmp_path / "a.json").write_text('{"id": 1, "city": "Oslo"}\n{"id": 2}\n')
    orc.write_table(pa.table({"id": [1, 2], "city": ["Oslo", None]}), tmp_path / "a.orc")
    expected = [(1, "Oslo"), (2, None)]
    read = remote.read
    assert read.csv(str(tmp_path / "a.csv"), sep=";", header=True, inferSchema=True).collect() == expected
    assert read.schema("id long, city string").csv(str(tmp_path / "a.csv"), sep=";", header=True).collect() == expected
    assert read.json(str(tmp_path / "a.json"), "id long, city string").collect() == expected
    assert read.orc(str(tmp_path / "a.orc")).collect() == expected
    assert read.format("json").load(str(tmp_path / "a.json")).select("id", "city").collect() == expected
    assert read.text([str(tmp_path / "a.csv")]).count() == 3


def test_explain_has_five_modes(orders: Frame, capsys: pytest.CaptureFixture[str]) -> None:
    plan = orders.filter(col("amount") > 200)
    texts = {mode: plan.explain_string(mode) for mode in ("simple", "extended", "codegen", "cost", "formatted")}
    assert all("parquet" in text.lower() or "Codegen" in text for text in texts.values())
    assert len(set(texts.values())) == 5
    plan.explain(True)
    assert "Analyzed Logical Plan" in capsys.readouterr().out


def test_join_and_aggregate_equal_duckdbs(remote: Session, orders: Frame, lake: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    customers = remote.read.parquet(str(lake / "customers.parquet"))
    for how in ("inner", "left", "right", "full"):
        sums = (
            orders.join(customers, "customer", how)
            .group_by("country")
            .agg(fn.sum("amount").alias("s"), fn.count("*").alias("n"), fn.count_distinct("customer").alias("d"))
            .order_by(col("country").asc_nulls_first())
        )
        expected = duckdb.sql(
            f"select country, sum(amount) s, count(*) n, count(distinct customer) d from '{lake}/orders.parquet' "
            f"{how} join '{lake}/customers.parquet' using (customer) group by country order by country nulls first"
        )
        assert sums.collect() == expected.fetchall()


def test_both_sides_columns_are_told_apart(remote: Session) -> None:
    """By the frame that they are of; without it the name is ambiguous, and Spark says so."""
    left, right = remote.range(5), remote.range(3, 9)
    joined = left.join(right, left["id"] == right["id"], "left").select(left["id"].alias("l"), right["id"].alias("r"))
    assert joined.order_by("l").collect() == [(0, None), (1, None), (2, None), (3, 3), (4, 4)]
    with pytest.raises(Remote) as ambiguous:
        left.join(right, left["id"] == right["id"]).select("id").collect()
    assert ambiguous.value.error_class == "AMBIGUOUS_REFERENCE"
    both = remote.sql("select 1 as a, 2 as b")
    assert both.join(left, both["a"] == left["id"]).select(both["b"], left["id"]).collect() == [(2, 1)]


VALUES: list[Any] = [
    None, True, 5, 1 << 40, 1.5, decimal.Decimal("12.340"), "ø", b"\x00\x01", dt.date(2026, 1, 31),
    dt.datetime(2026, 1, 31, 12, 0, 0, 5), dt.datetime(2026, 1, 31, 12, tzinfo=OSLO),  # noqa: DTZ001
    dt.timedelta(days=1, microseconds=5),
    [1, 2], {"a": 1},
]  # fmt: skip


def test_values_come_back_as_they_went(remote: Session) -> None:
    """As literals, and as arguments of SQL, by name and by position."""
    by_name = {f"v{number}": value for number, value in enumerate(VALUES)}
    row = remote.range(1).select(*(lit(value) for value in VALUES)).first()
    named = remote.sql(f"select {', '.join(f':{name}' for name in by_name)}", by_name).first()
    placed = remote.sql(f"select {', '.join('?' * len(VALUES))}", VALUES).first()
    assert row == named == placed == tuple(VALUES)


def test_commands_run_at_once_and_queries_later(remote: Session, sent: list[str], tmp_path: Path) -> None:
    remote.sql(f"create table at_once (id long) using parquet location '{tmp_path}/t'")
    inserted = remote.sql("insert into at_once values (:n)", {"n": 7})
    assert len(sent) == 2
    assert remote.table("at_once").collect() == [(7,)]
    assert inserted.collect() == inserted.collect() == []
    assert remote.table("at_once").count() == 1, "what is read again isn't inserted again"
    assert "at_once" in [row.tableName for row in remote.sql("show tables").collect()]
    remote.sql("drop table at_once")


def test_a_misspelt_query_says_where(remote: Session, orders: Frame) -> None:
    with pytest.raises(Remote) as parsed:
        remote.sql("selekt 1")
    assert parsed.value.error_class == "PARSE_SYNTAX_ERROR"
    assert "^^^" in str(parsed.value)
    with pytest.raises(Remote) as unknown:
        orders.filter(col("amuont") > 1).collect()
    assert unknown.value.error_class == "UNRESOLVED_COLUMN.WITH_SUGGESTION"
    assert "amount" in unknown.value.parameters["proposal"]
    with pytest.raises(Remote) as routine:
        orders.select(fn.smu("amount")).collect()
    assert routine.value.error_class == "UNRESOLVED_ROUTINE"


TYPES = (
    "select true b, 1Y i8, 1S i16, 1 i32, 1L i64, 1.5F f, 1.5D d, 1.50BD dec, 'x' s, X'01' bin, date'2026-01-01' day, "
    "timestamp'2026-01-01 00:00:00' ts, timestamp_ntz'2026-01-01 00:00:00' ntz, interval '1' second iv, "
    "array(1, null) xs, map('a', 1L) m, named_struct('a', 1, 'odd name', array('x')) st, cast(null as void) nothing"
)


def test_a_schema_is_that_of_the_rows(remote: Session, sent: list[str]) -> None:
    """By one question, without a query. Timestamps have the session's zone, which a schema doesn't know."""
    remote.conf.set("spark.sql.session.timeZone", "UTC")
    frame = remote.sql(TYPES)
    del sent[:]
    schema = frame.schema
    assert sent == ["analyze"]
    assert schema == frame.to_arrow().schema
    assert frame.columns == schema.names
    assert dict(frame.dtypes)["st"] == "struct<a:int,`odd name`:array<string>>"
    again = remote.create_frame(pa.table({"text": ["{}"]})).select(
        fn.from_json("text", frame.select("xs", "st", "m").ddl)
    )
    assert again.schema.field(0).type.num_fields == 3


def test_a_type_that_arrow_lacks_is_refused(remote: Session) -> None:
    frame = remote.sql("select array(interval '1' year) as xs")
    for show in (frame.collect, lambda: repr(notebook.preview(frame))):
        with pytest.raises(Unsupported, match="interval of months: cast it to string"):
            show()


def test_groups_sum_columns_of_odd_names(remote: Session) -> None:
    assert remote.sql("select 1 as `we``ird`, 2 as `a.b`").group_by().sum().collect() == [(1, 2)]


def test_a_schema_is_printed_as_a_tree(remote: Session, capsys: pytest.CaptureFixture[str]) -> None:
    remote.range(1).print_schema()
    assert capsys.readouterr().out.startswith("root\n |-- id: long (nullable = false)")


def test_rows_of_this_side_become_a_frame(remote: Session) -> None:
    table = pa.table({"id": [1, 2], "city": ["Oslo", None], "xs": [[1], []]})
    assert remote.create_frame(table).order_by("id").collect() == [(1, "Oslo", [1]), (2, None, [])]
    assert remote.createDataFrame([{"a": 1}, {"a": 2}]).agg(fn.sum("a")).collect() == [(3,)]
    assert remote.create_frame(table.slice(0, 0)).count() == 0


def test_views_are_read_by_sql(remote: Session) -> None:
    remote.range(5).filter(col("id") > 2).create_or_replace_temp_view("large")
    assert remote.sql("select sum(id) from large").collect() == [(7,)]
    with pytest.raises(Remote) as taken:
        remote.range(5).create_temp_view("large")
    assert taken.value.error_class == "TEMP_TABLE_OR_VIEW_ALREADY_EXISTS"


def test_lambdas_and_structs_are_computed(remote: Session) -> None:
    frame = remote.sql("select array(1, 2) xs, array(array(1), array(2, 3)) xss, named_struct('a', 1, 'b', 2) s")
    row = frame.select(
        fn.transform("xs", lambda x: x * 2),
        fn.transform("xss", lambda xs: fn.transform(xs, lambda x: x + fn.size(xs))),
        fn.aggregate("xs", lit(0), lambda total, x: total + x),
        fn.filter("xs", lambda x: x > 1),
        col("s").with_field("c", lit(3)).drop_fields("a"),
        col("s").b,
        expr("s.a"),
        col("xs")[0],
    ).first()
    assert row == ([2, 4], [[2], [4, 5]], 3, [2], (2, 3), 2, 1, 1)


def test_what_is_held_whole_is_bounded(orders: Frame) -> None:
    for hold in (orders.to_arrow, orders.to_pandas, orders.to_polars, orders.collect):
        with pytest.raises(LimitExceeded, match="max_rows=10,000"):
            hold(max_rows=10_000)
    with pytest.raises(LimitExceeded, match="max_bytes=100000"):
        orders.to_arrow(max_bytes=100_000)
    assert orders.to_arrow(max_rows=None, max_bytes=None).num_rows == ORDERS


def test_pages_are_all_rows_once(remote: Session) -> None:
    """Whatever the pages, of rows that would be others if they were computed again; what Spark kept is dropped."""
    frame = remote.range(0, 200_000, numPartitions=7).select("id", fn.rand().alias("r"))
    with frame.stream(paged="partition") as result:
        assert result.schema.names == ["id", "r"]
        table = pa.Table.from_batches(result)
    assert (result.rows, table.num_rows, pc.count_distinct(table["id"]).as_py()) == (200_000, 200_000, 200_000)
    left = remote.range(0, 200_000, numPartitions=7).stream(paged="partition")
    for _ in left:
        break

    def is_removed() -> bool:
        try:
            left._kept.count()
        except Remote:
            return True
        return False

    eventually(is_removed)
    assert list(remote.range(0).stream(paged="partition")) == []


def test_a_checkpointed_frame_keeps_its_rows(remote: Session) -> None:
    kept = remote.range(100).select(fn.rand().alias("r")).local_checkpoint()
    assert kept.collect() == kept.collect()


def test_deep_plans_work_or_are_refused(remote: Session) -> None:
    """Messages of Python's protobuf are parsed, and merged, down to 100 levels alone: these have more."""
    condition = col("id") == 0
    for number in range(1, 150):
        condition = condition | (col("id") == number)
    frame = remote.range(200).filter(condition)
    assert frame.count() == 150
    assert frame.schema.names == ["id"]
    for number in range(500):
        frame = frame.filter(col("id") != number)
    with pytest.raises(InvalidPlan, match="more than 500"):
        frame.count()


def test_a_notebook_asks_once_for_a_frame(remote: Session, orders: Frame, sent: list[str]) -> None:
    """Columns, rows and plan, by one query of few rows."""
    shown = orders._repr_mimebundle_()
    assert sent == ["execute limit", "analyze"]
    page, text = shown["text/html"], shown["text/plain"]
    assert page.count("<tr>") == notebook.SHOWN + 1
    assert "amount: double" in page
    assert "FileScan parquet" in page
    assert "the first 20 rows of more" in text
    frame = remote.sql("select '<b>' as `<i>`")
    assert "<b>" not in frame._repr_mimebundle_()["text/html"]
    coloured = remote.range(1).select(lit("\x1b[31m"))._repr_mimebundle_()["text/plain"]
    assert "\x1b" not in coloured
    assert "x1b[31m" in coloured


def test_a_notebooks_helpers_show_few_rows(orders: Frame) -> None:
    preview = notebook.preview(orders, 5)
    assert (preview.table.num_rows, preview.note) == (5, "the first 5 rows of more")
    assert notebook.preview(orders.limit(3)).note == "3 rows"
    sample = notebook.sample(orders, 50)
    assert sample.table.num_rows == 50
    assert sample.table["id"].to_pylist() != sorted(sample.table["id"].to_pylist())
    assert "<td" in sample._repr_html_()
    assert repr(notebook.explain(orders)).count("\n") > 5


def test_the_catalog_lists_what_is_there(remote: Session) -> None:
    remote.range(3).create_or_replace_temp_view("listed")
    catalog = Catalog(remote)
    assert catalog.current_database() == "default"
    assert catalog.current_catalog() == "spark_catalog"
    assert "listed" in [row.name for row in catalog.list_tables().collect()]
    assert [row.name for row in catalog.list_columns("listed").collect()] == ["id"]
    assert "default" in [row.name for row in catalog.list_databases().collect()]
    assert (catalog.table_exists("listed"), catalog.table_exists("nowhere")) == (True, False)
    assert catalog.function_exists("sum")
    assert (catalog.drop_temp_view("listed"), catalog.drop_temp_view("listed")) == (True, False)
