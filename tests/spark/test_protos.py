"""The messages of Spark Connect: those of the newest pyspark, with it in the process and without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from penstock.spark import protos

ROOT = Path(__file__).parents[2]


def test_classes_are_made_by_name() -> None:
    relation = protos.Relation(sql=protos.SQL(query="select 1"))
    assert protos.Relation.FromString(relation.SerializeToString()).sql.query == "select 1"
    assert protos.Join.JOIN_TYPE_INNER == 1
    with pytest.raises(AttributeError, match=rf"Spark Connect {protos.SPARK} has no message spark.connect.Relatoin"):
        _ = protos.Relatoin


def test_the_messages_are_those_of_the_newest_pyspark() -> None:
    """`python scripts/connect_protos.py` writes them again."""
    pytest.importorskip("pyspark", minversion=protos.SPARK)
    from scripts.connect_protos import descriptors

    (written,) = (ROOT / "penstock/spark").glob("connect-*.binpb")
    assert written.name == f"connect-{protos.SPARK}.binpb"
    assert descriptor_pb2.FileDescriptorSet.FromString(written.read_bytes()) == (
        descriptor_pb2.FileDescriptorSet.FromString(descriptors())
    )


@pytest.mark.process
@pytest.mark.parametrize("first", ["pyspark.sql.connect.proto", "penstock.spark.protos"])
def test_pyspark_may_be_in_the_same_process(first: str) -> None:
    """Both have files of the same names; those of ours are another release's here."""
    pytest.importorskip("pyspark.sql.connect.proto")
    code = f"""
import importlib
importlib.import_module({first!r})
import pyspark.sql.connect.proto as theirs
from penstock.spark import protos
sent = theirs.Relation(sql=theirs.SQL(query="select 1")).SerializeToString()
assert protos.Relation.FromString(sent).sql.query == "select 1"
assert protos.Relation.DESCRIPTOR.file.pool is not theirs.Relation.DESCRIPTOR.file.pool
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, check=True, timeout=60)
