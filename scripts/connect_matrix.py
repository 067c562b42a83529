"""Ask servers of Spark Connect, each of an environment of its own, what works; write it into docs/connect.md.

    python scripts/connect_matrix.py [4.0 4.1 4.2 4.3 sail]

Spark 3.5's server is no part of pip's package. The table has the servers that were asked.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/ is a folder, not an installed package

import penstock
from penstock.spark import col, fn, lit
from penstock.spark.errors import Remote
from penstock.spark.experimental import Catalog
from penstock.spark.frame import Frame, Mode
from penstock.spark.session import Session
from scripts import child, connect_server, spark_matrix

SAIL = "0.7.2"
PAGE = spark_matrix.ROOT / "docs" / "connect.md"
MARKS = ("<!-- matrix -->\n", "<!-- end of the matrix -->")
MODES: tuple[Mode, ...] = ("simple", "extended", "codegen", "cost", "formatted")
ENDLESS = "select count(*) from range(0, 1000000, 1, 2) a cross join range(0, 1000000) b where a.id * b.id % 7 = 3"


def orders(spark: Session, folder: Path) -> Frame:
    """Return a thousand rows of Parquet."""
    path = folder / "orders.parquet"
    if not path.exists():
        pq.write_table(pa.table({"id": range(1_000), "amount": [number / 4 for number in range(1_000)]}), path)
    return spark.read.parquet(str(path))


def ambiguous(spark: Session, _: Path) -> bool:
    """Return whether both sides of a join are told apart."""
    left, right = spark.range(5), spark.range(3, 9)
    return left.join(right, left["id"] == right["id"], "left").select(right["id"]).filter(right["id"] > 0).count() == 2


def settings(spark: Session, _: Path) -> bool:
    """Return whether a setting is kept."""
    spark.conf.set("spark.sql.shuffle.partitions", 3)
    return spark.conf.get("spark.sql.shuffle.partitions") == "3"


def interrupted(spark: Session, _: Path) -> bool:
    """Return whether a query that is left ends at the server."""
    result = spark.sql(ENDLESS).stream(tag="matrix")
    return result.operation_id in spark.interrupt(tag="matrix")


def typed_error(spark: Session, folder: Path) -> bool:
    """Return whether an error has Spark's class."""
    try:
        orders(spark, folder).select("nope").collect()
    except Remote as error:
        return error.error_class == "UNRESOLVED_COLUMN.WITH_SUGGESTION"
    return False


def view(spark: Session, _: Path) -> bool:
    """Return whether SQL reads a frame by a name."""
    spark.range(3).create_or_replace_temp_view("numbers")
    return spark.sql("select sum(id) from numbers").collect() == [(3,)]


def cloned(spark: Session, _: Path) -> bool:
    """Return whether a session is cloned."""
    with spark.clone() as clone:
        return clone.range(3).count() == 3


def released(spark: Session, _: Path) -> bool:
    """Return whether a released session is refused."""
    twin = penstock.spark_connect(f"{spark.client.uri}/;session_id={spark.session_id}".replace("//;", "/;"))
    spark.close()
    try:
        twin.range(3).count()
    except Remote:
        return True
    finally:
        twin.client.close()
    return False


CHECKS: Mapping[str, Callable[[Session, Path], bool]] = {
    "version by AnalyzePlan": lambda spark, _: spark.version[0].isdigit(),
    "settings": settings,
    "`sql`, arguments by name and position": lambda spark, _: (
        spark.sql("select :a, :b", {"a": 1, "b": "x"}).collect() == spark.sql("select ?, ?", [1, "x"]).collect()
    ),
    "Parquet, filtered and projected": lambda spark, folder: (
        orders(spark, folder).filter(col("amount") > 200).select("id").order_by("id").first() == (801,)
    ),
    "join, group_by, agg": lambda spark, folder: (
        orders(spark, folder)
        .join(spark.range(500), "id")
        .group_by((col("id") % 2).alias("k"))
        .agg(fn.sum("id"))
        .count()
        == 2
    ),
    "columns of both sides of a join": ambiguous,
    "lambdas": lambda spark, _: spark.range(1).select(fn.transform(lit([1, 2]), lambda x: x * 2)).first() == ([2, 4],),
    "schema": lambda spark, folder: orders(spark, folder).schema.names == ["id", "amount"],
    "explain, five modes": lambda spark, folder: all(orders(spark, folder).explain_string(mode) for mode in MODES),
    "rows of the client's side": lambda spark, _: spark.create_frame(pa.table({"a": [1, 2]})).count() == 2,
    "temporary views": view,
    "a stream of a million rows": lambda spark, _: (
        sum(each.num_rows for each in spark.range(1_000_000).stream()) == 10**6
    ),
    "results in pages": lambda spark, _: sum(b.num_rows for b in spark.range(1_000).stream(paged="partition")) == 1_000,
    "errors with Spark's class": typed_error,
    "interrupt by tag": interrupted,
    "clone": cloned,
    "catalog (experimental)": lambda spark, _: Catalog(spark).table_exists("nowhere") is False,
    "release": released,
}


def main() -> int:
    """Ask the servers that were named, or all."""
    servers = sys.argv[1:] or [*(version for version in spark_matrix.PINS if version != "3.5"), "sail"]
    columns = {}
    for server in servers:
        with tempfile.TemporaryDirectory() as folder, running(server, Path(folder)) as (name, uri):
            print(f"== {name}", flush=True)
            columns[name] = ask(uri, Path(folder))
    table = [["", *columns], ["---"] * (len(columns) + 1)]
    table += [[check, *(answers[check] for answers in columns.values())] for check in CHECKS]
    text = "\n".join(f"| {' | '.join(row)} |" for row in table)
    print(text)
    write(text)
    return 0


def ask(uri: str, folder: Path) -> dict[str, str]:
    """Return what works with a server."""
    answers = {}
    with penstock.spark_connect(uri, retry_for=60) as spark:
        for name, check in CHECKS.items():
            try:
                answers[name] = "yes" if check(spark, folder) else "no"
            except (penstock.errors.PenstockError, LookupError) as error:
                print(f"{name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
                answers[name] = "no"
    return answers


@contextmanager
def running(server: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Run a server, and yield its name and address."""
    port = child.free_port()
    if server == "sail":
        name, command = f"Sail {SAIL}", [str(sail()), "spark", "server", "--ip", "127.0.0.1", "--port", str(port)]
    else:
        python = spark_matrix.environment(server)
        code = "import pyspark; print(pyspark.__path__[0], pyspark.__version__)"
        home, version = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.split()
        name, command = f"Spark {version}", connect_server.command(Path(home), port, {"spark.ui.enabled": "false"})
    with connect_server.listening(name, command, port, folder) as uri:
        yield name, uri


def sail() -> Path:
    """Return the command of Sail, installed where it isn't there."""
    home = spark_matrix.HOMES / f"sail-{SAIL}"
    command = home / "bin" / "sail"
    if not command.exists():
        venv.create(home, clear=True, symlinks=True)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--quiet",
            "--python",
            str(home / "bin" / "python"),
        ]
        subprocess.run([*pip, "install", "--no-deps", f"pysail=={SAIL}"], check=True)
    return command


def write(table: str) -> None:
    """Put the table into the page."""
    today = f"{datetime.now(UTC):%d %B %Y}".lstrip("0")
    said = f"Written by `python scripts/connect_matrix.py` on {today}, with penstock {penstock.__version__}"
    begin, end = MARKS
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: f"{begin}{said}.\n\n{table}\n{end}", PAGE.read_text()))


if __name__ == "__main__":
    raise SystemExit(main())
