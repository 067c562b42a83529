"""A real Kafka broker, Spark's own source for it and a client in Python, got once into .venv-bench/."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.servers import running
from scripts.child import free_port

NAME = "Kafka"
SPARK = "4.2"
"""The newest Spark that has a Kafka source; its own, 4.2.0's, is taken for all of 4.2."""
BROKER = "4.3.0"
CLIENT = "3.0.12"
VERSIONS = (
    f"Kafka {BROKER}, heap 1 GiB, Java as Spark's; Spark's source 4.2.0 for it, its Avro 4.1.1; kafka-python {CLIENT}"
)
_HOME = Path(__file__).resolve().parents[2] / ".venv-bench"
_OF_BROKER = (f"org.apache.kafka:kafka_2.13:{BROKER}", "org.slf4j:slf4j-nop:2.0.17")
_OF_SPARK = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.spark:spark-avro_2.13:4.1.1",  # the newest one; all but its expressions is in Spark 4.2 itself
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
    """A running broker, and the folder that has kafka-python."""

    address: str
    libraries: Path


def lacks() -> str:
    """Say why there can be no Kafka, if so."""
    if shutil.which("mvn"):
        return ""
    return "Maven isn't here, which gets Kafka and Spark's source for it (Debian and Ubuntu: apt install maven)"


@contextmanager
def broker(folder: Path) -> Iterator[Kafka]:
    """Run one node as it comes: it answers when the page cache has the bytes, and fsyncs later."""
    java = ["java", "-Xmx1g", "-cp", os.pathsep.join(map(str, _jars("kafka", _OF_BROKER)))]
    libraries = _HOME / f"kafka-python-{CLIENT}"
    if not libraries.exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps"]
        subprocess.run([*pip, "--target", str(libraries), f"kafka-python=={CLIENT}"], check=True)
    port, control = free_port(), free_port()
    folder.mkdir(parents=True)
    config = folder / "server.properties"
    config.write_text(_CONFIG.format(port=port, control=control, logs=folder / "logs"))
    storage = [*java, "kafka.tools.StorageTool", "format", "-t", str(uuid.uuid4()), "-c", str(config)]
    subprocess.run(storage, stdout=subprocess.DEVNULL, check=True)
    with running([*java, "kafka.Kafka", str(config)], port, folder / "log"):
        yield Kafka(f"127.0.0.1:{port}", libraries)


def spark_jars() -> list[Path]:
    """Return the jars of Spark's Kafka source, without what Spark has itself."""
    return _jars("spark-kafka", _OF_SPARK, exclusions=_ALONE)


def _jars(name: str, artifacts: tuple[str, ...], *, exclusions: str = "") -> list[Path]:
    """Return the jars of some artifacts and of all that they need, got by Maven once."""
    folder, made_of = _HOME / name, "\n".join(artifacts)
    stamp = folder / "made-of"
    if not (stamp.exists() and stamp.read_text() == made_of):
        print(f"getting {', '.join(artifacts)} into {folder}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        pom = "<groupId>penstock</groupId><artifactId>bench</artifactId><version>1</version><dependencies>"
        for group, artifact, version in (each.split(":") for each in artifacts):
            about = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
            pom += f"<dependency>{about}{exclusions}</dependency>"
        pom = f"<project><modelVersion>4.0.0</modelVersion>{pom}</dependencies></project>"
        (folder / "pom.xml").write_text(pom)
        command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
        if subprocess.run([*command, f"-DoutputDirectory={folder}"], check=False).returncode:
            sys.exit("Maven could not get them, it says why above; --without-rivals measures all the rest")
        stamp.write_text(made_of)
    return sorted(folder.glob("*.jar"))
