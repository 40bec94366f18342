"""Reads the sequences in a request: single ones, or a range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import HttpError, query_values
from nsqd.http.places import parse_place

if TYPE_CHECKING:
    from nsqcommon.http_api import Request

MOST_SEQUENCES: Final = 10_000  # in one request
_HIGHEST: Final = (1 << 63) - 1


def sequences_argument(request: Request) -> range | list[int]:
    """Return the sequences in `sequence=`, which may be repeated, or the range [`from=`, `to=`). Raises a 400."""
    arguments = request.query()
    single = query_values(request.query_string, "sequence")
    if single and ("from" in arguments or "to" in arguments):
        raise HttpError(400, "INVALID_ARG_SEQUENCE", details={"reason": "either sequence, or from and to"})
    if single:
        return [_sequence(text, "SEQUENCE") for text in single]
    for name in ("from", "to"):
        if name not in arguments:
            raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    start, end = _sequence(arguments["from"], "FROM"), _sequence(arguments["to"], "TO")
    if end < start:
        raise HttpError(400, "INVALID_ARG_TO")
    if end - start > MOST_SEQUENCES:
        raise HttpError(400, "TOO_MANY", details={"reason": f"at most {MOST_SEQUENCES} messages at once"})
    return range(start, end)


def _sequence(text: str, argument: str) -> int:
    try:
        place = parse_place(text)
    except ValueError:
        place = None
    if not isinstance(place, int) or place > _HIGHEST:
        raise HttpError(400, f"INVALID_ARG_{argument}")
    return place
