"""Encodes leased messages, and results of FIN and the like, as JSON lines or events.

This module only converts bytes, and has nothing to do with requests, leases or waiting. A consumer takes hundreds of
messages in one request, so we join lines by hand, which is faster than `json.dumps`.
"""

from __future__ import annotations

import json as plain_json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from json.encoder import encode_basestring  # the C version where there is one
from struct import Struct
from typing import Final

from nsqcommon.wire.headers import decode_headers, end_of_headers
from nsqd.http.history import headers_member

HEARTBEAT: Final = b":\n\n"
_HEADED: Final = 3
_START: Final = 34  # bytes of a frame before headers and body
_unpack_start: Final = Struct(">IIqH16s").unpack_from  # size, frame type, timestamp, attempts, id
_encode: Final = plain_json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def lines_of(pieces: Sequence[bytes], ends: int) -> bytes:
    """Return a line for each message in these frames. Their leases end at `ends`."""
    lines = [line for _, line in _members(pieces, ends)]
    lines.append("")
    return "\n".join(lines).encode("utf-8", "replace")


def events_of(pieces: Sequence[bytes], ends: int) -> bytes:
    """Return an event for each message in these frames. JSON escapes newlines, so the data is a single line."""
    events = [f"id: {message_id}\ndata: {line}\n\n" for message_id, line in _members(pieces, ends)]
    return "".join(events).encode("utf-8", "replace")


def _members(pieces: Sequence[bytes], ends: int) -> Iterator[tuple[str, str]]:
    """Yield each message's id and line. We join the pieces, because a frame may span several."""
    frames = b"".join(pieces)
    at, last = 0, len(frames)
    lease = f',"lease":{ends}}}'
    while at < last:
        size, kind, timestamp, attempts, raw_id = _unpack_start(frames, at)
        begin, at = at + _START, at + 4 + size
        message_id, headers = raw_id.decode(), ""
        if kind == _HEADED:
            found = headers_member(decode_headers(frames, begin))
            headers = _encode(found)[1:-1] + "," if found else ""
            begin = end_of_headers(frames, begin)
        yield (
            message_id,
            f'{{"id":"{message_id}","attempts":{attempts},"timestamp":{timestamp},'
            f"{headers}{_body(frames[begin:at])}{lease}",
        )


def _body(body: bytes) -> str:
    try:
        return f'"body":{encode_basestring(body.decode())}'
    except UnicodeDecodeError:
        return f'"body_base64":"{b64encode(body).decode()}"'


def results_of(
    verb: bytes, ids: Sequence[bytes], failures: Mapping[bytes, bytes], ends: Mapping[bytes, int] | None = None
) -> bytes:
    """Return a line for each id, with an `error` in NSQ's words if it failed, or the new `lease` after a touch."""
    if not failures and ends is None:
        return b"".join([b'{"id":"%b"}\n' % message_id for message_id in ids])
    return b"".join([_result(verb, message_id, failures.get(message_id), ends or {}) for message_id in ids])


def _result(verb: bytes, message_id: bytes, reason: bytes | None, ends: Mapping[bytes, int]) -> bytes:
    line: dict[str, object] = {"id": _text(message_id)}
    if reason is not None:
        line["error"] = _text(b"E_%b_FAILED %b %b failed %b" % (verb, verb, message_id, reason))
    elif message_id in ends:
        line["lease"] = ends[message_id]
    return _encode(line).encode() + b"\n"


def _text(said: bytes) -> str:
    return said.decode("utf-8", "replace")
