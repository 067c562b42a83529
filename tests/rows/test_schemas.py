"""Schemas cross the wire and come back the same; a dataset's schema grows by rule and by nothing else."""

from __future__ import annotations

import base64
import contextlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest, SchemaMismatch
from penstock.rows import schemas
from tests.kit import shapes

HELD = pa.schema([pa.field("id", pa.int64(), nullable=False), ("fare", pa.float64()), ("tags", pa.list_(pa.string()))])


# --- on the wire ---------------------------------------------------------------------------


def in_a_stream(schema: pa.Schema) -> pa.Schema:
    """Return the schema as a put's stream has it: Arrow drops the names within maps."""
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, schema).close()
    return pa.ipc.open_stream(sink.getvalue()).schema


EXACT = {
    "metadata": HELD.with_metadata({"pandas": "{}"}),
    "a column's metadata": pa.schema([pa.field("x", pa.int8(), nullable=False, metadata={"unit": "m"})]),
    "odd names": pa.schema([("x", pa.struct([pa.field("of <a, b>: c", pa.int8(), nullable=False)]))]),
    "a union": pa.schema([("x", pa.dense_union([pa.field("a", pa.int8()), pa.field("b", pa.string())]))]),
    "runs": pa.schema([("x", pa.run_end_encoded(pa.int32(), pa.int8()))]),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_schema_comes_back_exactly(name: str) -> None:
    assert schemas.decode(schemas.encode(EXACT[name])).equals(EXACT[name], check_metadata=True)


@given(shapes.schemas())
def test_a_schema_comes_back_as_from_a_stream(schema: pa.Schema) -> None:
    assert schemas.decode(schemas.encode(schema)).equals(in_a_stream(schema), check_metadata=True)


@given(st.text(max_size=60))
def test_text_that_is_no_schema_is_rejected_briefly(text: str) -> None:
    with pytest.raises(InvalidRequest, match="expected an Arrow schema's IPC message in base64") as rejected:
        schemas.decode(text)
    assert len(str(rejected.value)) < 400


@given(shapes.schemas(), st.data())
def test_a_damaged_schema_is_a_schema_or_rejected(schema: pa.Schema, data: st.DataObject) -> None:
    raw = bytearray(schema.serialize().to_pybytes())
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidRequest):
        damaged = schemas.decode(base64.b64encode(raw).decode())
        schemas.check_names(damaged)
        schemas.to_json(damaged)


def test_people_are_told_name_type_and_nullable() -> None:
    assert schemas.to_json(HELD) == (
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "fare", "type": "double", "nullable": True},
        {"name": "tags", "type": "list<item: string>", "nullable": True},
    )


# --- names ---------------------------------------------------------------------------------


def test_a_name_that_two_columns_have_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="the column 'b' is there more than once"):
        schemas.check_names(pa.schema([("a", pa.int8()), ("b", pa.int8()), ("b", pa.int64())]))
    schemas.check_names(pa.schema([("a", pa.int8()), ("A", pa.int8())]))
    schemas.check_names(pa.schema([]))


def test_a_name_that_is_no_text_is_rejected() -> None:
    raw = pa.schema([("column", pa.int8())]).serialize().to_pybytes().replace(b"column", b"\xff" * 6)
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        schemas.check_names(schemas.decode(base64.b64encode(raw).decode()))


# --- what may be added to a dataset --------------------------------------------------------


def test_the_same_schema_changes_nothing_with_any_metadata() -> None:
    assert schemas.merge(HELD, HELD, "store/a") is HELD
    assert schemas.merge(HELD, HELD.with_metadata({"pandas": "…"}), "store/a").equals(HELD, check_metadata=True)


def test_nullable_columns_may_be_added_at_the_end() -> None:
    more = HELD.append(pa.field("tip", pa.float64())).append(pa.field("note", pa.string()))
    assert schemas.merge(HELD, more, "store/a") == more


def test_a_column_may_become_nullable_and_stays_so() -> None:
    loose = HELD.set(0, pa.field("id", pa.int64()))
    assert schemas.merge(HELD, loose, "store/a") == loose
    assert schemas.merge(loose, HELD, "store/a") == loose


def test_the_datasets_own_metadata_stays() -> None:
    own = HELD.with_metadata({"owner": "me"})
    merged = schemas.merge(own, HELD.append(pa.field("tip", pa.float64())).with_metadata({"owner": "you"}), "store/a")
    assert merged.metadata == {b"owner": b"me"}


REFUSED = {
    "lacks fare double": HELD.remove(1),
    "fare is double, got float": HELD.set(1, pa.field("fare", pa.float32())),
    r"tags is list<item: string>, got list<item: string not null>": HELD.set(
        2, pa.field("tags", pa.list_(pa.field("item", pa.string(), nullable=False)))
    ),
    r"adds tip double not null \(an added column must be nullable\)": HELD.append(
        pa.field("tip", pa.float64(), nullable=False)
    ),
    "its columns have the order id, fare, tags, got fare, id, tags": pa.schema([HELD.field(at) for at in (1, 0, 2)]),
    "its columns have the order id, fare, tags, got id, tip, fare, tags": HELD.insert(1, pa.field("tip", pa.float64())),
    "lacks Fare|lacks fare": HELD.set(1, pa.field("Fare", pa.float64())),
}


@pytest.mark.parametrize("difference", REFUSED)
def test_another_schema_is_refused_with_the_difference(difference: str) -> None:
    with pytest.raises(SchemaMismatch, match=difference) as refused:
        schemas.merge(HELD, REFUSED[difference], "store/demo/trips")
    assert str(refused.value).startswith("store/demo/trips has another schema: ")
    assert "mode 'overwrite'" in str(refused.value)


def test_every_difference_is_named_at_once() -> None:
    new = pa.schema([("id", pa.string()), ("tags", pa.list_(pa.string())), pa.field("tip", pa.int8(), nullable=False)])
    with pytest.raises(SchemaMismatch, match=r"lacks fare double; id is int64, got string; adds tip int8 not null"):
        schemas.merge(HELD, new, "store/a")


@given(shapes.schemas(), shapes.schemas())
def test_a_merge_has_every_column_of_both_or_is_refused(own: pa.Schema, new: pa.Schema) -> None:
    try:
        merged = schemas.merge(own, new, "store/a")
    except SchemaMismatch:
        return
    for schema in (own, new):
        for field in schema:
            assert merged.field(field.name).type == field.type
            assert merged.field(field.name).nullable or not field.nullable
    assert merged.names[: len(own)] == own.names
    assert merged.names == new.names
