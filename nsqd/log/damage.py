"""Damage found in the data path: bytes on disk that aren't the ones we wrote, and missing files."""

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
    kept: str  # path of a copy of the bad bytes, or ""
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
