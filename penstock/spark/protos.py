"""The messages of Spark Connect: `protos.Relation`, `protos.Plan`, … are classes, made when they are first used.

Their descriptors stand in a pool of their own: pyspark in the same process has files of the same names, which need not
be the same. `scripts/connect_protos.py` writes the file; it is the Apache Software Foundation's work, see NOTICE.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2
except ModuleNotFoundError as missing:
    raise ImportError("Spark Connect needs protobuf: pip install 'penstock-flight[connect]'") from missing

SPARK = "4.3.0"
"""The release whose messages these are."""


def _read_pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for module in (any_pb2, duration_pb2, timestamp_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    files = descriptor_pb2.FileDescriptorSet.FromString(Path(__file__).with_name(f"connect-{SPARK}.binpb").read_bytes())
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _read_pool()


def __getattr__(name: str) -> Any:
    """Return the class of the message spark.connect.`name`."""
    if name.startswith("_"):
        raise AttributeError(name)
    globals()[name] = cls = message(f"spark.connect.{name}")
    return cls


def message(full_name: str) -> Any:
    """Return the class of a message by its full name; Google's errors are google.rpc.Status, .ErrorInfo, .RetryInfo."""
    try:
        return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(full_name))
    except KeyError:
        raise AttributeError(f"Spark Connect {SPARK} has no message {full_name}") from None
