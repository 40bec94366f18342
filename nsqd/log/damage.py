"""Bytes on disk that differ from what was written there."""

from __future__ import annotations

import logging
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Damage:
    topic: str  # "" if the file belongs to no topic
    file: str
    offset: int
    first: int  # the sequences [first, end) cannot be read
    end: int
    kept: str  # where a copy of the bad bytes is, or ""
    text: str


def report(damage: Damage) -> None:
    log.warning(
        "%s topic=%s file=%s offset=%d first=%d end=%d kept=%s",
        damage.text,
        damage.topic,
        damage.file,
        damage.offset,
        damage.first,
        damage.end,
        damage.kept,
    )
