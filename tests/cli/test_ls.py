"""`ls`, `show`, `rm`, `call` and `top`: what there is at the server, and what kinds of things it is."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pyarrow as pa
import pytest

from penstock.cli import app, kinds
from penstock.client.client import Client
from tests.kit.cli import ORDERS, TRIPS, Run, create_topic, open_write

CONSUMER = {"lag_rows": 0, "lag_bytes": 0, "lag_seconds": 0.0, "committed_per_s": None, "state": "live"}


def first_words(text: str) -> list[str]:
    """What the lines below the heads begin with."""
    return [line.split()[0] for line in text.splitlines()[1:]]


# --- ls -------------------------------------------------------------------------------------


def test_ls_lists_folders_first_with_sizes_and_ages(here: Run, client: Client) -> None:
    for path in ("store/b/one", "store/b/two", "store/a"):
        client.put(path, TRIPS)
    heads, first, second = here("ls").text.splitlines()
    assert heads.split() == ["path", "rows", "size", "parts", "changed"]
    assert re.match(r"store/b/ +200 +[\d.]+ kB +2 +\d+ s ago", first)
    assert re.match(r"store/a +100 +[\d.]+ kB +1 +\d+ s ago", second)
    paths = [line["path"] for line in here("--json", "ls", "-r", "store/").json]
    assert paths == ["store/a", "store/b/one", "store/b/two"]


def test_ls_lists_topics_below_datasets(here: Run, client: Client) -> None:
    client.put("topic/a", TRIPS)
    client.put("store/z", TRIPS)
    create_topic(client, ORDERS, "topic/k", key="city", shards=3)
    assert [line["path"] for line in here("ls", "--json").json] == ["store/z", "topic/a", "topic/k"]
    assert first_words(here("ls").text) == ["store/z", "topic/a", "topic/k"]
    assert first_words(here("ls", "topic/").text) == ["topic/a", "topic/k"]
    assert here("ls", "topic/k").text.splitlines()[1].endswith("3 shards by city")
    assert first_words(here("ls", "store/").text) == ["store/z"]


def test_an_empty_listing_stays_parsable(here: Run) -> None:
    assert (here("ls").out, here("ls", "--json").out, here("ls", "write").out) == (b"", b"", b"")
    assert "nothing here" in here("ls").err
    assert "no write is open" in here("ls", "write").err


def test_ls_write_says_why_rows_are_not_visible(here: Run, client: Client) -> None:
    empty = open_write(client, "store/a", whole=False)
    whole = open_write(client, "store/b", whole=True, mode="append", run="q-7")
    heads, *lines = here("ls", "write").text.splitlines()
    assert heads.split() == ["write", "for", "rows", "size", "opened", "last", "put", "visible"]
    listed = {line.split()[0]: line for line in lines}
    assert set(listed) == {f"write/{empty}", f"write/{whole}"}
    assert re.search(r" store/a +0 +0 B +\d+ s ago +\d+ s ago +no, no attempt is whole$", listed[f"write/{empty}"])
    assert re.search(
        r" store/b \(append, run q-7\) +100 +[\d.]+ kB .* no, 1 whole attempt until finish$", listed[f"write/{whole}"]
    )
    assert here("ls", f"write/{empty}", "--json").json[0]["write"] == empty
    assert {line["write"]: line["attempts"] for line in here("ls", "write", "--json").json} == {empty: 0, whole: 1}


# --- show -----------------------------------------------------------------------------------


def test_show_describes_a_dataset_with_its_schema(here: Run, client: Client) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    client.put("store/a", pa.table({"id": [1, 2], "name": ["x", None]}, schema=schema))
    lines = [" ".join(line.split()) for line in here("show", "store/a").text.splitlines()]
    assert lines[:2] == ["store/a", "rows 2"]
    assert lines[-4:] == ["2 columns", "name type", "id int64 not null", "name string"]
    [thing] = here("show", "store/a", "--json").json
    assert (thing["rows"], [column["name"] for column in thing["schema"]]) == (2, ["id", "name"])


@pytest.mark.parametrize("path", ["store/a", "topic/a"])
def test_show_tells_what_each_query_has_landed(here: Run, client: Client, path: str) -> None:
    """By which a checkpoint is put back with a backup: docs/operating.md, Restore."""
    for run in ("b/0", "b/10", "b/9", "night/2026/7", "nightly", "night/x"):
        client.put(path, TRIPS, mode="append", run=run)
    assert client.call("write.open", {"path": path, "mode": "append", "run": "b/11"})  # and not finished
    assert re.search(r"\n +queries +b up to epoch 10, night/2026 up to epoch 7\n", here("show", path).text)


def test_show_describes_a_write(here: Run, client: Client) -> None:
    write = open_write(client, "store/b", whole=True)
    text = here("show", f"write/{write}").text
    assert text.startswith(f"write/{write}\n")
    assert re.search(r"state +open\n(.*\n)+ +rows +100 \([\d.]+ kB in 1 part\)\n", text)
    client.delete(f"write/{write}")
    assert "never, it was aborted" in here("show", f"write/{write}").text


def test_show_sums_up_a_folder(here: Run, client: Client) -> None:
    assert re.search(r"^store/\n +datasets +0\n +rows +0\n", here("show", "store").text)
    for path in ("store/a", "store/b/c", "topic/a/b"):
        client.put(path, TRIPS)
    for root in ("store", "store/"):
        assert re.search(r"^store/\n +datasets +2\n +rows +200\n", here("show", root).text)
    assert re.search(r"^store/b/\n +datasets +1\n +rows +100\n", here("show", "store/b").text)
    for path in ("topic", "topic/", "topic/a"):
        assert re.search(r"^topic/(a/)?\n +topics +1\n +rows +100\n", here("show", path).text)
    [folder] = here("show", "store/", "--json").json
    assert (folder["kind"], folder["datasets"], folder["rows"]) == ("folder", 2, 200)


def test_show_tells_all_of_a_topic(here: Run, client: Client) -> None:
    create_topic(client, ORDERS, key="city", shards=2, keep_seconds=7200, keep_bytes=5_000_000)
    rows = pa.schema([pa.field("id", pa.int32(), nullable=False), ("city", pa.string())])
    client.put("topic/x", pa.table({"id": [1, 2, 3], "city": ["a", "a", "a"]}, schema=rows))
    text = here("show", "topic/x").text
    facts = {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines() if line.startswith("  ")}
    assert text.startswith("topic/x\n")
    assert (facts["rows"], facts["key"], facts["kept"]) == ("3", "city", "2 h, 5.0 MB at most")
    assert re.fullmatch(r"[0-9a-f]{32}, epoch 0", facts["journal"])
    assert (facts["id"], facts["city"]) == ("int32 not null", "string")
    shards = re.search(r"  2 shards\n +shard +first +next +rows\n( +\d.*\n)( +\d.*\n)", text)
    assert shards
    assert sorted(tuple(map(int, line.split()[1:])) for line in shards.groups()) == [(0, 0, 0), (0, 3, 3)]
    assert here("show", "topic/x", "--json").json[0]["shards"] == client.call("describe", {"path": "topic/x"})["shards"]
    client.put("topic/y", TRIPS)
    assert re.search(r"^  kept +24 h$", here("show", "topic/y").text, re.MULTILINE)


def test_show_tells_how_far_a_consumer_is_behind(here: Run, client: Client) -> None:
    client.put("topic/x", TRIPS)
    journal = client.call("describe", {"path": "topic/x"})["journal"]
    reader = {"path": "topic/x", "journal": journal, "consumer": "reader-of-orders", "session": "one"}
    client.call("consumer.attach", {**reader, "initial": {"0": 0}})
    assert re.search(
        r"1 consumer\n.*\n +reader-of-orders +100 +[\d.]+ kB +\d+ s +\d+ s ago ", here("show", "topic/x").text
    )
    client.call("consumer.commit", {**reader, "position": {"0": 100}})
    assert re.search(r"1 consumer\n.*\n +reader-of-orders +0 +0 B +\d+ s ago ", here("show", "topic/x").text)


def test_consumers_have_paths_of_their_own(here: Run, client: Client) -> None:
    client.put("topic/a/x", TRIPS)
    client.put("topic/y", TRIPS)
    path = "consumer/topic/a/x/billing"
    with client.consume("topic/a/x", group="billing"), client.consume("topic/y", group="billing"):
        listed = here("ls", "consumer").text
        assert re.search(
            r"^consumer/topic/a/x/billing +100 +[\d.]+ kB +\d+ s +1 +\d+ s ago +live$", listed, re.MULTILINE
        )
        assert len(here("ls", "consumer/topic/a", "--json").json) == len(here("ls", path, "--json").json) == 1
        shown = here("show", path).text
        assert re.search(r"behind +100\n", shown)
        assert re.search(r"1 shard\n +shard +next +member\n +0 +0 +\S+-\d+-[0-9a-f]{12}\n", shown)
    assert here("rm", "-y", path).text == f"deleted {path}, which was 100 rows behind\n"
    assert "penstock ls consumer/topic/a/x lists what there is" in here("rm", "-y", path).err
    assert "topic/a/x" not in here("ls", "consumer").text
    assert "queries of Spark's and groups are some" in here("ls", "consumer/topic/none").err


def test_consumers_are_shown_the_slowest_first() -> None:
    near = {**CONSUMER, "consumer": "near", "seen": time.time()}
    lag = {"lag_rows": 12_345, "lag_bytes": 2_000_000, "lag_seconds": 600.0}
    far = {**CONSUMER, **lag, "consumer": "far\x1b[2J", "seen": time.time() - 7200, "state": "expired"}
    table = kinds.kind_named("topic").show[-1]
    heads, first, second = kinds.text_of(table.columns, table.rows({"consumers": [near, far]})).splitlines()
    assert heads.split() == ["consumer", "behind", "size", "oldest", "dead", "members", "seen"]
    assert re.fullmatch(r"far\\x1b\[2J +12,345 +2\.0 MB +10 min +2 h ago +expired", first)
    assert re.fullmatch(r"near +0 +0 B +0 s ago +live", second)
    away = {**near, "absent": True}
    assert kinds.text_of(table.columns, [away]).splitlines()[1].endswith("live, absent: rows wait for it")
    consumer = {**CONSUMER, "consumer": "a\x1b[2J\nb", "seen": time.time()}
    _, line = kinds.text_of(kinds.kind_named("topic").top[1].columns, [{"path": "topic/x", **consumer}]).splitlines()
    assert line.split()[:2] == ["a\\x1b[2J\\nb", "topic/x"]


def test_an_unknown_kind_is_shown_by_its_fields() -> None:
    kind = kinds.kind_named("shelf")
    thing = {"kind": "shelf", "path": "shelf/j", "pending": 7, "shards": []}
    assert (kind.title.format(**thing), kind.facts, kind.show) == ("shelf/j", None, ())
    assert kinds.cells({"pending": "pending", "dead": "dead"}, thing) == {"pending": "7", "dead": ""}
    assert kinds.text_of({"path": "path", "pending": "pending"}, [thing]) == "path     pending\nshelf/j        7"


# --- rm, call -------------------------------------------------------------------------------


def test_rm_goes_on_past_what_it_cannot_delete(here: Run, client: Client) -> None:
    for path in ("store/a", "store/b", "topic/x"):
        client.put(path, TRIPS)
    done = here("rm", "-y", "store/a", "store/nothing", "topic/x", "store/b")
    assert (done.code, len(client.list()), len(client.list("topic/"))) == (app.NOT_FOUND, 0, 0)
    assert re.findall(r"deleted (\S+): 100 rows, ", done.text) == ["store/a", "topic/x", "store/b"]
    assert done.err.startswith("penstock: no dataset at store/nothing")


@pytest.mark.parametrize(("root", "noun"), [("store", "datasets"), ("topic", "topics")])
def test_rm_takes_a_folder_only_with_r(here: Run, client: Client, root: str, noun: str) -> None:
    for name in "ab":
        client.put(f"{root}/f/{name}", TRIPS)
    refused = here("rm", "-y", f"{root}/f")
    assert (refused.code, len(client.list(f"{root}/", recursive=True))) == (app.USAGE, 2)
    assert f"{root}/f/ is a folder with 2 {noun}: penstock rm -r {root}/f/" in refused.err
    assert (here("rm", "-r", "-y", f"{root}/f").code, len(client.list(f"{root}/", recursive=True))) == (0, 0)


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 1), (b"\n", 1), (b"y\n", 0)])
def test_rm_asks_on_a_terminal(here: Run, client: Client, trips: str, answer: bytes, left: int) -> None:
    done = here("rm", "-r", "store/demo", stdin=answer, terminal=True)
    assert (done.code, len(client.list())) == (0, left)
    assert "Delete 1 dataset in store/demo/?" in done.err


def test_rm_without_a_terminal_needs_y(here: Run, client: Client, trips: str) -> None:
    for arguments in ((trips,), ("-r", "store/demo")):
        refused = here("rm", *arguments)
        assert (refused.code, len(client.list(recursive=True))) == (app.USAGE, 1)
        assert "penstock rm -y" in refused.err
    assert (here("rm", "-y", trips).code, len(client.list(recursive=True))) == (0, 0)


def test_rm_takes_an_unset_variable_for_nothing(here: Run, client: Client, trips: str) -> None:
    done = here("rm", "-r", "-y", trips, "")
    assert (done.code, "a path is empty" in done.err, len(client.list(recursive=True))) == (app.USAGE, True, 1)


def test_rm_does_not_ask_twice(here: Run, client: Client, trips: str) -> None:
    assert (here("rm", "-r", "-y", "store/demo", terminal=True).code, len(client.list())) == (0, 0)


def test_undelete_brings_a_dataset_back(here: Run, client: Client, trips: str) -> None:
    said = here("rm", "-y", trips).text
    assert re.fullmatch(
        rf"deleted {trips}: 100 rows, \S+ kB; penstock undelete {trips} brings it back, for \S+ h .*\n", said
    )
    done = here("undelete", "store/none", trips)
    assert (done.code, done.text.startswith(f"{trips} is back: 100 rows, ")) == (app.NOT_FOUND, True)
    assert "no deleted dataset at store/none" in done.err
    assert client.get(trips).read_all() == TRIPS
    assert here("undelete", trips).code == app.CONFLICT
    here("rm", "-r", "-y", "store/demo")
    assert here("undelete", trips, "--json").json[0]["rows"] == 100
    assert here("undelete", "topic/x").code == app.USAGE


def test_one_row_is_no_rows(here: Run, client: Client) -> None:
    for path in ("store/one", "topic/one"):
        client.put(path, TRIPS.slice(0, 1))
        assert here("get", path, terminal=True).err.strip().endswith("1 of 1 row")
        assert f"deleted {path}: 1 row, " in here("rm", "-y", path).text


@pytest.mark.parametrize("verb", ["ls", "top"])
def test_bytes_that_only_tickets_hold_are_shown(here: Run, client: Client, verb: str) -> None:
    client.put("store/a", TRIPS)
    client.get("store/a").read_all()
    looks = [verb, *(("-n", "1") if verb == "top" else ())]
    assert "held by read tickets" not in (quiet := here(*looks, terminal=True)).text + quiet.err
    client.delete("store/a")
    shown = here(*looks, terminal=True)
    assert re.search(
        r"\d kB of deleted rows are held by read tickets and for undelete, for 12 h", shown.text + shown.err
    )


def test_rm_ends_a_write(here: Run, client: Client) -> None:
    write = open_write(client, "store/a", whole=True)
    assert here("rm", "-y", f"write/{write}").text == f"ended write/{write} to store/a\n"
    assert len(client.list("write/")) == 0


def test_call_lists_the_actions_and_calls_them(here: Run, trips: str) -> None:
    assert {"write.open", "describe", "health"} <= {line["action"] for line in here("call", "--json").json}
    assert all(re.match(r"\S+ +\S.*\.$", line) for line in here("call").text.splitlines()[1:])
    assert json.loads(here("call", "describe", '{"path": "store/demo/trips"}').text)["rows"] == 100
    assert here("call", "describe", "-", "--json", stdin=b'{"path": "store/demo/trips"}').json[0]["rows"] == 100


# --- top ------------------------------------------------------------------------------------


def test_top_says_where_nothing_is(here: Run) -> None:
    assert here("top").text == "no topic, no subscription, no queue, no open write\n"


def test_top_has_topics_consumers_and_writes(here: Run, client: Client) -> None:
    client.put("topic/orders", pa.table({"id": [1, 2, 3]}))
    journal = client.call("describe", {"path": "topic/orders"})["journal"]
    client.call("consumer.attach", {"path": "topic/orders", "journal": journal, "consumer": "c1", "session": "s"})
    client.call("write.open", {"path": "store/x"})
    lines = [line.split() for line in here("top").text.splitlines()]
    assert next(line for line in lines if line[:1] == ["topic/orders"])[1] == "3"
    consumer = next(line for line in lines if line[:1] == ["c1"])
    assert (consumer[:3], consumer[-1]) == (["c1", "topic/orders", "3"], "live")
    assert any("store/x" in line for line in lines)


def test_what_is_deleted_during_a_look_does_not_end_top(
    here: Run, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("topic/a", "topic/b"):
        client.put(path, pa.table({"id": [1]}))
    call = Client.call

    def deleting(self: Client, action: Any, request: Any = None) -> Any:
        if request == {"path": "topic/a"}:
            client.connection.call_raw("delete", request)
        return call(self, action, request)

    monkeypatch.setattr(Client, "call", deleting)
    done = here("top", "--json")
    assert (done.code, [topic["path"] for topic in json.loads(done.out)["topics"]]) == (0, ["topic/b"]), done.err


def test_two_looks_of_top_tell_rates(here: Run, client: Client) -> None:
    client.put("topic/orders", pa.table({"id": [1, 2, 3]}))
    journal = client.call("describe", {"path": "topic/orders"})["journal"]
    client.call("consumer.attach", {"path": "topic/orders", "journal": journal, "consumer": "c1", "session": "s"})

    def rates(page: dict[str, Any]) -> tuple[float | None, float | None]:
        [topic] = page["topics"]
        return topic["rows_per_s"], topic["consumers"][0]["committed_per_s"]

    first, second = here("top", "--json", "-n", "2", "-s", "0.1").json
    assert (rates(first), rates(second)) == ((None, None), (0.0, 0.0))
    assert second["topics"][0]["rows"] == 3
