"""A real Kafka broker, Spark's own source for it and a client in Python, got once into .venv-bench/."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts import spark_matrix
from scripts.bench_servers import ROOT

SPARK = "4.2"
"""The newest Spark that has a Kafka source; its own, 4.2.0's, is taken for all of 4.2."""
BROKER = "4.3.0"
CLIENT = "3.0.12"
VERSIONS = f"Kafka {BROKER}, heap 1 GiB, Java as Spark's; Spark's source 4.2.0 for it; kafka-python {CLIENT}"
_HOME = ROOT / ".venv-bench"
_PATIENCE = 90.0  # seconds for the broker to start
_OF_BROKER = (f"org.apache.kafka:kafka_2.13:{BROKER}", "org.slf4j:slf4j-nop:2.0.17")
_OF_SPARK = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_CONFIG = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{control}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={logs}
num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@dataclass(frozen=True, slots=True)
class Kafka:
    """A running broker, and what Spark and a Python client need to speak to it."""

    address: str
    python: Path
    """The folder that has kafka-python, for PYTHONPATH."""


def lacks() -> str | None:
    """Why there can be no Kafka here, and the cure."""
    if shutil.which("mvn") is None:
        return "Maven isn't here, which gets Kafka and Spark's source for it (Debian and Ubuntu: apt install maven)"
    return None


def spark_python() -> Path:
    """The Python of the Spark that has a Kafka source, in an environment of its own."""
    return spark_matrix.environment(SPARK)


def spark_jars() -> list[Path]:
    """Spark's Kafka source, and nothing that Spark has itself."""
    return _jars("spark-kafka", _OF_SPARK, alone=True)


@contextmanager
def broker(folder: Path) -> Iterator[Kafka]:
    """One node, as it comes: it answers when the page cache has the bytes, and fsyncs later."""
    classpath = os.pathsep.join(map(str, _jars("kafka", _OF_BROKER, alone=False)))
    port, control = _free_ports(2)
    folder.mkdir(parents=True)
    config = folder / "server.properties"
    config.write_text(_CONFIG.format(port=port, control=control, logs=folder / "logs"))
    java = ["java", "-Xmx1g", "-cp", classpath]
    made = str(uuid.uuid4())
    with (folder / "said").open("wb") as said:
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", made, "-c", str(config)],
            stdout=said, stderr=said, check=True,
        )  # fmt: skip
        process = subprocess.Popen([*java, "kafka.Kafka", str(config)], stdout=said, stderr=said)
        try:
            _wait_for(process, port, folder / "said")
            yield Kafka(f"127.0.0.1:{port}", _client())
        finally:
            process.terminate()
            process.wait(_PATIENCE)


def _jars(name: str, wanted: tuple[str, ...], *, alone: bool) -> list[Path]:
    """The jars of some artifacts, with all that they need or alone; got by Maven once."""
    folder, made_of = _HOME / name, "\n".join(wanted)
    stamp = folder / "made-of"
    if not (stamp.exists() and stamp.read_text() == made_of):
        print(f"getting {', '.join(wanted)} into {folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "pom.xml").write_text(_pom(wanted, _ALONE if alone else ""))
        command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
        if subprocess.run([*command, f"-DoutputDirectory={folder}"], check=False).returncode:
            sys.exit("Maven couldn't get them, it says why above; --without-kafka measures all the rest")
        stamp.write_text(made_of)
    return sorted(folder.glob("*.jar"))


def _pom(wanted: tuple[str, ...], exclusions: str) -> str:
    found = ""
    for each in wanted:
        group, artifact, version = each.split(":")
        about = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        found += f"<dependency>{about}{exclusions}</dependency>"
    own = "<groupId>penstock</groupId><artifactId>bench</artifactId><version>1</version>"
    return f"<project><modelVersion>4.0.0</modelVersion>{own}<dependencies>{found}</dependencies></project>"


def _client() -> Path:
    folder = _HOME / f"kafka-python-{CLIENT}"
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps"]
        subprocess.run([*pip, "--target", str(folder), f"kafka-python=={CLIENT}"], check=True)
    return folder


def _free_ports(count: int) -> list[int]:
    """Kafka has to be told its ports, as it advertises them."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _wait_for(process: subprocess.Popen[bytes], port: int, said: Path) -> None:
    give_up = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < give_up:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"Kafka didn't start: {said.read_text()[-2000:]}")
