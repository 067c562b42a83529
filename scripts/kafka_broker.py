"""Run a real Kafka broker: `python scripts/kafka_broker.py [--port P] [--heap 256m]` prints host:port once it answers.

One node, KRaft, no docker: the jars come from Maven Central by mvn, once, into the user's cache. It ends with the
process that started it.
"""

from __future__ import annotations

import argparse
import base64
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/ is a folder, not an installed package

from scripts import child, java, maven

JAVA = 17
"""The oldest that runs the broker."""
VERSION = "4.1.0"
HELLO = b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"
"""The request that every client of Kafka begins with, without a client id."""
QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PATIENCE = 90.0  # seconds until it answers, on a busy machine
_FETCH = 100.0  # seconds for 43 MB, which took 8
_POM = f"""<project><modelVersion>4.0.0</modelVersion>
<groupId>broker</groupId><artifactId>broker</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""
_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
"""


def cache() -> Path:
    """Return the folder that has brokers."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def jars() -> Path:
    """Return the folder of the broker's jars: the one that PENSTOCK_KAFKA_JARS names, else the one in the cache."""
    if named := os.environ.get("PENSTOCK_KAFKA_JARS"):
        return Path(named)
    return cache() / f"kafka-{VERSION}"


def missing() -> str | None:
    """Return what the broker lacks here, and the cure; fetch its jars if that is all."""
    if (lack := java.missing("the Kafka broker", JAVA)) is not None:
        return lack
    if any(jars().glob("kafka_*.jar")):
        return None
    if os.environ.get("PENSTOCK_KAFKA_JARS"):
        return f"PENSTOCK_KAFKA_JARS names {jars()}, where no kafka_*.jar is: name the libs folder of a Kafka"
    if shutil.which("mvn") is None:
        return (
            "Kafka's jars aren't here, nor is mvn, which fetches them: apt install maven, or name the libs folder of a "
            "Kafka: PENSTOCK_KAFKA_JARS=/path/to/kafka/libs"
        )
    return maven.fetch(f"Kafka {VERSION}", _POM, jars(), limit=_FETCH)


@contextmanager
def running(
    folder: Path, *, port: int = 0, heap: str = "256m", java_options: Sequence[str] = QUICK_START
) -> Iterator[tuple[str, int]]:
    """Run a broker on a folder and a port, by default any; yields host:port and its process's id once it answers."""
    if (lack := missing()) is not None:
        raise FileNotFoundError(lack)
    port = port or child.free_port()
    settings = folder / "server.properties"
    settings.write_text(_PROPERTIES.format(port=port, controller=child.free_port(), folder=folder))
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    run = [java.program(), quiet, f"-Xmx{heap}", *java_options, "-cp", f"{jars()}/*"]
    if not (folder / "data").exists():
        name = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]  # a first "-" would make it an option
        format_ = [*run, "kafka.tools.StorageTool", "format", "-t", name, "-c", str(settings)]
        subprocess.run(format_, check=True, capture_output=True)
    with (
        (folder / "broker.log").open("a+") as log,
        child.running(
            "the Kafka broker", [*run, "kafka.Kafka", str(settings)], port, hello=HELLO, log=log, patience=_PATIENCE
        ) as pid,
    ):
        yield f"127.0.0.1:{port}", pid


def main() -> None:
    """Run the broker until a signal, or until the process that started this one has ended."""
    parser = argparse.ArgumentParser(description="Run a one-node Kafka broker, and print host:port once it answers.")
    parser.add_argument("--port", type=int, default=0, help="default: any")
    parser.add_argument("--heap", default="256m", help="of its JVM")
    parser.add_argument("--folder", type=Path, help="of its data; default: a temporary one")
    options = parser.parse_args()
    if (lack := missing()) is not None:
        sys.exit(lack)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with running(folder.resolve(), port=options.port, heap=options.heap) as (address, _):
            print(address, flush=True)
            signal.pause()


if __name__ == "__main__":
    main()
