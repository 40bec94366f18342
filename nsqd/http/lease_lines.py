"""How leased messages and the fate of their ids are written: a line of JSON for each, or an event of a stream.

A consumer takes hundreds of messages at once, so a line is put together from its parts rather than by `json.dumps`.
"""

from __future__ import annotations

import json as plain_json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from json.encoder import encode_basestring  # in C where there is C
from struct import Struct
from typing import Final

from common.wire.headers import decode_headers
from nsqd.http.history import headers_member

HEARTBEAT: Final = b":\n\n"
_HEADED: Final = 3
_unpack_prefix: Final = Struct(">xxxxIqH").unpack  # frame type, timestamp, attempts; the size comes before them
_encode: Final = plain_json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def lines_of(pieces: Sequence[bytes], ends: int) -> bytes:
    """Return a line for each message of these frames; `ends` is when their lease does."""
    lines = [line for _, line in _members(pieces, ends)]
    lines.append("")
    return "\n".join(lines).encode("utf-8", "replace")


def events_of(pieces: Sequence[bytes], ends: int) -> bytes:
    """Return an event for each message of these frames. What JSON escapes is no end of a line in it."""
    events = [f"id: {message_id}\ndata: {line}\n\n" for message_id, line in _members(pieces, ends)]
    return "".join(events).encode("utf-8", "replace")


def _members(pieces: Sequence[bytes], ends: int) -> Iterator[tuple[str, str]]:
    """Yield each message's id and line. Neighbours of equal size share the object that is their prefix."""
    at, last = 0, len(pieces)
    prefix, kind, middle = b"", 0, ""
    end = f',"lease":{ends}}}'
    while at < last:
        if pieces[at] is not prefix:
            prefix = pieces[at]
            kind, timestamp, attempts = _unpack_prefix(prefix)
            middle = f'","attempts":{attempts},"timestamp":{timestamp}'
        message_id = pieces[at + 1].decode()
        if kind == _HEADED:
            headers = _encode(headers_member(decode_headers(pieces[at + 2])))[1:-1]
            yield message_id, f'{{"id":"{message_id}{middle},{headers},{_body(pieces[at + 3])}{end}'
            at += 4
        else:
            yield message_id, f'{{"id":"{message_id}{middle},{_body(pieces[at + 2])}{end}'
            at += 3


def _body(body: bytes) -> str:
    try:
        return f'"body":{encode_basestring(body.decode())}'
    except UnicodeDecodeError:
        return f'"body_base64":"{b64encode(body).decode()}"'


def fates_of(
    verb: bytes, ids: Sequence[bytes], failures: Mapping[bytes, bytes], ends: Mapping[bytes, int] | None = None
) -> bytes:
    """Return a line for each of these ids: what failed has an `error` in NSQ's words, what was touched its `lease`."""
    if not failures and ends is None:
        return b"".join([b'{"id":"%b"}\n' % message_id for message_id in ids])
    return b"".join([_fate(verb, message_id, failures.get(message_id), ends or {}) for message_id in ids])


def _fate(verb: bytes, message_id: bytes, reason: bytes | None, ends: Mapping[bytes, int]) -> bytes:
    line: dict[str, object] = {"id": _text(message_id)}
    if reason is not None:
        line["error"] = _text(b"E_%b_FAILED %b %b failed %b" % (verb, verb, message_id, reason))
    elif message_id in ends:
        line["lease"] = ends[message_id]
    return _encode(line).encode() + b"\n"


def _text(said: bytes) -> str:
    return said.decode("utf-8", "replace")
