"""The attributes of Pub/Sub's messages as columns; above all, the revision of a schema that each message names."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ATTRIBUTES = pa.map_(pa.string(), pa.string())
_NAME, _REVISION, _ENCODING = "googclient_schemaname", "googclient_schemarevisionid", "googclient_schemaencoding"
"""The attributes that Pub/Sub gives a message whose topic has a schema."""


def attribute_of(attributes: pa.Array, name: str) -> pa.Array:
    """Return an attribute of each message, null where it has none."""
    offsets = np.asarray(attributes.offsets)
    first, end = int(offsets[0]), int(offsets[-1])
    places = np.flatnonzero(np.asarray(pc.equal(attributes.keys.slice(first, end - first), name).cast(pa.uint8())))
    rows = np.searchsorted(offsets - first, places, side="right") - 1
    place_of_row = np.full(len(attributes), -1, np.int64)
    place_of_row[rows] = places
    return attributes.items.slice(first, end - first).take(pa.array(place_of_row, mask=place_of_row < 0))


def revisions_of(attributes: pa.Array) -> pa.Array:
    """Return for each message the revision of its schema, projects/p/schemas/s@revision; null where it names none."""
    return pc.binary_join_element_wise(attribute_of(attributes, _NAME), attribute_of(attributes, _REVISION), "@")


def json_of(attributes: pa.Array) -> pa.Array:
    """Return for each message whether its payload is the JSON of its schema, in place of bytes."""
    return pc.fill_null(pc.equal(attribute_of(attributes, _ENCODING), "JSON"), False)


def named_revisions(attributes: pa.Array) -> list[str]:
    """Return the revisions that messages name, each once."""
    if pc.index(attributes.keys, _REVISION).as_py() < 0:
        return []
    return [str(each) for each in pc.unique(revisions_of(attributes)).to_pylist() if each is not None]
