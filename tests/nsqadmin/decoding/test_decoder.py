"""One decoder: its steps one after the other, and a sentence that says where a body does not fit."""

from __future__ import annotations

import gzip
import json

import cramjam
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsqadmin.decoding.building import build_plain
from nsqadmin.decoding.decoder import Decoder, Undecodable
from nsqadmin.decoding.decoders import read_rules
from tests.nsqadmin.decoding.decoders_files import FILE, write_decoders
from tests.support import shop
from tests.support.examples import examples

ADA = {"name": "Ada", "email": "ada5@shop.example", "country": "DE"}


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoder]:
    path = write_decoders(tmp_path_factory.mktemp("decoders"))
    return {it.rule.topic: it.decoder for it in read_rules(path, FILE).rules if it.decoder is not None}


BODIES = {
    "orders": shop.protobuf_order(5),
    "packed": gzip.compress(shop.protobuf_order(5)),
    "avro": shop.avro_order(5),
    "numbered": b"\0\0\0\0\x11" + shop.avro_order(5),
    "framed": b"\0\0\0\0\x01\x00" + shop.protobuf_order(5),
    "msgpack": msgspec.msgpack.encode({"id": 5, "customer": ADA}),
    "text": bytes(cramjam.zstd.compress(json.dumps({"id": 5, "customer": ADA}).encode())),
}


@pytest.mark.parametrize("topic", BODIES)
def test_a_body_becomes_json_and_a_search_reads_the_same_fields(decoders: dict[str, Decoder], topic: str) -> None:
    decoder, body = decoders[topic], BODIES[topic]
    whole = json.loads(decoder.read(body))
    assert (whole["id"], whole["customer"]) == (5, ADA)
    some = decoder.fields([("customer", "country"), ("id",), ("customer", "no", "such")])(body)
    assert (some["id"], some["customer"]["country"]) == (5, "DE")
    assert "no" not in some["customer"]


def test_logical_types_are_shown_as_people_write_them(decoders: dict[str, Decoder]) -> None:
    found = json.loads(decoders["avro"].read(BODIES["avro"]))
    assert (found["price"], found["at"]) == (12.34, "2026-03-01T12:00:00.500000Z")


@pytest.mark.parametrize(
    ("topic", "body", "why"),
    [
        ("orders", b"\x1a\x05te", "Protobuf shop.Order: field 3 (items) has 5 bytes, of which only 2 are there, at byte 1"),
        ("packed", b"\x1a", "gzip: ends too early, at byte 1"),
        ("packed", gzip.compress(b"\x08"), "Protobuf shop.Order: field 1 (id) ends after the body's end, at byte 1"),
        ("avro", b"\x0a\x02", "Avro shop.order: customer.name has 1 bytes, of which only 0 are there, at byte 1"),
        ("avro", BODIES["avro"] + b"!", f"Avro shop.order: trailing data: from byte {len(BODIES['avro'])} on"),
        ("numbered", b"{}", "Confluent, Avro shop.order: no Confluent header: the body begins with 0x7b"),
        ("numbered", b"\0\0\0\0\x12a", "Confluent, Avro shop.order: unknown schema: the decoders file has no schema 18"),
        ("framed", b"\0", "Confluent: no Confluent header: the body has only 1 bytes"),
        ("msgpack", b"\x82\xa1a", "MessagePack: ends too early at byte 3"),
        ("msgpack", b"\x91" * 5000, "MessagePack: nested too deep"),
        ("msgpack", b"\xdd\x00\x0f\x00\x00" + b"\xc0" * 0xF0000, "MessagePack: has more than 50,000 values"),
        ("msgpack", b"\xc0" * (1 << 20) + b"\xc0", "MessagePack: has more than 1 MiB, so it is not decoded"),
        ("text", b"plain", "zstd: unknown frame descriptor"),
    ],
)  # fmt: skip
def test_a_body_that_does_not_fit_says_why_and_where(
    decoders: dict[str, Decoder], topic: str, body: bytes, why: str
) -> None:
    for read in (decoders[topic].read, decoders[topic].fields([("id",)])):
        if "values" in why and read != decoders[topic].read:
            continue  # it reads what it needs
        with pytest.raises(Undecodable) as refused:
            read(body)
        assert str(refused.value) == why


def test_fields_that_the_type_does_not_have_are_a_remark(decoders: dict[str, Decoder]) -> None:
    assert decoders["packed"].remark(gzip.compress(b"\x98\x06\x01")) == (
        "Fields that shop.Order does not have are not shown: 99"
    )
    assert decoders["orders"].remark(BODIES["orders"]) == ""


def test_bytes_can_be_hidden(decoders: dict[str, Decoder]) -> None:
    body = shop.protobuf_order(1, photo=b"4929")
    assert json.loads(decoders["orders"].read(body))["photo"] == "NDkyOQ=="
    assert json.loads(decoders["orders"].read(body, hidden_bytes="***"))["photo"] == "***"


def test_unpacked_text_needs_no_parser() -> None:
    assert build_plain(("gzip",)).read(gzip.compress(b"a line of a log")) == b"a line of a log"


@given(topic=st.sampled_from(sorted(BODIES)), cut=st.integers(0, 200), noise=st.binary(max_size=30))
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_decoded_or_refused(decoders: dict[str, Decoder], topic: str, cut: int, noise: bytes) -> None:
    body, read = BODIES[topic][:cut] + noise, b""
    for decode in (decoders[topic].read, decoders[topic].fields([("customer", "country")])):
        try:
            read = decode(body)
        except Undecodable as error:
            read = str(error).encode()
            assert len(read) < 400
    assert read is not None
