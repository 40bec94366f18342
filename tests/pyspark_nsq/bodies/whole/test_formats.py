"""Avro, Protobuf, and Confluent's framing of both, with a registry."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

from nsqcommon.bodies.avro import BadAvroSchema
from nsqcommon.bodies.protobuf import BadDescriptors
from nsqcommon.bodies.registry import Registry, RegistryFailed
from pyspark_nsq.bodies.ddl import parse_fields
from pyspark_nsq.bodies.decoding import (
    EXTRA,
    MISSING,
    Decoded,
    Decoder,
    RawDecoder,
    RecordDecoder,
    json_decoder,
    msgpack_decoder,
)
from pyspark_nsq.bodies.formats import (
    avro_decoder,
    confluent_avro_decoder,
    confluent_json_decoder,
    confluent_protobuf_decoder,
    protobuf_decoder,
)
from tests.support.http_server import HttpServer, Reply, Request

AT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
FIELDS = "user string, amount double, at timestamp, price decimal(6, 2), state string, tags map<string, bigint>"
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "amount", "type": ["null", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "state", "symbols": ["NEW", "PAID"]}},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
    ],
}
ORDER = {"user": "ä", "amount": 1.5, "at": AT, "price": Decimal("12.50"), "state": "PAID", "tags": {"x": 1}}


def decode(decoder: RecordDecoder, *bodies: bytes) -> Decoded:
    found = pickle.loads(pickle.dumps(decoder)).decode(pa.array(bodies, pa.binary()))
    assert isinstance(found, Decoded)
    return found


def values_of(found: Decoded) -> list[dict[str, Any] | None]:
    assert found.errors is None, found.errors
    assert found.values is not None
    return list(found.values.to_pylist())


def error_of(found: Decoded) -> str:
    assert found.errors is not None
    return str(found.errors.to_pylist()[0])


def avro(record: dict[str, Any], schema: dict[str, Any] = AVRO) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, record)
    return stream.getvalue()


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def test_avro_by_one_schema_with_its_logical_types() -> None:
    found = decode(avro_decoder(parse_fields(FIELDS), json.dumps(AVRO)), avro(ORDER), avro({**ORDER, "amount": None}))
    first, second = values_of(found)
    assert first == {**ORDER, "tags": [("x", 1)]}
    assert second is not None
    assert second["amount"] is None
    assert found.counts == {EXTRA: 0, MISSING: 0}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "not Avro: user ends after the body's end, at byte 0"),
        (avro(ORDER)[:-3], "not Avro: tags[0] has 1 bytes, of which only 0 are there, at byte "),
        (b"\x02\xff" + avro(ORDER)[3:], "not UTF-8: user has byte 0xff, which is not UTF-8, at byte 1"),
        (avro(ORDER) + b"x", f"trailing data: from byte {len(avro(ORDER))} on"),
    ],
)
def test_what_is_no_avro_says_why(body: bytes, error: str) -> None:
    assert error_of(decode(avro_decoder(parse_fields(FIELDS), json.dumps(AVRO)), body)).startswith(error)


def test_a_record_of_avro_that_is_none_of_the_schema_names_its_field() -> None:
    decoder = avro_decoder(parse_fields("user bigint, more string"), json.dumps(AVRO))
    found = decode(decoder, avro(ORDER))
    assert error_of(found) == "wrong type: value.user: expected bigint, found string 'ä'"
    assert found.counts == {EXTRA: 5, MISSING: 1}


@pytest.mark.parametrize("text", ["{", '"nothing"', '{"type": "record"}'])
def test_what_is_no_avro_schema_is_refused(text: str) -> None:
    with pytest.raises(BadAvroSchema):
        avro_decoder(parse_fields("a int"), text)


# Protobuf


def descriptors(*, whole: bool = True) -> bytes:
    """Return what protoc would make of a small shop.proto."""
    Field = descriptor_pb2.FieldDescriptorProto
    known = [timestamp_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR]
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(it.name for it in known)
    enum = file.enum_type.add(name="State")
    enum.value.add(name="NEW", number=0)
    enum.value.add(name="PAID", number=1)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL)

    def add(name: str, kind: Any, type_name: str = "", *, many: bool = False) -> None:
        label = Field.LABEL_REPEATED if many else Field.LABEL_OPTIONAL
        order.field.add(name=name, number=len(order.field) + 1, type=kind, label=label, type_name=type_name or None)

    add("user", Field.TYPE_STRING)
    add("amount", Field.TYPE_DOUBLE)
    add("at", Field.TYPE_MESSAGE, ".google.protobuf.Timestamp")
    add("note", Field.TYPE_MESSAGE, ".google.protobuf.StringValue")
    add("state", Field.TYPE_ENUM, ".shop.State")
    add("tags", Field.TYPE_MESSAGE, ".shop.Order.TagsEntry", many=True)
    add("numbers", Field.TYPE_INT32, many=True)
    add("big", Field.TYPE_UINT64)
    found = descriptor_pb2.FileDescriptorSet()
    for it in known if whole else []:
        it.CopyToProto(found.file.add())
    found.file.append(file)
    return bytes(found.SerializeToString())


def order_message(**values: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**values)


PROTOBUF_FIELDS = (
    "user string, amount double, at timestamp, note string, state string, tags map<string, bigint>, "
    "numbers array<int>, big bigint"
)


def test_protobuf_by_a_descriptor_set() -> None:
    message = order_message(user="ä", amount=1.5, state=1, tags={"x": 1}, numbers=[1, 2], big=5)
    message.at.FromDatetime(AT)
    message.note.value = "hi"
    found = decode(
        protobuf_decoder(parse_fields(PROTOBUF_FIELDS), descriptors(), "shop.Order"), message.SerializeToString()
    )
    assert values_of(found) == [
        {
            "user": "ä",
            "amount": 1.5,
            "at": AT,
            "note": "hi",
            "state": "PAID",
            "tags": [("x", 1)],
            "numbers": [1, 2],
            "big": 5,
        }
    ]
    assert found.counts == {EXTRA: 0, MISSING: 0}


def test_what_protobuf_leaves_out_is_its_default_or_missing_and_unknown_fields_are_extra() -> None:
    decoder = protobuf_decoder(parse_fields(PROTOBUF_FIELDS), descriptors(), "shop.Order")
    found = decode(decoder, b"\x98\x06\x01")  # field 99
    [value] = values_of(found)
    assert value is not None
    assert (value["user"], value["at"], value["state"], value["note"]) == ("", None, "NEW", None)
    assert found.counts == {EXTRA: 1, MISSING: 2}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"\xff", "not Protobuf: ends after the body's end, at byte 1"),
        (b"\x0a\x02\xff\xfe", "not UTF-8: field 1 (user) has byte 0xff, which is not UTF-8, at byte 2"),
        (
            order_message(big=2**63).SerializeToString(),
            "overflow: value.big: 9223372036854775808 does not fit into bigint",
        ),
    ],
)
def test_what_is_no_such_message_says_why(body: bytes, error: str) -> None:
    decoder = protobuf_decoder(parse_fields(PROTOBUF_FIELDS), descriptors(), "shop.Order")
    assert error_of(decode(decoder, body)) == error


@pytest.mark.parametrize(
    ("given_", "message", "said"),
    [
        (b"\xff", "shop.Order", "is not a descriptor set"),
        (descriptors(), "shop.Ordr", "has no message shop.Ordr; there are: .*shop.Order"),
        (descriptors(whole=False), "shop.Order", "--include_imports"),
    ],
)
def test_descriptors_that_cannot_be_used_are_refused(given_: bytes, message: str, said: str) -> None:
    with pytest.raises(BadDescriptors, match=said):
        protobuf_decoder(parse_fields("user string"), given_, message)


# Confluent's frame


class RegistryServer(HttpServer):
    """Serves a registry's answers by path."""

    def __init__(self, answers: dict[str, tuple[int, object]]) -> None:
        super().__init__()
        self._answers = answers

    def reply(self, request: Request) -> Reply:
        unknown = (404, {"error_code": 40403, "message": "Schema not found"})
        status, answer = self._answers.get(request.target, unknown)
        return Reply(status, json.dumps(answer).encode())

    @property
    def asked(self) -> list[str]:
        return [it.target for it in self.requests]

    @property
    def authorized(self) -> list[str | None]:
        return [it.headers.get("authorization") for it in self.requests]


WIDER = {**AVRO, "fields": [*AVRO["fields"], {"name": "more", "type": "int"}]}


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    answers: dict[str, tuple[int, object]] = {
        "/schemas/types": (200, ["AVRO"]),
        "/schemas/ids/7": (200, {"schema": json.dumps(AVRO)}),
        "/schemas/ids/8": (200, {"schema": json.dumps(WIDER), "schemaType": "AVRO"}),
        "/schemas/ids/9": (200, {"schema": "{}", "schemaType": "JSON"}),
        "/schemas/ids/10": (200, {"schema": json.dumps(AVRO), "references": [{"name": "x"}]}),
        "/schemas/ids/11": (200, {"schema": "no"}),
        "/schemas/ids/12": (500, {}),
        "/schemas/ids/13": (200, ["nothing"]),
        "/schemas/ids/14": (404, "default backend - 404"),
        "/schemas/ids/15": (404, {"error_code": 404, "message": "HTTP 404 Not Found"}),
        "/schemas/ids/16": (404, {"error_code": 40401, "message": "Subject not found"}),
        "/schemas/ids/17": (404, ["nothing"]),
    }
    with RegistryServer(answers) as server:
        yield server


def test_a_body_is_read_by_the_schema_that_it_was_written_by(registry: RegistryServer) -> None:
    decoder = confluent_avro_decoder(
        parse_fields(f"{FIELDS}, more int"), Registry(f"http://me:s%40@{registry.address}")
    )
    bodies = [framed(7, avro(ORDER)), framed(8, avro({**ORDER, "more": 3}, WIDER))] * 50
    for _ in range(2):  # a second task of the worker
        found = decode(decoder, *bodies)
        assert [value and value["more"] for value in values_of(found)] == [None, 3] * 50
        assert found.counts == {EXTRA: 0, MISSING: 50}
    assert registry.asked == ["/schemas/ids/7", "/schemas/ids/8"], "once for each"
    assert registry.authorized[0] == "Basic bWU6c0A="


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (5, "unknown schema: the registry has no schema 5"),
        (9, "unknown schema: number 9 is for JSON, not AVRO"),
        (10, "unknown schema: number 10 refers to other schemas, which is not supported"),
        (11, "unknown schema: number 11 is not an Avro schema: "),
    ],
)
def test_a_schema_that_cannot_be_had_is_the_rows_error(registry: RegistryServer, number: int, error: str) -> None:
    decoder = confluent_avro_decoder(parse_fields(FIELDS), Registry(f"http://{registry.address}"))
    assert error_of(decode(decoder, *[framed(number, avro(ORDER))] * 9)).startswith(error)
    assert len(registry.asked) == 1


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (12, "answers 500 when asked for schema 12"),
        (13, "has no schema in its answer for 13"),
        (14, "answers 404 when asked for schema 14"),
        (15, "answers 404 when asked for schema 15"),
        (16, "answers 404 when asked for schema 16"),
        (17, "answers 404 when asked for schema 17"),
    ],
)
def test_a_registry_that_fails_is_no_rows_error(registry: RegistryServer, number: int, said: str) -> None:
    decoder = confluent_avro_decoder(parse_fields(FIELDS), Registry(f"http://me:secret@{registry.address}"))
    with pytest.raises(RegistryFailed, match=said) as failure:
        decode(decoder, framed(number, avro(ORDER)))
    assert "secret" not in str(failure.value)


def test_a_registry_can_be_asked_before_there_is_a_job(registry: RegistryServer) -> None:
    Registry(f"http://{registry.address}/").check()
    with pytest.raises(RegistryFailed, match="answers 404"):
        Registry(f"http://{registry.address}/elsewhere").check()
    with pytest.raises(RegistryFailed, match=r"http://127\.0\.0\.1:1 cannot be reached: "):
        Registry("http://127.0.0.1:1").check()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "no Confluent header: the body has only 0 bytes"),
        (b"\0\0\0", "no Confluent header: the body has only 3 bytes"),
        (b'{"user": "a"}', "no Confluent header: the body begins with 0x7b"),
        (framed(1, b"{"), "not JSON: ends too early at byte 1"),
    ],
)
def test_what_has_no_frame_says_so(body: bytes, error: str) -> None:
    assert error_of(decode(confluent_json_decoder(parse_fields("user string")), body)) == error


def test_a_registry_may_be_named_by_an_ipv6_address(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(address: tuple[str, int], *_: object) -> None:
        asked.append(address)
        raise OSError

    monkeypatch.setattr("socket.create_connection", refuse)
    for url in ("http://user:secret@[::1]/v1", "http://[::1]:8081"):
        with pytest.raises(RegistryFailed, match="cannot be reached"):
            Registry(url).check()
    assert {*asked} == {("::1", 80), ("::1", 8081)}


def test_json_avro_by_a_file_and_protobuf_whatever_their_number_is() -> None:
    fields = parse_fields("user string")
    assert values_of(decode(confluent_json_decoder(fields), framed(3, b'{"user": "a"}'))) == [{"user": "a"}]
    by_file = confluent_avro_decoder(fields, json.dumps(AVRO))
    assert values_of(decode(by_file, framed(3, avro(ORDER)))) == [{"user": "ä"}]
    decoder = confluent_protobuf_decoder(fields, descriptors(), "shop.Order")
    message = order_message(user="a").SerializeToString()
    indexes = (b"\0", b"\x02\0", b"\x04\x02\x80\x02")  # the short form of [0], [0], [1, 128]
    assert values_of(decode(decoder, *(framed(3, it + message) for it in indexes))) == [{"user": "a"}] * 3
    assert error_of(decode(decoder, framed(3, b"\x04\x02"))).startswith("no Confluent header: the list of Protobuf's")


N = parse_fields("n int not null")
OF_N = "struct<n: int32 not null>"
AVRO_N = '{"type": "record", "name": "r", "fields": [{"name": "n", "type": "int"}]}'
URL = "http://user:secret@registry:8081/v1"


@pytest.mark.parametrize(
    ("decoder", "identity"),
    [
        (RawDecoder(), ("raw",)),
        (json_decoder(N), ("json", False, OF_N)),
        (json_decoder(parse_fields("price decimal(6, 2)")), ("json", True, "struct<price: decimal128(6, 2)>")),
        (msgpack_decoder(N), ("msgpack", OF_N)),
        (avro_decoder(N, AVRO_N), ("avro", AVRO_N, OF_N)),
        (protobuf_decoder(N, descriptors(), "shop.Order"), ("protobuf", descriptors(), "shop.Order", OF_N)),
        (confluent_json_decoder(N), ("confluent", "json", False, OF_N)),
        (confluent_avro_decoder(N, AVRO_N), ("confluent", "avro", AVRO_N, OF_N)),
        (confluent_avro_decoder(N, Registry(URL)), ("registered avro", "http://registry:8081/v1", OF_N)),
    ],
)
def test_a_decoder_is_known_by_its_kind_and_settings(decoder: Decoder, identity: tuple[object, ...]) -> None:
    """Tables keep a hash of this, so it stays the same in all versions, wherever the classes are."""
    assert decoder.identity == identity
    assert pickle.loads(pickle.dumps(decoder)).identity == identity
