"""The choices for muting an incident."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, tzinfo
from typing import Final

MORNING: Final = "morning"
_HOUR_OF_MORNING: Final = 8
_SPANS: Final[Mapping[str, timedelta]] = {
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "8h": timedelta(hours=8),
}
CHOICES: Final[Mapping[str, str]] = {
    "15m": "15 minutes",
    "1h": "1 hour",
    "8h": "8 hours",
    MORNING: "until tomorrow morning, 8:00",
}
MOST_NOTE: Final = 500  # characters


def muted_until(word: str, now: float, zone: tzinfo | None = None) -> float | None:
    """Return when muting ends; None if `word` isn't a choice. `zone` is the morning's time zone, by default ours."""
    if word == MORNING:
        here = datetime.fromtimestamp(now, zone).astimezone(zone)
        morning = (here + timedelta(days=1)).replace(hour=_HOUR_OF_MORNING, minute=0, second=0, microsecond=0)
        return morning.timestamp()
    span = _SPANS.get(word)
    return None if span is None else now + span.total_seconds()


def clean_note(text: str) -> str:
    """Return the note as one line of limited length."""
    return " ".join(text.split())[:MOST_NOTE]
