"""Protobuf payloads become columns: parsed one by one, then read field by field."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import accumulate, chain
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc_tools
import pyarrow as pa
from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from penstock.errors import InvalidRequest
from penstock.text import cut

_PATIENCE = 60.0
"""Seconds that the compiler may take."""
_TIMESTAMP = "google.protobuf.Timestamp"
_KINDS: Mapping[int, pa.DataType] = {
    FieldDescriptor.TYPE_DOUBLE: pa.float64(), FieldDescriptor.TYPE_FLOAT: pa.float32(),
    FieldDescriptor.TYPE_BOOL: pa.bool_(), FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(), FieldDescriptor.TYPE_ENUM: pa.string(),
    **dict.fromkeys(
        (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SFIXED32), pa.int32()
    ),
    **dict.fromkeys(
        (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64, FieldDescriptor.TYPE_SFIXED64,
         FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32), pa.int64()
    ),
    **dict.fromkeys((FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64), pa.decimal128(20, 0)),
}  # fmt: skip


class ProtobufSchema:
    """A schema with which payloads were written: a file's one top-level message."""

    def __init__(self, definition: str) -> None:
        assert grpc_tools is not None  # whose compiler is called below
        files = descriptor_pb2.FileDescriptorSet.FromString(_compiled(definition)).file
        pool = DescriptorPool()
        for file in files:
            pool.Add(file)
        names = [message.name for message in files[-1].message_type]
        if len(names) != 1:
            raise InvalidRequest(
                f"the protobuf schema has {len(names)} top-level messages: expected one, with others nested in it"
            )
        package = files[-1].package
        message = pool.FindMessageTypeByName(f"{package}.{names[0]}" if package else names[0])
        self._message: Any = message_factory.GetMessageClass(message)
        self.unreadable: dict[str, str] = {}
        """The columns that have values of a type for which Arrow has none, and why."""
        self._fields = [_Field(each, self.unreadable, each.name, (message.full_name,)) for each in message.fields]
        self.schema = pa.schema([pa.field(each.name, each.kind) for each in self._fields])

    def read(
        self, payloads: pa.Array, names: Collection[str], *, as_json: bool = False
    ) -> tuple[dict[str, pa.Array], list[str | None]]:
        """Return columns of payloads, none of which is null, and each row's error."""
        values = payloads.to_pylist()
        errors: list[str | None] = [None] * len(values)
        parse = self._of_json if as_json else self._message.FromString
        try:
            messages = list(map(parse, values))
        except (DecodeError, json_format.ParseError, UnicodeDecodeError):
            messages = [self._parsed(parse, value, row, errors) for row, value in enumerate(values)]
        columns = {field.name: field.column(messages) for field in self._fields if field.name in names}
        if any(errors):
            failed = pa.array([error is not None for error in errors])
            columns = {
                name: pa.array([None] * len(values), array.type) if all(errors) else _nulled(array, failed)
                for name, array in columns.items()
            }
        return columns, errors

    def _of_json(self, payload: bytes) -> Any:
        return json_format.Parse(payload.decode(), self._message(), ignore_unknown_fields=True)

    def _parsed(self, parse: Callable[[bytes], Any], payload: bytes, row: int, errors: list[str | None]) -> Any:
        try:
            return parse(payload)
        except (DecodeError, json_format.ParseError, UnicodeDecodeError) as error:
            errors[row] = f"it doesn't decode: {cut(str(error), 120)}"
            return self._message()

    def write(self, rows: Iterable[Mapping[str, Any]], *, as_json: bool = False) -> list[bytes]:
        """Return the payloads of rows, with values as `to_pylist` has them."""
        payloads: list[bytes] = []
        for row in rows:
            values = {
                each.name: each.to_python(row[each.name]) for each in self._fields if row.get(each.name) is not None
            }
            message = self._message(**values)
            if as_json:
                text = json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None)
                payloads.append(text.encode())
            else:
                payloads.append(message.SerializeToString())
        return payloads

    def may_lack(self, name: str) -> bool:
        """Whether a row that lacks a column can be written."""
        return not next(each for each in self._fields if each.name == name).is_required


def _nulled(array: pa.Array, failed: pa.Array) -> pa.Array:
    """Return an array with nulls where rows have failed."""
    places = pa.array([None if fails else row for row, fails in enumerate(failed.to_pylist())], pa.int64())
    return array.take(places)


class _Field:
    """A field of a message, and the column that it becomes."""

    def __init__(
        self, field: FieldDescriptor, unreadable: dict[str, str], column: str, within: tuple[str, ...]
    ) -> None:
        self.name = field.name
        self._field: Any = field
        self.is_required = self._field.is_required
        self._children: list[_Field] = []
        message: Descriptor | None = field.message_type
        self._is_map = message is not None and message.GetOptions().map_entry
        self._is_list = self._field.is_repeated and not self._is_map
        kind = _KINDS.get(field.type)
        if message is not None and message.full_name == _TIMESTAMP:
            kind = pa.timestamp("us", "UTC")
        elif message is not None and message.full_name in within:
            unreadable[column], kind = f"{message.full_name} is recursive", pa.null()
        elif message is not None:
            inner = (*within, message.full_name)
            self._children = [_Field(each, unreadable, column, inner) for each in message.fields]
            kind = pa.struct([pa.field(each.name, each.kind) for each in self._children])
        assert kind is not None
        self._value = kind
        if self._is_map:
            self.kind: pa.DataType = pa.map_(*(each.kind for each in self._children))
        else:
            self.kind = pa.list_(pa.field("element", kind)) if self._is_list else kind
        enum: Any = field.enum_type
        self._enum = {} if enum is None else {number: each.name for number, each in enum.values_by_number.items()}

    def column(self, messages: Sequence[Any]) -> pa.Array:
        """Return the field of all messages."""
        values = list(map(attrgetter(self.name), messages))
        if self._is_map:
            key, value = self._children
            offsets = pa.array(accumulate(map(len, values), initial=0), pa.int32())
            keys = key.values([each for entries in values for each in entries])
            items = value.values([entries[each] for entries in values for each in entries])
            return pa.MapArray.from_arrays(offsets, keys, items)
        if self._is_list:
            offsets = pa.array(accumulate(map(len, values), initial=0), pa.int32())
            return pa.ListArray.from_arrays(offsets, self.values(list(chain.from_iterable(values))), type=self.kind)
        array = self.values(values)
        if not self._field.has_presence:
            return array
        there = [message.HasField(self.name) for message in messages]
        return array if all(there) else _nulled(array, pa.array([not each for each in there]))

    def values(self, values: Sequence[Any]) -> pa.Array:
        """Return values of the field's type, none of which is missing."""
        if pa.types.is_null(self._value):
            return pa.nulls(len(values))
        if self._children and not self._is_map:
            children = [each.column(values) for each in self._children]
            if not children:
                return pa.array([{}] * len(values), self._value)
            return pa.StructArray.from_arrays(children, fields=list(self._value))
        if pa.types.is_timestamp(self._value):
            return pa.array([each.seconds * 1_000_000 + each.nanos // 1_000 for each in values], self._value)
        if self._enum:
            return pa.array([self._enum.get(each) or str(each) for each in values], pa.string())
        if pa.types.is_decimal(self._value):
            return pa.array(list(map(Decimal, values)), self._value)
        return pa.array(values, self._value)

    def to_python(self, value: Any) -> Any:
        """Return what a message's constructor takes for a value of `to_pylist`'s."""
        if self._is_map:
            return {each: self._children[1].to_python(item) for each, item in value}
        return [self._one(each) for each in value] if self._is_list else self._one(value)

    def _one(self, value: Any) -> Any:
        if pa.types.is_timestamp(self._value):
            micros = pa.scalar(value, self._value).value
            return {"seconds": micros // 1_000_000, "nanos": micros % 1_000_000 * 1_000}
        if self._children:
            return {
                each.name: each.to_python(value[each.name]) for each in self._children if value[each.name] is not None
            }
        return int(value) if isinstance(value, Decimal) else value


def _compiled(definition: str) -> bytes:
    """Return the descriptors of a file's text. The compiler has a process of its own, whose errors can be read."""
    with TemporaryDirectory(prefix="penstock-protoc-") as folder:
        Path(folder, "schema.proto").write_text(definition, "utf-8")
        command = [
            sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", "--include_imports",
            f"--descriptor_set_out={folder}/set", "schema.proto",
        ]  # fmt: skip
        ran = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False)  # noqa: S603
        if ran.returncode:
            raise InvalidRequest(f"the schema is no protobuf schema: {_errors(ran.stderr)}")
        return Path(folder, "set").read_bytes()


def _errors(said: bytes) -> str:
    """Return the compiler's errors, without what it says besides."""
    lines = said.decode(errors="replace").splitlines()
    errors = re.findall(r"(?:^|/)(schema\.proto:[0-9].*)", "\n".join(lines), re.MULTILINE)
    return cut("; ".join(errors or lines), 300)
