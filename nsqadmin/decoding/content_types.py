"""The steps for a message without a rule, as its headers `content-type` and `content-encoding` name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TYPE: Final = "content-type"
ENCODING: Final = "content-encoding"
_MOST_ENCODINGS: Final = 3
_MSGPACK: Final = frozenset(("application/msgpack", "application/x-msgpack", "application/vnd.msgpack"))
_PACKED: Final[Mapping[str, str]] = {
    "application/gzip": "gzip",
    "application/x-gzip": "gzip",
    "application/zstd": "zstd",
}
_ENCODINGS: Final[Mapping[str, str]] = {
    "gzip": "gzip",
    "x-gzip": "gzip",
    "deflate": "deflate",
    "zstd": "zstd",
    "snappy": "snappy",
    "x-snappy": "snappy",
}
_NEEDS_SCHEMA: Final[Mapping[str, str]] = {
    "application/protobuf": "Protobuf",
    "application/x-protobuf": "Protobuf",
    "application/vnd.google.protobuf": "Protobuf",
    "avro/binary": "Avro",
    "application/avro": "Avro",
    "application/x-avro": "Avro",
    "application/vnd.apache.avro": "Avro",
}


def content_type(headers: Mapping[str, str]) -> str:
    """Return the content type without parameters, in lower case; "": there is none."""
    return headers.get(TYPE, "").partition(";")[0].strip().lower() if headers else ""


def steps_for(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the steps that a message needs to be readable, in their order."""
    if not headers:
        return ()
    named = [it.strip().lower() for it in headers.get(ENCODING, "").split(",") if it.strip()]
    named = [it for it in named if it != "identity"]
    if len(named) > _MOST_ENCODINGS or any(it not in _ENCODINGS for it in named):
        return ()
    steps = [_ENCODINGS[it] for it in reversed(named)]  # the last one was applied last
    kind = content_type(headers)
    if kind in _PACKED:
        steps.append(_PACKED[kind])
    elif kind in _MSGPACK or kind.endswith("+msgpack"):
        steps.append("msgpack")
    return tuple(steps)


def missing_rule(headers: Mapping[str, str]) -> str:
    """Return why a message without a rule can't be decoded, by its content type; "": there is nothing to decode."""
    kind = content_type(headers)
    found = _NEEDS_SCHEMA.get(kind, "")
    if not found and kind.endswith(("+protobuf", "+avro")):
        found = "Protobuf" if kind.endswith("+protobuf") else "Avro"
    return f"{found} needs a schema: name it for this topic in the decoders file" if found else ""
