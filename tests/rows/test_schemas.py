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
from penstock.rows.schemas import DATASET, TOPIC
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


# --- in which schema rows are stored ---------------------------------------------------------


def test_the_same_schema_with_other_metadata_changes_nothing() -> None:
    told = SCHEMA.with_metadata({"pandas": "…"})
    assert DATASET.fit(SCHEMA, told, "store/a").equals(SCHEMA, check_metadata=True)
    assert DATASET.merge(SCHEMA, told, "store/a") is SCHEMA
    assert DATASET.fit(None, told, "store/a").equals(told, check_metadata=True)


VIEWS: list[tuple[pa.DataType, pa.DataType]] = [
    (pa.string_view(), pa.string()),
    (pa.binary_view(), pa.binary()),
    (pa.list_view(pa.string_view()), pa.list_(pa.string())),
    (pa.large_list_view(pa.int8()), pa.large_list(pa.int8())),
    (pa.list_(pa.string_view()), pa.list_(pa.string())),
    (pa.struct({"a": pa.struct({"b": pa.string_view()})}), pa.struct({"a": pa.struct({"b": pa.string()})})),
    (pa.map_(pa.string_view(), pa.binary_view()), pa.map_(pa.string(), pa.binary())),
    (pa.dictionary(pa.int8(), pa.string_view()), pa.dictionary(pa.int8(), pa.string())),
    (pa.large_string(), pa.large_string()),
]


@pytest.mark.parametrize(("sent", "stored"), VIEWS, ids=str)
def test_nothing_is_stored_as_a_view(sent: pa.DataType, stored: pa.DataType) -> None:
    required = pa.schema([pa.field("x", sent, nullable=False, metadata={"unit": "m"})])
    assert DATASET.fit(None, required, "store/a").equals(required.set(0, required.field(0).with_type(stored)), True)
    added = DATASET.fit(SCHEMA, pa.schema([*SCHEMA, *required]), "store/a")
    assert added.field("x") == pa.field("x", stored)


ALIKE: list[tuple[pa.DataType, pa.DataType]] = [
    (pa.string(), pa.large_string()),
    (pa.string(), pa.string_view()),
    (pa.string(), pa.dictionary(pa.int32(), pa.string_view())),
    (pa.large_string(), pa.string()),
    (pa.dictionary(pa.int8(), pa.string()), pa.large_string()),
    (pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string())),
    (pa.binary(), pa.binary(3)),
    (pa.int64(), pa.int32()),
    (pa.int32(), pa.int64()),
    (pa.uint8(), pa.int64()),
    (pa.float64(), pa.float32()),
    (pa.float64(), pa.int32()),
    (pa.int64(), pa.float64()),
    (pa.decimal128(12, 2), pa.int64()),
    (pa.decimal128(12, 2), pa.decimal128(20, 4)),
    (pa.timestamp("us", "UTC"), pa.timestamp("ns", "Etc/UTC")),
    (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Oslo")),
    (pa.timestamp("us"), pa.timestamp("s")),
    (pa.date32(), pa.date64()),
    (pa.time64("us"), pa.time32("s")),
    (pa.duration("us"), pa.duration("ns")),
    (pa.int64(), pa.null()),
    (pa.list_(pa.string()), pa.large_list(pa.field("element", pa.string_view(), nullable=False))),
    (pa.list_(pa.int64()), pa.list_(pa.int64(), 2)),
    (pa.map_(pa.string(), pa.int64()), pa.map_(pa.large_string(), pa.int32())),
    (pa.struct({"a": pa.int64(), "b": pa.string()}), pa.struct({"b": pa.string_view(), "a": pa.int8()})),
    (pa.binary(16), pa.uuid()),
]


@pytest.mark.parametrize(("stored", "sent"), ALIKE, ids=str)
def test_what_means_the_same_is_stored_in_the_type_that_is_there(stored: pa.DataType, sent: pa.DataType) -> None:
    own = pa.schema([("x", stored)])
    assert DATASET.fit(own, pa.schema([("x", sent)]), "store/a") == own


UNLIKE: list[tuple[pa.DataType, pa.DataType]] = [
    (pa.string(), pa.int64()),
    (pa.int64(), pa.string()),
    (pa.string(), pa.binary()),
    (pa.int64(), pa.bool_()),
    (pa.float64(), pa.decimal128(12, 2)),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.timestamp("us", "UTC"), pa.timestamp("us")),
    (pa.timestamp("us"), pa.date32()),
    (pa.int64(), pa.timestamp("us")),
    (pa.list_(pa.string()), pa.string()),
    (pa.list_(pa.string()), pa.list_(pa.int64())),
    (pa.map_(pa.string(), pa.int64()), pa.list_(pa.int64())),
    (pa.struct([pa.field("a", pa.int64(), nullable=False)]), pa.struct({"b": pa.int64()})),
    (pa.uuid(), pa.binary(16)),
    (pa.run_end_encoded(pa.int32(), pa.int8()), pa.run_end_encoded(pa.int32(), pa.string())),
    (pa.dense_union([pa.field("a", pa.int8())]), pa.dense_union([pa.field("a", pa.string())])),
]


@pytest.mark.parametrize(("stored", "sent"), UNLIKE, ids=str)
def test_what_means_something_else_is_refused(stored: pa.DataType, sent: pa.DataType) -> None:
    with pytest.raises(
        SchemaMismatch, match=r"store/a has another schema: x is .*, got .*Cast the rows, or replace it"
    ):
        DATASET.fit(pa.schema([("x", stored)]), pa.schema([("x", sent)]), "store/a")


def test_columns_keep_their_order_and_new_ones_are_last() -> None:
    sent = pa.schema(
        [("tip", pa.float64()), ("tags", pa.list_(pa.string())), ("id", pa.int32()), ("fare", pa.float32())]
    )
    assert DATASET.fit(SCHEMA, sent, "store/a") == SCHEMA.append(pa.field("tip", pa.float64()))


def test_whether_a_column_may_be_null_is_the_datasets_own() -> None:
    """And an added one always may."""
    loose = pa.schema([pa.field(field.name, field.type) for field in SCHEMA])
    assert DATASET.fit(SCHEMA, loose, "store/a") == SCHEMA
    strict = pa.schema(
        [pa.field(field.name, field.type, nullable=False) for field in [*SCHEMA, pa.field("n", pa.int8())]]
    )
    assert DATASET.fit(loose, strict, "store/a") == loose.append(pa.field("n", pa.int8()))


def test_a_field_within_a_struct_may_be_added() -> None:
    own = pa.schema([("l", pa.list_(pa.struct({"a": pa.int64()})))])
    sent = pa.schema([("l", pa.list_(pa.struct([pa.field("b", pa.string_view(), nullable=False), ("a", pa.int32())])))])
    grown = pa.schema([("l", pa.list_(pa.struct({"a": pa.int64(), "b": pa.string()})))])
    assert DATASET.fit(own, sent, "store/a") == grown
    assert DATASET.merge(own, grown, "store/a") == grown
    assert DATASET.fit(grown, own, "store/a") == grown, "and rows may lack it"
    assert DATASET.merge(grown, own, "store/a") == grown


def test_rows_of_a_topic_may_lack_nullable_columns() -> None:
    sent = pa.schema([("fare", pa.float32()), ("id", pa.int64()), ("tip", pa.float64())])
    stored = TOPIC.fit(SCHEMA, sent, "topic/a")
    assert stored == pa.schema([SCHEMA.field("id"), SCHEMA.field("fare"), pa.field("tip", pa.float64())])
    assert TOPIC.merge(SCHEMA, stored, "topic/a") == SCHEMA.append(pa.field("tip", pa.float64()))
    with pytest.raises(SchemaMismatch, match=r"lacks id int64.*choose another topic"):
        TOPIC.fit(SCHEMA, SCHEMA.remove(0), "topic/a")


def test_every_difference_is_named_at_once() -> None:
    with pytest.raises(SchemaMismatch, match=r"id is int64, got string; lacks fare double; lacks Tags|lacks tags"):
        DATASET.fit(SCHEMA, pa.schema([("id", pa.string()), ("Tags", pa.list_(pa.string()))]), "store/a")


# --- what is stored together -----------------------------------------------------------------


def test_the_datasets_own_metadata_stays() -> None:
    new = SCHEMA.append(pa.field("tip", pa.float64())).with_metadata({"owner": "you"})
    merged = DATASET.merge(SCHEMA.with_metadata({"owner": "me"}), new, "store/a")
    assert merged.metadata == {b"owner": b"me"}


def test_a_column_that_is_never_null_stays_so() -> None:
    """Among the attempts of a new dataset it becomes nullable."""
    loose = SCHEMA.set(0, pa.field("id", pa.int64()))
    with pytest.raises(SchemaMismatch, match="id is int64 not null, got int64"):
        DATASET.merge(SCHEMA, loose, "store/a")
    assert DATASET.merge(SCHEMA, loose, "store/a", widens=True) == loose
    assert DATASET.merge(loose, SCHEMA, "store/a", widens=True) == loose


def test_parts_of_another_type_are_refused() -> None:
    """They are stored already."""
    with pytest.raises(SchemaMismatch, match="fare is double, got float"):
        DATASET.merge(SCHEMA, SCHEMA.set(1, pa.field("fare", pa.float32())), "store/a", widens=True)


@given(rows.schemas(), rows.schemas())
def test_what_fits_merges_to_every_column_of_both(existing: pa.Schema, new: pa.Schema) -> None:
    try:
        stored = DATASET.fit(existing, new, "store/a")
    except SchemaMismatch:
        return
    assert sorted(stored.names) == sorted(new.names)
    merged = DATASET.merge(existing, stored, "store/a")
    assert merged.names[: len(existing)] == existing.names
    assert {*merged.names} == {*existing.names, *new.names}
    for field in existing:
        assert merged.field(field.name).nullable == field.nullable
