"""Orders of a shop in Protobuf and Avro, with every kind of field that we show in a special way."""

from __future__ import annotations

import io
import json
from functools import cache
from typing import Any, Final

import fastavro
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

_KNOWN: Final = (any_pb2, duration_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
_Field = descriptor_pb2.FieldDescriptorProto

CUSTOMER_SCHEMA: Final = {
    "type": "record",
    "name": "customer",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "email", "type": "string"},
        {"name": "country", "type": "string"},
    ],
}
ORDER_SCHEMA: Final = {
    "type": "record",
    "name": "shop.order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": CUSTOMER_SCHEMA},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


@cache
def descriptors() -> bytes:
    """Return what protoc makes of a shop.proto, with its imports."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(it.DESCRIPTOR.name for it in _KNOWN)
    state = file.enum_type.add(name="State")
    for number, name in enumerate(("NEW", "PAID")):
        state.value.add(name=name, number=number)
    customer = file.message_type.add(name="Customer")
    for name in ("name", "email", "country"):
        _add(customer, name, _Field.TYPE_STRING)
    item = file.message_type.add(name="Item")
    _add(item, "sku", _Field.TYPE_STRING)
    _add(item, "price", _Field.TYPE_FLOAT)
    order = file.message_type.add(name="Order")
    _add(order, "id", _Field.TYPE_INT64)
    _add(order, "customer", _Field.TYPE_MESSAGE, ".shop.Customer")
    _add(order, "items", _Field.TYPE_MESSAGE, ".shop.Item", many=True)
    _add(order, "state", _Field.TYPE_ENUM, ".shop.State")
    _add(order, "at", _Field.TYPE_MESSAGE, ".google.protobuf.Timestamp")
    _add(order, "took", _Field.TYPE_MESSAGE, ".google.protobuf.Duration")
    _add(order, "note", _Field.TYPE_MESSAGE, ".google.protobuf.StringValue")
    _add(order, "extra", _Field.TYPE_MESSAGE, ".google.protobuf.Struct")
    _add(order, "origin", _Field.TYPE_MESSAGE, ".google.protobuf.Any")
    _add(order, "mask", _Field.TYPE_MESSAGE, ".google.protobuf.FieldMask")
    _add(order, "card", _Field.TYPE_STRING)
    _add(order, "invoice", _Field.TYPE_STRING)
    order.oneof_decl.add(name="payment")
    for field in order.field[-2:]:
        field.oneof_index = 0
    _add(order, "photo", _Field.TYPE_BYTES)
    _add(order, "rate", _Field.TYPE_DOUBLE)
    _add(order, "replaces", _Field.TYPE_MESSAGE, ".shop.Order")
    tags = order.nested_type.add(name="TagsEntry")
    tags.options.map_entry = True
    _add(tags, "key", _Field.TYPE_STRING)
    _add(tags, "value", _Field.TYPE_INT64)
    _add(order, "tags", _Field.TYPE_MESSAGE, ".shop.Order.TagsEntry", many=True)
    found = descriptor_pb2.FileDescriptorSet()
    for it in _KNOWN:
        it.DESCRIPTOR.CopyToProto(found.file.add())
    found.file.append(file)
    return bytes(found.SerializeToString())


def _add(message: Any, name: str, kind: Any, type_name: str = "", *, many: bool = False) -> None:
    label = _Field.LABEL_REPEATED if many else _Field.LABEL_OPTIONAL
    number = len(message.field) + 1
    message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)


@cache
def _class(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def order(**values: Any) -> Any:
    """Return a shop.Order. A customer is given as a dict."""
    return _class("shop.Order")(**values)


def protobuf_order(number: int, country: str = "DE", **values: Any) -> bytes:
    customer = {"name": "Ada", "email": f"ada{number}@shop.example", "country": country}
    return bytes(order(id=number, customer=customer, **values).SerializeToString())


def avro_order(number: int, country: str = "DE") -> bytes:
    customer = {"name": "Ada", "email": f"ada{number}@shop.example", "country": country}
    stream = io.BytesIO()
    record = {"id": number, "customer": customer, "price": b"\x04\xd2", "at": 1_772_366_400_500}
    plain = json.loads(json.dumps(ORDER_SCHEMA).replace(', "logicalType": "decimal"', ""))
    fastavro.schemaless_writer(stream, fastavro.parse_schema(plain), record)
    return stream.getvalue()
