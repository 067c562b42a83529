"""By real Ray: Ray Data reads and writes datasets, each row once; the store `ray:` fulfils the stores' contracts."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from penstock import SplitPayloadStore
from penstock.client.client import Client, connect
from penstock.errors import AlreadyExists, InvalidRequest, Lost, NotFound, Unavailable
from penstock.flight_server import endpoints
from penstock.flight_server.server import PenstockServer
from penstock.pipeline import Job, Stage, WriteDataset, dead_letter
from penstock.rows import slices
from penstock.rows.payload import PayloadStore
from penstock.store import payloads
from penstock.store.medium import Medium
from penstock.store.payloads import Store
from penstock.wire.actions import FINISH_WRITE, OPEN_WRITE, FinishWrite, OpenWrite
from tests.kit.jobs import Dies, stage_counts, state_of, values
from tests.kit.pages import run_all
from tests.kit.payload_contract import PayloadContract
from tests.kit.processes import kill, session_processes
from tests.kit.programs.job import slow_job
from tests.kit.server import TOKEN, process_server, served, sorted_ids, token_file
from tests.kit.store_contract import StoreContract
from tests.kit.wait import eventually

pytest.importorskip("ray", reason="Ray is missing: pip install 'penstock-flight[ray]'")
import ray
from ray.data.datasource import WriteResult

from penstock.pipeline.ray_data import Datasink, Datasource
from penstock.store import ray_objects
from penstock.store.ray_objects import PartsActor, RayMedium

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),  # Ray Data warns of its own settings
]
ROWS = 3_000
LARGE = 30_000
"""Rows of a part that an actor puts."""


def numbered(rows: int = ROWS, first: int = 0) -> pa.Table:
    """Return rows with an id and a text."""
    ids = range(first, first + rows)
    schema = pa.schema({"id": pa.int64(), "text": pa.string()})
    return pa.table({"id": ids, "text": [f"row {number}" for number in ids]}, schema)


@pytest.fixture
def small_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server give an endpoint to each part."""
    monkeypatch.setattr(endpoints, "RUN_PARTS", 1)


@pytest.mark.usefixtures("ray_data", "capsys", "url_variable")
def test_the_code_of_the_page_runs_as_it_stands() -> None:
    run_all("docs/ray.md", "python ray", {})


# --- reading -------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_endpoints")
def test_a_dataset_is_read_in_a_task_for_each_endpoint(client: Client, ray_data: Any) -> None:
    """Schema, rows and sizes are known before one has run."""
    for part in range(4):
        client.put("store/x", numbered(ROWS, part * ROWS), mode="append")
    source = Datasource("store/x", url=client.settings.url)
    tasks = source.get_read_tasks(100)
    assert [task.metadata.num_rows for task in tasks] == [ROWS] * 4
    assert source.estimate_inmemory_data_size() == sum(task.metadata.size_bytes or 0 for task in tasks)
    assert [task.metadata.num_rows for task in source.get_read_tasks(3)] == [2 * ROWS, 2 * ROWS]
    assert pa.concat_tables(tasks[1]()).equals(numbered(ROWS, ROWS))
    dataset = ray_data.read_datasource(source, override_num_blocks=4)
    assert dataset.schema().base_schema == numbered().schema
    assert sorted(row["id"] for row in dataset.take_all()) == list(range(4 * ROWS))


def test_columns_and_filter_are_applied_at_the_server(client: Client, ray_data: Any) -> None:
    client.put("store/x", numbered())
    source = Datasource("store/x", url=client.settings.url, columns=["text"], filter="id >= 2998")
    assert [task.metadata.num_rows for task in source.get_read_tasks(1)] == [None]
    assert ray_data.read_datasource(source).take_all() == [{"text": "row 2998"}, {"text": "row 2999"}]
    none = Datasource("store/x", url=client.settings.url, filter="id < 0")
    assert pa.concat_tables(none.get_read_tasks(1)[0]()).equals(numbered(0))


@pytest.mark.usefixtures("elsewhere")
def test_parts_that_cannot_be_mapped_are_sent(client: Client, ray_data: Any) -> None:
    """And a dataset is read as it was when its source was made."""
    client.put("store/x", numbered())
    source = Datasource("store/x", url=client.settings.url)
    client.delete("store/x")
    assert ray_data.read_datasource(source).sum("id") == sum(range(ROWS))


def test_a_dataset_that_does_not_exist_is_named(client: Client) -> None:
    with pytest.raises(NotFound, match="store/none"):
        Datasource("store/none", url=client.settings.url)


# --- writing -------------------------------------------------------------------------------


def test_a_frame_is_written_once_it_is_whole(client: Client, ray_data: Any) -> None:
    sink = Datasink("store/y", url=client.settings.url)
    frame = ray_data.from_arrow([numbered(ROWS, part * ROWS) for part in range(3)])
    frame.map_batches(lambda table: table, batch_format="pyarrow", batch_size=None).write_datasink(sink)
    assert sink.finished is not None
    assert (sink.finished.rows, sink.finished.attempts) == (3 * ROWS, 3)
    assert sorted_ids(client, "store/y") == list(range(3 * ROWS))
    with pytest.raises(AlreadyExists):
        frame.write_datasink(Datasink("store/y", url=client.settings.url))
    assert not client.list("write/")


def test_a_run_is_written_once(client: Client, ray_data: Any) -> None:
    for _ in range(2):
        sink = Datasink("store/y", mode="append", run="night-7", url=client.settings.url)
        ray_data.from_arrow(numbered()).write_datasink(sink)
        assert sink.finished is not None
        assert sink.finished.rows == ROWS
    assert sorted_ids(client, "store/y") == list(range(ROWS))


def test_blocks_of_a_task_need_not_have_one_schema(client: Client) -> None:
    """Ray's own guess of a column without values is null; a frame without rows keeps its columns."""
    sink = Datasink("store/y", url=client.settings.url)
    sink.on_write_start()
    unknown = pa.table({"id": [7], "text": pa.nulls(1)})
    tasks: list[list[pa.Table]] = [[unknown, numbered(2)], [], [numbered(0)]]
    receipts = [pickle.loads(pickle.dumps(sink)).write(blocks, None) for blocks in tasks]
    assert [len(some) for some in receipts] == [1, 0, 1]
    sink.on_write_complete(WriteResult(3, 0, receipts))
    assert client.get("store/y").read_all().to_pylist() == [
        {"id": 7, "text": None}, {"id": 0, "text": "row 0"}, {"id": 1, "text": "row 1"}
    ]  # fmt: skip


def test_tasks_have_no_token(make_server: Callable[..., PenstockServer], tmp_path: Path, ray_data: Any) -> None:
    server = make_server(token_file=token_file(tmp_path))
    sink = Datasink("store/y", url=server.url, token=TOKEN)
    ray_data.from_arrow(numbered()).write_datasink(sink)
    source = Datasource("store/y", url=server.url, token=TOKEN)
    assert ray_data.read_datasource(source).count() == ROWS
    for each in (sink, source):
        assert TOKEN.encode() not in pickle.dumps(each)


# --- faults --------------------------------------------------------------------------------


class FailsOnce(Datasink):
    """A sink one of whose tasks fails after its rows are stored, the first time that it runs."""

    def __init__(self, path: str, failed: Path, fail: Callable[[], NoReturn], **arguments: Any) -> None:
        super().__init__(path, **arguments)
        self.failed, self.fail = failed, fail

    def write(self, blocks: Iterable[Any], ctx: object) -> list[dict[str, Any]]:
        receipts = super().write(blocks, ctx)
        if not self.failed.exists():
            self.failed.touch()
            self.fail()
        return receipts


def raises() -> NoReturn:
    """Fail as a task does."""
    raise OSError("the task fails after its put")


def dies() -> NoReturn:
    """End as a worker does that the kernel kills."""
    os._exit(137)


@pytest.mark.parametrize("fail", [raises, dies])
def test_a_task_that_ray_runs_again_adds_nothing_twice(
    client: Client, ray_data: Any, tmp_path: Path, fail: Callable[[], NoReturn]
) -> None:
    client.put("store/y", numbered(5, -5))
    sink = FailsOnce("store/y", tmp_path / "failed", fail, mode="append", url=client.settings.url)
    frame = ray_data.from_arrow([numbered(ROWS, part * ROWS) for part in range(3)])
    frame.write_datasink(sink, ray_remote_args={"retry_exceptions": True, "max_retries": 3})
    assert sink.failed.exists()
    assert sorted_ids(client, "store/y") == list(range(-5, 3 * ROWS))
    assert sink.finished is not None
    assert sink.finished.attempts == 3


def test_a_frame_that_fails_writes_nothing(client: Client, ray_data: Any, tmp_path: Path) -> None:
    """Neither its tasks that have put their rows, nor an open write, stay behind."""
    client.put("store/y", numbered())
    sink = FailsOnce("store/y", tmp_path / "failed", raises, mode="overwrite", url=client.settings.url)
    with pytest.raises(OSError, match="fails after its put"):
        ray_data.from_arrow([numbered(10), numbered(10)]).write_datasink(sink)
    assert sorted_ids(client, "store/y") == list(range(ROWS))
    assert not client.list("write/")


def test_rows_that_do_not_fit_fail_by_their_column(client: Client, ray_data: Any) -> None:
    client.put("store/y", numbered())
    with pytest.raises(InvalidRequest, match="other"):
        ray_data.from_arrow(pa.table({"other": [1]})).write_datasink(
            Datasink("store/y", mode="append", url=client.settings.url)
        )
    assert sorted_ids(client, "store/y") == list(range(ROWS))


# --- the store ray: ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened(ray: Any) -> Iterator[Store]:
    """One store for many tests: each has an actor, which is a process."""
    with SplitPayloadStore("ray:") as store:
        assert isinstance(store, Store)
        yield store


def _put_all(actor: PartsActor) -> None:
    """Let an actor put small parts, too."""
    ray_objects._INLINE = 0


@pytest.fixture(scope="module")
def objects(ray: Any) -> Iterator[RayMedium]:
    """A medium whose parts are objects, however small."""
    with closing(RayMedium()) as medium:
        ray.get(medium._actor.__ray_call__.remote(_put_all))
        yield medium


class TestRayStore(StoreContract):
    shared: RayMedium

    @pytest.fixture(autouse=True)
    def empty(self, objects: RayMedium, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(payloads, "INLINE", 0)  # small ones are parts, too
        type(self).shared = objects
        for name, _ in list(self.shared.names()):
            self.shared.delete(name)

    def medium(self, folder: Path) -> Medium:
        return RayMedium.attach(self.shared.incarnation)

    def raw(self, store: Store, name: str) -> pa.Table:
        [reference] = ray.get(self.shared._actor.find.remote(name))
        return pa.ipc.open_stream(ray.get(reference)).read_all()


class TestRayPayloads(PayloadContract):
    @pytest.fixture
    def store(self, opened: Store) -> PayloadStore:
        opened.clear()
        return opened


class Producer:
    """An actor that stores a payload, and has an object of its own."""

    def produce(self, store: Store) -> list[Any]:
        store.store("k", numbered(LARGE))
        return [ray.put(numbered(LARGE))]


def test_a_payload_outlives_the_process_that_stored_it(opened: Store) -> None:
    """When what the process owned itself is lost, a second after its end, the payload is there."""
    opened.clear()
    producer: Any = ray.remote(num_cpus=0)(Producer).remote()
    [own] = ray.get(producer.produce.remote(opened))
    assert ray.get(own).equals(numbered(LARGE))
    ray.kill(producer)
    eventually(lambda: _fails(lambda: ray.get(own), ray.exceptions.ObjectLostError))
    payload = opened.get("k")
    assert payload is not None
    assert payload.data.equals(numbered(LARGE))


def test_a_part_on_its_way_has_no_file_that_a_kill_would_leave(
    objects: RayMedium, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ray_objects, "_SHARED", str(tmp_path))
    names: list[list[str]] = []

    def batches() -> Iterator[pa.RecordBatch]:
        yield from numbered(LARGE).to_batches()
        names.append(os.listdir(tmp_path))

    objects.write("a" * 32, numbered(1).schema, batches())
    objects.delete("a" * 32)
    assert names == [[]]


def test_a_ray_of_another_user_is_named(objects: RayMedium) -> None:
    def forbid(actor: PartsActor) -> None:
        def deny(*_: object) -> None:
            raise PermissionError

        ray_objects.__dict__["open"] = deny

    def allow(actor: PartsActor) -> None:
        del ray_objects.__dict__["open"]

    ray.get(objects._actor.__ray_call__.remote(forbid))
    try:
        with pytest.raises(InvalidRequest, match=r"^Ray runs as user \d+, who can't open .* as one user"):
            objects.write("b" * 32, numbered(1).schema, numbered(1).to_batches())
    finally:
        ray.get(objects._actor.__ray_call__.remote(allow))


def test_a_payload_that_was_handed_out_outlives_its_store(ray: Any) -> None:
    with SplitPayloadStore("ray:") as store:
        store.store("k", numbered(LARGE))
        payload = store.get("k")
        pickled = pickle.dumps(store)
    assert payload is not None
    assert payload.data.equals(numbered(LARGE))
    eventually(lambda: _fails(lambda: pickle.loads(pickled)))


def _fails(call: Callable[[], object], error: type[Exception] = Unavailable) -> bool:
    try:
        call()
    except error:
        return True
    return False


def _process(actor: PartsActor) -> int:
    return os.getpid()


def kill_actor(medium: Medium, call: Callable[[], object]) -> None:
    """Kill the actor of a store, and repeat a call until another process has taken its place."""
    assert isinstance(medium, RayMedium)
    actor = medium._actor
    before = ray.get(actor.__ray_call__.remote(_process))
    ray.kill(actor, no_restart=False)
    eventually(lambda: (call(), ray.get(actor.__ray_call__.remote(_process)) != before)[1])


def test_what_an_actor_had_is_lost_by_name_when_it_dies(opened: Store) -> None:
    """Another takes its place, for which every call waits."""
    opened.clear()
    opened.store("old", numbered())
    kill_actor(opened.medium, lambda: _fails(lambda: opened.get("old"), Lost))
    with pytest.raises(Lost, match=r"the payload old is lost: .* an object of a Ray store that has stopped"):
        opened.get("old")
    kill_actor(opened.medium, lambda: opened.store("new", numbered()))
    opened.store("new", numbered())
    payload = opened.get("new")
    assert payload is not None
    assert payload.data.equals(numbered())
    assert opened.delete("old")


def test_a_write_whose_parts_a_dead_actor_had_is_not_finished(
    make_server: Callable[..., PenstockServer], monkeypatch: pytest.MonkeyPatch, ray: Any
) -> None:
    """Nor does a put get a receipt, if the actor dies between two of its parts."""
    monkeypatch.setattr(slices, "PART_BYTES", 10_000)
    server = make_server(store="ray:")
    store = server.state.store
    with connect(server.url, retry_for=2) as client:
        opened = client.call(OPEN_WRITE, OpenWrite("store/x"))
        receipts = []
        for _ in range(2):
            with client.attempt(opened.ticket, numbered().schema) as writer:
                writer.write(numbered())
            receipts.append(writer.close())
            if len(receipts) == 1:
                kill_actor(store.medium, store.medium.room)
        first, second = (receipt.attempt for receipt in receipts)
        with pytest.raises(Lost, match="store/x can't be finished: some of its rows were in the memory of a process"):
            client.call(FINISH_WRITE, FinishWrite(opened.ticket, (first, second)))
        client.call(FINISH_WRITE, FinishWrite(opened.ticket, (second,)))
        assert client.get("store/x").read_all().equals(numbered())

        def rows() -> Iterator[pa.RecordBatch]:
            yield from numbered().to_batches()
            eventually(lambda: store.used > 2 * receipts[0].bytes)
            kill_actor(store.medium, store.medium.room)
            yield from numbered().to_batches()

        with pytest.raises(Unavailable, match=r"the store ray: has died, and lost part .* of this put: put all again"):
            client.put("store/y", pa.RecordBatchReader.from_batches(numbered().schema, rows()))
        assert not client.list("write/")


def test_the_rows_of_a_stopped_server_are_lost_by_name(
    make_server: Callable[..., PenstockServer], tmp_path: Path, ray: Any
) -> None:
    data = tmp_path / "ray"
    with served(data, store="ray:") as server, connect(server.url) as client:
        client.put("store/x", numbered())
        assert client.get("store/x", filter="id < 2").read_all().equals(numbered(2))
        SplitPayloadStore(server.url).store("k", numbered())
        room = server.state.store.medium.room()
        assert 0 < room.free < room.total
    with served(data, store="ray:") as server, connect(server.url) as client:
        with pytest.raises(Lost, match=r"store/x is lost: its 3,000 rows were in the memory"):
            client.get("store/x")
        with pytest.raises(Lost, match="the payload k is lost"):
            SplitPayloadStore(server.url).get("k")
        client.put("store/x", numbered(), mode="overwrite")
        assert client.get("store/x").read_all().equals(numbered())


def test_a_server_is_started_on_a_store_of_ray(tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    with process_server(tmp_path / "data", store="ray:") as server, connect(server.url) as client:
        client.put("store/x", numbered())
        assert client.get("store/x").read_all().equals(numbered())
        server.terminate()


def test_a_store_without_a_ray_says_how_to_start_one(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> NoReturn:
        raise ConnectionError("no cluster")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(InvalidRequest, match="ray start --head"):
        SplitPayloadStore("ray:")


# --- workers of a job ----------------------------------------------------------------------


def test_a_job_whose_raylet_died_goes_on_with_another_ray(
    make_server: Callable[..., PenstockServer], ray: Any, tmp_path: Path
) -> None:
    """Its driver finds out, while the actors still work."""
    url = str(make_server(queue_lease=1.5).url)
    command = [sys.executable, "-m", "tests.kit.programs.job", url, "ray", "5"]
    with (tmp_path / "log").open("w") as log, connect(url) as client:
        root = Path(__file__).parents[2]
        driver = subprocess.Popen(command, cwd=root, stdout=log, stderr=log, start_new_session=True)
        try:
            eventually(lambda: client.list("job/") and stage_counts(client, "slow")["work"]["done"], within=120)
            [raylet] = [pid for pid, line in session_processes(driver.pid).items() if "/raylet " in line]
            kill(raylet)
            driver.wait(150)
        finally:
            for pid in session_processes(driver.pid):
                kill(pid)
            driver.wait(30)
        state, cause = state_of(client, "slow")
        assert (state, "start another Ray" in str(cause)) == ("failed", True), (tmp_path / "log").read_text()
        assert slow_job(url, 0.0).run("ray", progress=False).state == "done"
        assert values(client, "store/out") == [2 * number for number in range(40)]


@pytest.mark.parametrize("fatal", [(), (7,)])
def test_a_job_runs_on_actors_of_ray(
    make_server: Callable[..., PenstockServer], ray: Any, tmp_path: Path, fatal: tuple[int, ...]
) -> None:
    """Each row is in the dataset once, also if an actor dies with a split."""
    (deaths := tmp_path / "deaths").mkdir()
    url = make_server(queue_lease=1.5).url
    job = Job("j", url=url)
    job.stage(Stage("in", [pa.table({"x": [number]}) for number in range(20)]))
    work = Stage("work", Dies(fatal, deaths, 1), workers=2, num_cpus=0.5, failure=dead_letter(most=0))
    job.stage(work, after="in")
    job.stage(Stage("out", WriteDataset("store/y")), after="work")
    summary = job.run("ray", progress=False)
    assert (summary.state, [stage.done for stage in summary.stages]) == ("done", [20, 20])
    assert len(list(deaths.iterdir())) == len(fatal)
    with connect(url) as client:
        assert values(client, "store/y") == [2 * number for number in range(20)]
