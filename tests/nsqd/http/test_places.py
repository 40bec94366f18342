"""`from=`: the ends of the log, a sequence, a time."""

from __future__ import annotations

import pytest

from nsqd.http.places import AtTime, HistoryEdge, HistoryPlace, parse_place

SECOND = 1_000_000_000
NEW_YEAR = 1_704_067_200 * SECOND  # 2024 in UTC


@pytest.mark.parametrize(("text", "place"), [
    ("earliest", HistoryEdge.EARLIEST),
    ("latest", HistoryEdge.LATEST),
    ("0", 0),
    ("0017", 17),
    ("2024-01-01T00:00:00Z", AtTime(NEW_YEAR)),
    ("2024-01-01t00:00:00z", AtTime(NEW_YEAR)),
    ("2024-01-01 00:00:00Z", AtTime(NEW_YEAR)),
    ("2024-01-01T02:00:00+02:00", AtTime(NEW_YEAR)),
    ("2024-01-01T02:00:00 02:00", AtTime(NEW_YEAR)),  # an unescaped `+`
    ("2023-12-31T18:30:00-05:30", AtTime(NEW_YEAR)),
    ("2024-01-01T00:00:00.5Z", AtTime(NEW_YEAR + SECOND // 2)),
    ("2024-01-01T00:00:00.123456789Z", AtTime(NEW_YEAR + 123_456_789)),
    ("2024-01-01T00:00:00.1234567891Z", AtTime(NEW_YEAR + 123_456_789)),
    ("1970-01-01T00:00:00Z", AtTime(0)),
    ("1969-12-31T23:59:59Z", AtTime(-SECOND)),
])  # fmt: skip
def test_places(text: str, place: HistoryPlace) -> None:
    assert parse_place(text) == place


@pytest.mark.parametrize("text", [
    "", "now", "Earliest", "-1", "+1", "1.5", "1e3", "12345678901234567890", "٣",
    "2024-01-01", "2024-01-01T00:00:00", "2024-13-01T00:00:00Z", "2024-02-30T00:00:00Z", "2024-01-01T24:00:01Z",
    "2024-01-01T00:00:60Z", "2024-01-01T00:00:00+0200", "2024-01-01T00:00:00Z ", "2024-01-01T00:00:00+01:60",
])  # fmt: skip
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(ValueError):
        parse_place(text)
