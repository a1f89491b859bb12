"""Protobuf messages in the JSON of Triton's REST form: proto field names, 64-bit integers as numbers, enums by name, every scalar present.

Protobuf's own JSON writes 64-bit integers as strings, which stock clients do not expect there.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def plain_json(message: Message) -> dict[str, Any]:
    """The message as what ``orjson.dumps`` writes. Messages that are not set are left out; a set member of a oneof is written."""
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields if _is_written(message, field)}


def _is_written(message: Message, field: FieldDescriptor) -> bool:
    return not field.has_presence or message.HasField(field.name)


def _field(message: Message, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if not field.is_repeated:
        return _value(field, value)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value_field = field.message_type.fields_by_name["value"]
        return {str(key): _value(value_field, value[key]) for key in value}
    return [_value(field, item) for item in value]


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return plain_json(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value
    return value
