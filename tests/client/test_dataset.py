"""A dataset for DuckDB, polars, pandas and pyarrow: lazy, repeatable, with columns and filters at the server."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as arrow
import pytest

from penstock.client.client import Client
from penstock.client.dataset import Dataset
from penstock.errors import InvalidRequest, NotFound

PATH = "store/d/trips"
F = pc.field
TRIPS = pa.table(
    {
        "id": pa.array(range(1_000)),
        "city": [("Oslo", "Bergen", None)[n % 3] for n in range(1_000)],
        "fare": [float("nan") if n % 100 == 0 else n / 10 for n in range(1_000)],
    }
)
Read = tuple[str, list[str], str | None]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """The reads that scans make: path, columns, filter."""
    noted: list[Read] = []
    get = Client.get

    def noting(self: Client, path: str, **arguments: Any) -> pa.RecordBatchReader:
        noted.append((path, arguments["columns"], arguments["filter"]))
        return get(self, path, **arguments)

    monkeypatch.setattr(Client, "get", noting)
    return noted


@pytest.fixture
def trips(client: Client) -> Dataset:
    client.put(PATH, TRIPS)
    return client.dataset(PATH)


def test_a_dataset_is_scanned_as_often_as_one_likes(trips: Dataset, client: Client, reads: list[Read]) -> None:
    assert reads == []
    assert trips.schema == TRIPS.schema
    assert trips.to_table().equals(TRIPS) is trips.to_table().equals(TRIPS)  # NaN is unlike itself
    assert trips.to_table()["id"] == TRIPS["id"]
    client.put(PATH, TRIPS, mode="append")
    assert trips.count_rows() == 2_000
    assert reads[-1] == (PATH, ["id"], None)
    assert trips.head(3)["id"].to_pylist() == [0, 1, 2]
    assert trips.take([7])["id"].to_pylist() == [7]


def test_columns_and_filter_go_to_the_server(trips: Dataset, reads: list[Read]) -> None:
    rows = trips.to_table(columns=["city"], filter=(F("id") < 9) & (pc.utf8_length(F("city")) == 4))
    assert rows.to_pydict() == {"city": ["Oslo"] * 3}
    assert reads == [(PATH, ["city", "id"], "`id` < 9")]
    sums = trips.to_table(columns={"twice": F("id") * 2}, filter=F("id") < 3)
    assert sums.to_pydict() == {"twice": [0, 2, 4]}


def test_what_a_filter_means_is_arrows(trips: Dataset) -> None:
    """The server, as Spark, has NaN above all numbers."""
    for expression in (F("fare") > 50, ~(F("fare") > 50), F("city").isin(["Oslo"]), ~F("city").isin(["Oslo"])):
        ids = trips.to_table(columns=["id"], filter=expression)["id"]
        assert ids == TRIPS.filter(expression)["id"], expression


@pytest.mark.usefixtures("elsewhere")
def test_scans_of_rows_that_are_sent_warn_of_nothing(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    """Arrow tells stderr of each buffer that gRPC has put at an odd address."""
    rows = TRIPS.append_column("coded", TRIPS["city"].dictionary_encode()).append_column("list", [[[1.5]] * 1_000])
    client.put(PATH, rows)
    trips = client.dataset(PATH)
    for _ in range(5):
        assert trips.to_table()["coded"].to_pylist() == rows["city"].to_pylist()
        assert trips.to_table(filter=F("id") > 500)["list"].to_pylist() == [[1.5]] * 499
    assert "aligned" not in capfd.readouterr().err


def test_duckdb_scans_it_by_its_name_twice_in_one_query(trips: Dataset, reads: list[Read]) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        query = """
            SELECT a.city, count(*) AS n FROM trips AS a JOIN trips AS b USING (id)
            WHERE a.id < 300 AND b.id >= 150 AND a.city = 'Oslo' GROUP BY a.city
        """
        assert connection.execute(query).fetchall() == [("Oslo", 50)]
        assert connection.execute(query).fetchall() == [("Oslo", 50)]
        assert len(reads) == 4
        assert all("fare" not in columns and text and "`id`" in text for _, columns, text in reads), reads
        assert connection.execute("SELECT count(*) FROM trips").fetchone() == (1_000,)
        oslo = connection.execute("SELECT max(id) FROM trips WHERE city IN ('Oslo', 'Narvik') AND city IS NOT NULL")
        assert oslo.fetchone() == (999,)


def test_polars_scans_it_lazily(trips: Dataset, reads: list[Read]) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.scan_pyarrow_dataset(trips)
    assert reads == []
    wanted = frame.filter((pl.col("id") < 10) & (pl.col("city") == "Oslo")).select("city", "id")
    assert wanted.collect()["id"].to_list() == [0, 3, 6, 9]
    [(path, columns, text)] = reads
    assert (path, set(columns)) == (PATH, {"city", "id"})
    assert text is not None
    assert "`id` < 10" in text
    assert "`city` = 'Oslo'" in text
    assert wanted.collect().height == 4
    joined = frame.filter(pl.col("id") < 5).join(frame.filter(pl.col("id") >= 3), on="id")
    assert sorted(joined.collect()["id"].to_list()) == [3, 4]
    assert frame.head(2).collect()["id"].to_list() == [0, 1]


def test_pandas_and_streams_take_it(trips: Dataset, client: Client) -> None:
    frame = trips.to_table(columns=["id"], filter=F("id") > 997).to_pandas()
    assert frame["id"].tolist() == [998, 999]
    assert pa.table(trips)["id"] == TRIPS["id"]
    client.put("store/d/copy", trips)
    assert client.dataset("store/d/copy").count_rows(filter=F("city") == "Oslo") == 334


def test_a_filtered_dataset_is_one_too(trips: Dataset, reads: list[Read]) -> None:
    few = trips.filter(F("id") < 9).filter(F("city") == "Oslo")
    assert few.to_table(columns=["id"], filter=F("id") > 0)["id"].to_pylist() == [3, 6]
    assert reads == [(PATH, ["id", "city"], "`id` < 9 and `city` = 'Oslo' and `id` > 0")]
    assert (few.count_rows(), pickle.loads(pickle.dumps(few)).count_rows(), trips.count_rows()) == (3, 3, 1_000)


def test_a_dataset_travels_and_prints(trips: Dataset) -> None:
    again = pickle.loads(pickle.dumps(trips))
    assert again.count_rows() == 1_000
    assert f".dataset('{PATH}')\n  id: int64\n  city: string" in repr(again)


def test_methods_that_read_files_find_none(trips: Dataset) -> None:
    """They would go past the server; no rows would be worse."""
    other = arrow.dataset([trips, trips])
    with pytest.raises(FileNotFoundError, match=PATH):
        other.to_table()
    with pytest.raises(FileNotFoundError, match=PATH):
        trips.sort_by("id").to_table()


def test_other_columns_than_before_are_refused(trips: Dataset, client: Client) -> None:
    client.put(PATH, pa.table({"id": ["a"], "city": ["Oslo"]}), mode="overwrite")
    with pytest.raises(InvalidRequest, match=r"'id' is string by now, where .* was opened with int64: open it again"):
        trips.to_table(columns=["id"])
    with pytest.raises(InvalidRequest, match="no column 'fare'"):
        trips.to_table()
    with pytest.raises(NotFound):
        client.dataset("store/d/none")


# --- folders -------------------------------------------------------------------------------


def day(number: int, **more: Any) -> pa.Table:
    return pa.table({"id": [number * 10, number * 10 + 1], **more})


@pytest.fixture
def days(client: Client) -> Dataset:
    client.put("store/days/2026-11-18", day(1))
    client.put("store/days/2026-11-19", day(2, note=["late", None]))
    client.put("store/days/old/2026-11-17", day(0))
    client.put("store/daily", pa.table({"other": [1]}))
    return client.dataset("store/days/")


def test_a_folder_is_one_frame_with_its_paths(days: Dataset) -> None:
    assert days.schema.names == ["id", "note", "_path"]
    rows = days.to_table().sort_by("id").to_pydict()
    assert rows["id"] == [0, 1, 10, 11, 20, 21]
    assert rows["note"] == [None, None, None, None, "late", None]
    assert rows["_path"][::2] == ["store/days/old/2026-11-17", "store/days/2026-11-18", "store/days/2026-11-19"]


def test_conditions_on_the_path_choose_datasets(days: Dataset, reads: list[Read]) -> None:
    rows = days.to_table(
        filter=(F("_path") >= "store/days/2026-11-19") & (F("id") != 21) & (F("_path") < "store/days/o")
    )
    assert rows.to_pylist() == [{"id": 20, "note": "late", "_path": "store/days/2026-11-19"}]
    assert reads == [("store/days/2026-11-19", ["id", "note"], "`id` != 21")]
    assert days.to_table(columns=["_path"], filter=F("note") == "late").num_rows == 1
    assert days.count_rows() == 6


def test_a_folder_has_what_is_in_it_when_it_is_scanned(days: Dataset, client: Client) -> None:
    client.put("store/days/2026-11-20", day(3, extra=[1, 2]))
    client.delete("store/days/2026-11-18")
    assert sorted(days.to_table(columns=["id"])["id"].to_pylist()) == [0, 1, 20, 21, 30, 31]


def test_a_dataset_that_goes_meanwhile_is_not_in_the_folder(
    days: Dataset, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = Dataset._members

    def then_deleted(self: Dataset) -> Any:
        found = members(self)
        client.delete("store/days/2026-11-18")
        return found

    monkeypatch.setattr(Dataset, "_members", then_deleted)
    assert days.count_rows() == 4


def test_a_folder_of_unlike_columns_is_refused(days: Dataset, client: Client) -> None:
    client.put("store/days/wrong", pa.table({"id": ["text"]}))
    with pytest.raises(
        InvalidRequest, match=r"store/days/wrong has the column 'id' as string, which is int64 in others"
    ):
        client.dataset("store/days/")
    with pytest.raises(InvalidRequest, match=r"store/days/wrong: the column 'id' is string by now"):
        days.to_table()
    client.delete("store/days/wrong")
    client.put("store/days/wrong", pa.table({"_path": ["text"]}))
    with pytest.raises(InvalidRequest, match="'_path' as string, which is the column of paths"):
        client.dataset("store/days/")
    with pytest.raises(NotFound, match="no dataset at store/none"):
        client.dataset("store/none/")


def test_duckdb_and_polars_read_a_folder(days: Dataset) -> None:
    duckdb, pl = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    with duckdb.connect() as connection:
        found = connection.execute(
            "SELECT _path, sum(id) FROM days WHERE _path < 'store/days/o' GROUP BY ALL ORDER BY 1"
        )
        assert found.fetchall() == [("store/days/2026-11-18", 21), ("store/days/2026-11-19", 41)]
    frame = pl.scan_pyarrow_dataset(days).filter(pl.col("_path").str.ends_with("19")).select("id").collect()
    assert frame["id"].to_list() == [20, 21]
