"""`scripts/emulator.py` runs Google's emulator for as long as its caller lives, or says what is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import emulator
from tests.kit.wait import eventually

SCRIPT = Path(emulator.__file__)
PARENT = f"""
import subprocess, sys
script = subprocess.Popen([sys.executable, {str(SCRIPT)!r}, "--heap", "256m"], stdout=subprocess.PIPE, text=True)
print(script.pid, script.stdout.readline(), end="", flush=True)
sys.stdin.read()
"""


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and ") Z " not in Path(f"/proc/{pid}/stat").read_text()


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("killed", ["parent", "script"])
def test_the_emulator_ends_with_the_one_that_started_it(killed: str) -> None:
    if (lack := emulator.missing()) is not None:
        pytest.skip(lack)
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        script, address = parent.stdout.readline().split()
        assert address.startswith("127.0.0.1:")
        [java] = children(int(script))
        os.kill({"parent": parent.pid, "script": int(script)}[killed], signal.SIGKILL)
        eventually(lambda: not is_running(java) and not is_running(int(script)))
        parent.kill()


def test_a_missing_jar_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_JAR", "/nowhere/emulator.jar")
    assert str(emulator.missing()).startswith("PUBSUB_EMULATOR_JAR names /nowhere/emulator.jar, which is no file: apt")
    with pytest.raises(FileNotFoundError, match="gcloud components install"), emulator.running():
        pass
    monkeypatch.delenv("PUBSUB_EMULATOR_JAR")
    monkeypatch.setattr(emulator, "DEBIAN", Path("/nowhere"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert str(emulator.missing()).startswith("the Pub/Sub emulator isn't here: apt install")


def test_the_jar_is_looked_for_in_three_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variable's, then that of gcloud's components, then the Debian package's."""
    sdk, debian, named = tmp_path / "sdk", tmp_path / "debian", tmp_path / "named.jar"
    components = sdk / "platform" / "pubsub-emulator" / "lib"
    for folder in (components, debian, sdk / "bin", tmp_path / "path"):
        folder.mkdir(parents=True)
    jars = [folder / "cloud-pubsub-emulator-0.8.20-all.jar" for folder in (components, debian)]
    for file in (named, *jars, sdk / "bin" / "gcloud"):
        file.touch(mode=0o755)
    (tmp_path / "path" / "gcloud").symlink_to(sdk / "bin" / "gcloud")
    monkeypatch.setattr(emulator, "DEBIAN", debian)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PUBSUB_EMULATOR_JAR", str(named))
    assert emulator.find_jar() == named
    monkeypatch.delenv("PUBSUB_EMULATOR_JAR")
    assert emulator.find_jar() == jars[0]
    jars[0].unlink()
    assert emulator.find_jar() == jars[1]


def test_missing_java_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jar = tmp_path / "emulator.jar"
    jar.touch()
    monkeypatch.setenv("PUBSUB_EMULATOR_JAR", str(jar))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert emulator.missing() == (
        "the Pub/Sub emulator needs Java 11 or newer, no /nowhere/bin/java: "
        "`sh scripts/java.sh` installs it, or says how"
    )


def test_the_heap_is_a_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jar = tmp_path / "emulator.jar"
    jar.touch()
    monkeypatch.setenv("PUBSUB_EMULATOR_JAR", str(jar))
    assert {"-Xms6144m", "-Xmx6144m", "-Xmn4096m", "--port=7"} <= set(emulator.command(7, "6g"))
    with pytest.raises(ValueError, match="heap '6' is not a size: write it as 6g or 512m"):
        emulator.command(7, "6")
    assert emulator.default_heap().endswith("m")
