"""Schemas cross the wire unchanged; the schema of a dataset grows by fixed rules."""

from __future__ import annotations

import base64
import contextlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest, SchemaMismatch
from penstock.rows import schemas
from tests.kit import rows

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("fare", pa.float64()), ("tags", pa.list_(pa.string()))]
)


# --- on the wire ---------------------------------------------------------------------------


def schema_of_stream(schema: pa.Schema) -> pa.Schema:
    """Return the schema as the stream of a put has it: Arrow drops the names within maps."""
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, schema).close()
    return pa.ipc.open_stream(sink.getvalue()).schema


EXACT = {
    "metadata": SCHEMA.with_metadata({"pandas": "{}"}),
    "a column's metadata": pa.schema([pa.field("x", pa.int8(), nullable=False, metadata={"unit": "m"})]),
    "odd names": pa.schema([("x", pa.struct([pa.field("of <a, b>: c", pa.int8(), nullable=False)]))]),
    "a union": pa.schema([("x", pa.dense_union([pa.field("a", pa.int8()), pa.field("b", pa.string())]))]),
    "runs": pa.schema([("x", pa.run_end_encoded(pa.int32(), pa.int8()))]),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_schema_comes_back_exactly(name: str) -> None:
    assert schemas.decode(schemas.encode(EXACT[name])).equals(EXACT[name], check_metadata=True)


@given(rows.schemas())
def test_a_schema_comes_back_as_from_a_stream(schema: pa.Schema) -> None:
    assert schemas.decode(schemas.encode(schema)).equals(schema_of_stream(schema), check_metadata=True)


@given(st.text(max_size=60))
def test_text_that_is_no_schema_is_refused_briefly(text: str) -> None:
    with pytest.raises(InvalidRequest, match="expected an Arrow schema's IPC message in base64") as refused:
        schemas.decode(text)
    assert len(str(refused.value)) < 400


@given(rows.schemas(), st.data())
def test_a_damaged_schema_is_a_schema_or_refused(schema: pa.Schema, data: st.DataObject) -> None:
    raw = bytearray(schema.serialize().to_pybytes())
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidRequest):
        damaged = schemas.decode(base64.b64encode(raw).decode())
        schemas.check_names(damaged)
        schemas.to_json(damaged)


def test_json_for_people_has_name_type_and_nullable() -> None:
    assert schemas.to_json(SCHEMA) == (
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "fare", "type": "double", "nullable": True},
        {"name": "tags", "type": "list<item: string>", "nullable": True},
    )


# --- names ---------------------------------------------------------------------------------


def test_a_repeated_column_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidRequest, match="the column 'b' is there more than once"):
        schemas.check_names(pa.schema([("a", pa.int8()), ("b", pa.int8()), ("b", pa.int64())]))
    schemas.check_names(pa.schema([("a", pa.int8()), ("A", pa.int8())]))
    schemas.check_names(pa.schema([]))


def test_a_name_that_is_not_utf_8_is_refused() -> None:
    raw = pa.schema([("column", pa.int8())]).serialize().to_pybytes().replace(b"column", b"\xff" * 6)
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        schemas.check_names(schemas.decode(base64.b64encode(raw).decode()))


# --- schemas of a dataset and of an append -------------------------------------------------


def test_the_same_schema_with_other_metadata_changes_nothing() -> None:
    assert schemas.merge(SCHEMA, SCHEMA, "store/a") is SCHEMA
    assert schemas.merge(SCHEMA, SCHEMA.with_metadata({"pandas": "…"}), "store/a").equals(SCHEMA, check_metadata=True)


def test_nullable_columns_may_be_added_at_the_end() -> None:
    more = SCHEMA.append(pa.field("tip", pa.float64())).append(pa.field("note", pa.string()))
    assert schemas.merge(SCHEMA, more, "store/a") == more


def test_a_required_column_may_become_nullable() -> None:
    """It stays so when a later schema requires it."""
    loose = SCHEMA.set(0, pa.field("id", pa.int64()))
    assert schemas.merge(SCHEMA, loose, "store/a") == loose
    assert schemas.merge(loose, SCHEMA, "store/a") == loose


def test_the_datasets_own_metadata_stays() -> None:
    new = SCHEMA.append(pa.field("tip", pa.float64())).with_metadata({"owner": "you"})
    merged = schemas.merge(SCHEMA.with_metadata({"owner": "me"}), new, "store/a")
    assert merged.metadata == {b"owner": b"me"}


REFUSED = {
    "lacks fare double": SCHEMA.remove(1),
    "fare is double, got float": SCHEMA.set(1, pa.field("fare", pa.float32())),
    r"tags is list<item: string>, got list<item: string not null>": SCHEMA.set(
        2, pa.field("tags", pa.list_(pa.field("item", pa.string(), nullable=False)))
    ),
    r"adds tip double not null \(an added column must be nullable\)": SCHEMA.append(
        pa.field("tip", pa.float64(), nullable=False)
    ),
    "its columns have the order id, fare, tags, got fare, id, tags": pa.schema([SCHEMA.field(at) for at in (1, 0, 2)]),
    "its columns have the order id, fare, tags, got id, tip, fare, tags": SCHEMA.insert(
        1, pa.field("tip", pa.float64())
    ),
    "lacks Fare|lacks fare": SCHEMA.set(1, pa.field("Fare", pa.float64())),
}


@pytest.mark.parametrize("difference", REFUSED)
def test_another_schema_is_refused_with_the_difference(difference: str) -> None:
    with pytest.raises(SchemaMismatch, match=difference) as refused:
        schemas.merge(SCHEMA, REFUSED[difference], "store/demo/trips")
    assert str(refused.value).startswith("store/demo/trips has another schema: ")
    assert "mode 'overwrite'" in str(refused.value)


def test_every_difference_is_named_at_once() -> None:
    new = pa.schema([("id", pa.string()), ("tags", pa.list_(pa.string())), pa.field("tip", pa.int8(), nullable=False)])
    with pytest.raises(SchemaMismatch, match=r"lacks fare double; id is int64, got string; adds tip int8 not null"):
        schemas.merge(SCHEMA, new, "store/a")


@given(rows.schemas(), rows.schemas())
def test_a_merge_has_every_column_of_both_or_is_refused(existing: pa.Schema, new: pa.Schema) -> None:
    try:
        merged = schemas.merge(existing, new, "store/a")
    except SchemaMismatch:
        return
    for schema in (existing, new):
        for field in schema:
            assert merged.field(field.name).type == field.type
            assert merged.field(field.name).nullable or not field.nullable
    assert merged.names[: len(existing)] == existing.names
    assert merged.names == new.names
