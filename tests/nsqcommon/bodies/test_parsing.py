"""Parsers make plain values of bodies, wherever they run. The decoders' tests have each error and each type."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import fastavro
import msgspec
import pytest

from nsqcommon.bodies.avro import AvroParser
from nsqcommon.bodies.confluent import FramedParser
from nsqcommon.bodies.parsing import Cause, Parser, Unfit
from nsqcommon.bodies.self_describing import JsonParser, MsgpackParser
from tests.support.process import ROOT

ORDER = {"user": "ada", "items": [1, 2]}
SCHEMA = {
    "type": "record",
    "name": "order",
    "fields": [{"name": "user", "type": "string"}, {"name": "items", "type": {"type": "array", "items": "long"}}],
}
ALL = "nsqcommon.bodies.confluent, nsqcommon.bodies.self_describing"


def in_avro() -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMA), ORDER)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("parser", "body"),
    [
        (JsonParser(exact=False), msgspec.json.encode(ORDER)),
        (MsgpackParser(), msgspec.msgpack.encode(ORDER)),
        (AvroParser(json.dumps(SCHEMA)), in_avro()),
        (FramedParser(JsonParser(exact=False)), bytes(5) + msgspec.json.encode(ORDER)),
    ],
)
def test_a_body_becomes_plain_values(parser: Parser, body: bytes) -> None:
    assert parser.parse(body) == ORDER


def test_a_refused_body_says_why() -> None:
    with pytest.raises(Unfit) as refused:
        JsonParser(exact=False).parse(b'{"user" "ada"}')
    assert refused.value.cause is Cause.NOT_JSON
    assert refused.value.detail == "expected ':' at byte 8"


def test_parsers_need_neither_pyarrow_nor_pyspark() -> None:
    hidden = "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'pyarrow', 'numpy', 'pandas')))"
    command = [sys.executable, "-c", f"{hidden}; import {ALL}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
