"""Without a rule, a message is decoded by its headers."""

from __future__ import annotations

import pytest

from nsqadmin.decoding.content_types import missing_rule, steps_for


@pytest.mark.parametrize(
    ("kind", "encoding", "steps"),
    [
        ("application/json", "", ()),
        ("application/msgpack", "", ("msgpack",)),
        ("Application/X-MsgPack; charset=binary", "", ("msgpack",)),
        ("application/vnd.shop.order+msgpack", "", ("msgpack",)),
        ("application/json", "gzip", ("gzip",)),
        ("application/msgpack", "deflate, gzip", ("gzip", "deflate", "msgpack")),
        ("", "identity", ()),
        ("", "zstd", ("zstd",)),
        ("application/gzip", "", ("gzip",)),
        ("application/msgpack", "br", ()),
        ("", "gzip,gzip,gzip,gzip", ()),
        ("application/x-protobuf", "", ()),
    ],
)
def test_the_headers_name_the_steps(kind: str, encoding: str, steps: tuple[str, ...]) -> None:
    headers = {"content-type": kind, "content-encoding": encoding}
    assert steps_for({name: value for name, value in headers.items() if value}) == steps


def test_a_format_that_needs_a_schema_says_so() -> None:
    assert missing_rule({"content-type": "application/x-protobuf"}).startswith("Protobuf needs a schema")
    assert missing_rule({"content-type": "avro/binary"}).startswith("Avro needs a schema")
    assert missing_rule({"content-type": "application/json"}) == ""
    assert missing_rule({}) == ""
