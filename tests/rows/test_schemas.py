"""Schemas cross the wire as JSON and stay the same; the schema of a dataset grows by rules."""

from __future__ import annotations

import json
from typing import Any

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


def as_column(kind: Any) -> dict[str, Any]:
    return {"name": "x", "type": kind, "nullable": True}


# --- as JSON -------------------------------------------------------------------------------


@given(rows.schemas())
def test_a_schema_of_any_types_comes_back_from_json(schema: pa.Schema) -> None:
    decoded = json.loads(json.dumps(schemas.to_json(schema)))
    assert schemas.from_json(decoded) == schema


@given(rows.TYPES)
def test_every_type_is_known_by_the_name_that_arrow_prints(kind: pa.DataType) -> None:
    assert schemas.parse_type(str(kind)) == kind


def test_a_schema_in_json_is_a_list_of_name_type_and_nullable() -> None:
    assert schemas.to_json(SCHEMA) == (
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "fare", "type": "double", "nullable": True},
        {"name": "tags", "type": "list<item: string>", "nullable": True},
    )


def test_a_column_is_nullable_unless_it_says_otherwise() -> None:
    assert schemas.from_json([{"name": "x", "type": "int8"}]) == pa.schema([("x", pa.int8())])


def test_types_may_be_nested_as_deep_as_arrow_reads_them() -> None:
    deep = pa.int8()
    for _ in range(schemas.MAX_DEPTH):
        deep = pa.list_(deep)
    schema = pa.schema([("x", deep)])
    assert schemas.from_json(schemas.to_json(schema)) == schema
    with pa.ipc.new_stream(pa.BufferOutputStream(), schema) as writer:
        writer.write_batch(pa.record_batch([pa.nulls(1, deep)], schema=schema))
    with pytest.raises(InvalidRequest, match="nested more than 63 deep"):
        schemas.parse_type(str(pa.list_(deep)))


UNKNOWN = [
    "", " ", "int", "int128", "INT64", "int64 ", " int64", "int64\n", "varchar", "list", "list<>", "list<int64>",
    "list<item: >", "list<item: int64",
    "struct<a>", "struct<a: int64,>", "struct<a: int64", "struct<a: int64>>", "map<>", "map<string>",
    "map<string, int64, x>", "dictionary<>",
    "map<string, int64, keys_sorted, keys_sorted>", "dictionary<values=string, indices=float, ordered=0>",
    "decimal128(0, 2)", "decimal128(39, 2)",
    "dictionary<values=string, indices=string, ordered=0>", "dictionary<values=string, indices=int99, ordered=0>",
    "decimal512(10, 2)", "decimal128(10)",
    "decimal128(" + "9" * 5_000 + ", 2)", "decimal128(10, " + "9" * 5_000 + ")", "fixed_size_binary[-1]",
    "fixed_size_binary[" + "9" * 5_000 + "]",
    "fixed_size_list<item: int8>[-1]", "fixed_size_list<item: int8>", "list<item: int8>[3]", "timestamp[us, tz=]",
    "timestamp[h]", "time32[ns]",
    "dense_union<a: int8=0>", "run_end_encoded<run_ends: int32, values: int8>", "extension<arrow.json>", "<", ">",
    "[", "(", "a<b>[", "list<" * 10_000,
    "list<item: " * 10_000 + "int8" + ">" * 10_000, "map<int8, x (' " * 1_000, "__import__('os')",
]  # fmt: skip


@pytest.mark.parametrize("text", UNKNOWN, ids=lambda text: ascii(text)[:40])
def test_an_unknown_type_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"unknown type|nested more than"):
        schemas.from_json([as_column(text)])


@given(st.text("intlsmapdecrufxkvo_<>[](),: =0123456789'", max_size=60))
def test_any_text_is_a_type_or_refused(text: str) -> None:
    assert_type_or_refused(text)


@given(rows.TYPES.map(str), st.data())
def test_a_damaged_type_is_a_type_or_refused(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.text("<>(), :[]ax0", max_size=3)) + text[at + data.draw(st.integers(0, 3)) :]
    assert_type_or_refused(changed)


def assert_type_or_refused(text: str) -> None:
    try:
        schema = schemas.from_json([as_column(text)])
    except InvalidRequest as refused:
        message = str(refused)
    else:
        assert schema.names == ["x"]
        return
    assert len(message) < 500


@pytest.mark.parametrize(
    "column",
    [
        {}, {"name": "x"}, {"name": "x", "nullable": True}, {"type": "int8"}, {"name": 1, "type": "int8"},
        as_column(None), as_column(["int8"]), as_column(7),
        {**as_column("int8"), "nullable": 1}, {**as_column("int8"), "nullable": None},
        {**as_column("int8"), "metadata": {}},
    ],
)  # fmt: skip
def test_a_malformed_column_is_refused(column: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="a column of a schema is "):
        schemas.from_json([column])


def test_a_null_that_is_not_nullable_is_refused() -> None:
    for kind in ("null", "list<item: null not null>", "struct<a: null not null>", "map<null, string>"):
        with pytest.raises(InvalidRequest, match="null type"):
            schemas.from_json([{"name": "x", "type": kind, "nullable": False}])


# --- names ---------------------------------------------------------------------------------


def test_a_repeated_column_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidRequest, match="the column 'b' is there more than once"):
        schemas.check_names(pa.schema([("a", pa.int8()), ("b", pa.int8()), ("b", pa.int64())]))
    schemas.check_names(pa.schema([("a", pa.int8()), ("A", pa.int8())]))
    schemas.check_names(pa.schema([]))


# --- schemas of a dataset and of an append --------------------------------------------------


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
    "its columns stand in the order id, fare, tags, got fare, id, tags": pa.schema(
        [SCHEMA.field(at) for at in (1, 0, 2)]
    ),
    "its columns stand in the order id, fare, tags, got id, tip, fare, tags": SCHEMA.insert(
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
