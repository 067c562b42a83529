"""Run Google's Pub/Sub emulator: `python scripts/emulator.py [--port P] [--heap 6g]` prints host:port once it answers.

It ends with the process that started it. It holds everything in memory: a restart forgets topics, messages and ids.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/ is a folder, not an installed package

from scripts import child, java

JAVA = 11
"""The oldest that runs the emulator."""
DEBIAN = Path("/usr/lib/google-cloud-sdk/platform/pubsub-emulator/lib")
_PATIENCE = 60.0  # seconds until it answers, on a busy machine
_LARGEST_HEAP = 6144  # MiB; with more, nothing got faster
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""HTTP/2's first bytes from a client, with empty settings: a server that serves sends its own settings back."""


def missing() -> str | None:
    """Return what the emulator lacks here, and the cure."""
    if find_jar() is None:
        named = os.environ.get("PUBSUB_EMULATOR_JAR")
        wrong = f"PUBSUB_EMULATOR_JAR names {named}, which is no file" if named else "the Pub/Sub emulator isn't here"
        return (
            f"{wrong}: apt install google-cloud-cli-pubsub-emulator (from Google's Debian packages), or "
            "gcloud components install pubsub-emulator, or name its jar: PUBSUB_EMULATOR_JAR=/path/to/the.jar"
        )
    return java.missing("the Pub/Sub emulator", JAVA)


def find_jar() -> Path | None:
    """Return the emulator's jar: the one that PUBSUB_EMULATOR_JAR names, else gcloud's, else the Debian package's."""
    if named := os.environ.get("PUBSUB_EMULATOR_JAR"):
        return Path(named) if Path(named).is_file() else None
    folders = [DEBIAN]
    if gcloud := shutil.which("gcloud"):
        folders.insert(0, Path(gcloud).resolve().parents[1] / "platform" / "pubsub-emulator" / "lib")
    jars = [jar for folder in folders for jar in sorted(folder.glob("cloud-pubsub-emulator-*-all.jar"))]
    return jars[0] if jars else None


def default_heap() -> str:
    """Return a quarter of the machine's memory, at most 6 GiB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return f"{min(_LARGEST_HEAP, memory // 4)}m"


def command(port: int, heap: str) -> list[str]:
    """Return what starts the emulator.

    Its default, G1 on two cores, collapses with many outstanding messages: 2 k messages/s where these options do 17 k.
    Without --host it listens on [::1] alone.
    """
    jar = find_jar()
    assert jar is not None, missing()
    size = _mebibytes(heap)
    options = [f"-Xms{size}m", f"-Xmx{size}m", f"-Xmn{size * 2 // 3}m", "-XX:+UseParallelGC"]
    return [java.program(), *options, "-jar", str(jar), "--host=127.0.0.1", f"--port={port}"]


@contextmanager
def running(*, port: int = 0, heap: str = "") -> Iterator[tuple[str, int]]:
    """Run the emulator on a port, by default any; yields host:port and its process's id once it answers."""
    if (lack := missing()) is not None:
        raise FileNotFoundError(lack)
    port = port or child.free_port()
    with (
        tempfile.TemporaryFile("w+") as log,
        child.running(
            "the Pub/Sub emulator", command(port, heap or default_heap()), port, hello=_PREFACE, log=log,
            patience=_PATIENCE,
        ) as pid,
    ):  # fmt: skip
        yield f"127.0.0.1:{port}", pid


def main() -> None:
    """Run the emulator until a signal, or until the process that started this one has ended."""
    parser = argparse.ArgumentParser(description="Run Google's Pub/Sub emulator, and print host:port once it answers.")
    parser.add_argument("--port", type=int, default=0, help="default: any")
    parser.add_argument("--heap", default="", help=f"of its JVM, such as 6g; here by default {default_heap()}")
    options = parser.parse_args()
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        with running(port=options.port, heap=options.heap) as (address, pid):
            print(address, flush=True)
            while os.getppid() == parent and child.is_alive(pid):
                time.sleep(0.2)
    except KeyboardInterrupt:
        pass
    except (FileNotFoundError, RuntimeError, ValueError) as failed:
        sys.exit(str(failed))


def _mebibytes(heap: str) -> int:
    match = re.fullmatch(r"(\d+)([mMgG])", heap)
    if match is None:
        raise ValueError(f"heap {heap!r} is not a size: write it as 6g or 512m")
    return int(match[1]) * (1024 if match[2] in "gG" else 1)


if __name__ == "__main__":
    main()
