"""Write the messages of Spark Connect, as the installed pyspark has them: `python scripts/connect_protos.py`.

penstock/spark/connect-<version>.binpb is a serialized FileDescriptorSet: Spark's files, and Google's two of errors.
The files' dependencies of protobuf itself (any, duration, timestamp) come with its runtime.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pyspark
from google.protobuf import descriptor_pb2
from google.rpc import error_details_pb2, status_pb2

ROOM = Path(__file__).parents[1] / "penstock" / "spark"
NAMES = (  # each after the ones that it needs
    "types", "common", "expressions", "catalog", "ml_common", "relations", "ml", "pipelines", "commands", "base",
)  # fmt: skip


def descriptors() -> bytes:
    """Return the descriptor set; the same bytes for the same pyspark."""
    modules = [importlib.import_module(f"pyspark.sql.connect.proto.{name}_pb2") for name in NAMES]
    result = descriptor_pb2.FileDescriptorSet()
    for module in (status_pb2, error_details_pb2, *modules):
        result.file.add().ParseFromString(module.DESCRIPTOR.serialized_pb)
    serialized: bytes = result.SerializeToString(deterministic=True)
    return serialized


def main() -> None:
    """Write the set, remove its older one, and note the version in protos.py."""
    for old in ROOM.glob("connect-*.binpb"):
        old.unlink()
    (ROOM / f"connect-{pyspark.__version__}.binpb").write_bytes(descriptors())
    module = ROOM / "protos.py"
    text, changed = re.subn(r'(?m)^SPARK = ".*"$', f'SPARK = "{pyspark.__version__}"', module.read_text())
    assert changed == 1
    module.write_text(text)


if __name__ == "__main__":
    main()
