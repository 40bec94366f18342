"""Picks the headers of an HTTP request that become headers of the message it publishes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nsqcommon.wire.groups import GROUP, checked_group
from nsqcommon.wire.headers import BadHeaders, encode_headers

_PREFIX: Final = b"nsq-header-"
_BY_THEIR_OWN_NAMES: Final = frozenset((b"traceparent", b"tracestate"))
_CLOUD_EVENTS: Final = b"ce-"
_CONTENT_TYPE: Final = b"content-type"
_FORM: Final = b"application/x-www-form-urlencoded"  # curl's default for any body, so it says nothing about this one


def headers_of(fields: Iterable[tuple[bytes, bytes]], *, of_batch: bool) -> bytes:
    """Return the message's encoded headers; empty if there are none. Raises BadHeaders.

    The names in `fields` are in lower case. A batch's Content-Type is skipped: it describes the batch, not a message. A
    group that nsqd wouldn't count is refused, because a person who writes a request by hand should see the error.
    """
    found: dict[str, bytes] = {}
    for field, value in fields:
        if field.startswith(_PREFIX):
            raw = field[len(_PREFIX) :]
        elif (
            field in _BY_THEIR_OWN_NAMES
            or field.startswith(_CLOUD_EVENTS)
            or (field == _CONTENT_TYPE and not of_batch and value.partition(b";")[0].strip().lower() != _FORM)
        ):
            raw = field
        else:
            continue
        name = raw.decode("latin-1")
        found[name] = b",".join((found[name], value)) if name in found else value
    if GROUP in found:
        checked_group(found[GROUP])
    return encode_headers(found) if found else b""


__all__ = ["BadHeaders", "headers_of"]
