"""Run Tansu, a broker of Kafka's protocol without transactions: `python scripts/tansu_broker.py [--build] [--port P]`.

`--build` makes it with cargo first, once, into the user's cache: half an hour of one core. It keeps all in memory.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/ is a folder, not an installed package

from scripts import child
from scripts.kafka_broker import HELLO, cache

VERSION = "0.6.0"
_FEATURES = "dynostore,libsql"
_QUICK = {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1"}
"""A tenth of the time that its own profile takes."""
_PATIENCE = 30.0  # seconds until it answers, on a busy machine


def program() -> Path:
    """Return the program: the one that PENSTOCK_TANSU names, else the one in the cache."""
    return Path(os.environ.get("PENSTOCK_TANSU") or cache() / f"tansu-{VERSION}" / "bin" / "tansu")


def missing() -> str | None:
    """Return what Tansu lacks here, and the cure."""
    if program().is_file():
        return None
    return "Tansu isn't built: make test-tansu builds it by cargo, or name it: PENSTOCK_TANSU=/path/to/tansu"


def build() -> None:
    """Build it, one process at a time, unless it is there."""
    root = program().parents[1]
    root.parent.mkdir(parents=True, exist_ok=True)
    with open(root.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if missing() is None:
            return
        if os.environ.get("PENSTOCK_TANSU") or shutil.which("cargo") is None:
            sys.exit(missing() if os.environ.get("PENSTOCK_TANSU") else "no cargo builds Tansu here: see rustup.rs")
        target = root.with_suffix(".target")
        options = ["--locked", "--version", VERSION, "--no-default-features", "--features", _FEATURES]
        environment = {**os.environ, **_QUICK, "CARGO_TARGET_DIR": str(target)}
        command = ["nice", "-n", "19", "cargo", "install", "tansu", *options, "--root", str(root)]
        subprocess.run(command, env=environment, check=True)
        shutil.rmtree(target)


@contextmanager
def running(folder: Path, *, port: int = 0) -> Iterator[tuple[str, int]]:
    """Run the broker on a port, by default any; yields host:port and its process's id once it answers."""
    if (lack := missing()) is not None:
        raise FileNotFoundError(lack)
    port = port or child.free_port()
    listen = f"tcp://127.0.0.1:{port}"
    command = [str(program()), "broker", "--kafka-cluster-id", "penstock", "--storage-engine", "memory://tansu/"]
    command += ["--kafka-listener-url", listen, "--kafka-advertised-listener-url", listen]
    with (
        (folder / "tansu.log").open("a+") as log,
        child.running("Tansu", command, port, hello=HELLO, log=log, patience=_PATIENCE) as pid,
    ):
        yield f"127.0.0.1:{port}", pid


def main() -> None:
    """Build it if that is asked for; run it until a signal, or until the process that started this one has ended."""
    parser = argparse.ArgumentParser(description="Run Tansu, and print host:port once it answers.")
    parser.add_argument("--port", type=int, default=0, help="default: any")
    parser.add_argument("--build", action="store_true", help="build it first, and don't run it")
    options = parser.parse_args()
    if options.build:
        build()
        return
    if (lack := missing()) is not None:
        sys.exit(lack)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), port=options.port) as (address, _):
        print(address, flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
