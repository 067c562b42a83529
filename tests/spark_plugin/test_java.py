"""Tests of Spark are skipped with the cure where it can't run, and that it can't is seen before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.spark import needs_spark

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install 'penstock-flight[spark]'")


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only Java there is; it has no program yet."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return program


@pytest.mark.parametrize(
    ("version", "reason"), [(None, "no "), ("1.8.0_402", "is 8"), ("11.0.2", "is 11"), ("16.0.1", "is 16")]
)
def test_a_java_before_17_is_told_as_none_at_all_is(java: Path, version: str | None, reason: str) -> None:
    if version:
        says(java, version)
    with pytest.raises(pytest.skip.Exception, match=f"needs Java 17 or newer, .*{reason}.*scripts/java.sh"):
        needs_spark()


@pytest.mark.parametrize("version", ["17", "17.0.10", "25-ea"])
def test_a_java_from_17_on_will_do(java: Path, version: str) -> None:
    says(java, version)
    needs_spark()


def says(java: Path, version: str) -> None:
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
    java.chmod(0o700)
