"""Which headers of a request are headers of the message that it publishes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nsqcommon.wire.headers import BadHeaders, encode_headers

_PREFIX: Final = b"nsq-header-"
_BY_THEIR_OWN_NAMES: Final = frozenset((b"traceparent", b"tracestate"))
_CLOUD_EVENTS: Final = b"ce-"
_CONTENT_TYPE: Final = b"content-type"
_FORM: Final = b"application/x-www-form-urlencoded"  # what curl says of any body


def headers_of(fields: Iterable[tuple[bytes, bytes]], *, of_batch: bool) -> bytes:
    """Return the encoded headers of the message in a request with these fields, whose names are in lower case.

    Empty: it has none. The type of a batch is none of its messages'. Raise BadHeaders.
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
    return encode_headers(found) if found else b""


__all__ = ["BadHeaders", "headers_of"]
