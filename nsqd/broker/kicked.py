"""The last kick of a channel, as long as it can be taken back.

A kick that was a mistake (the consumer is not mended yet, the selection was too wide) is taken back by burying again what
nobody got since, with the attempts, the time and the reason of before. So what a kick takes out is kept for a while. It is
in memory only: after a restart there is nothing to take back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Final

from nsqd.broker.buried import NOTE_SHIFT, Burial, parsed_note, unpacked

KEPT_FOR: Final = 600.0  # seconds after the kick has ended


class Kicked:
    """What one kick has taken out. As of buried messages, there may be a million, so each costs one integer."""

    __slots__ = ("_entries", "_numbers", "_texts", "number", "until")

    def __init__(self, number: int) -> None:
        self.number = number  # by which a request names the kick: milliseconds of the wall clock when it began
        self.until = inf  # when it is forgotten, in monotonic seconds; known once it has ended
        self._entries: dict[int, int] = {}  # by sequence: the number of the note, and the rest as it was packed
        self._texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._entries

    def keep(self, sequence: int, packed: int, note: str) -> None:
        number = self._numbers.get(note)
        if number is None:
            number = self._numbers[note] = len(self._texts)
            self._texts.append(note)
        self._entries[sequence] = number << NOTE_SHIFT | packed

    def give_back(self, sequences: Iterable[int]) -> list[Burial]:
        """Return what was noted of these messages, and forget them."""
        burials: list[Burial] = []
        for sequence in sequences:
            packed = self._entries.pop(sequence)
            burials.append(unpacked(sequence, packed, parsed_note(self._texts[packed >> NOTE_SHIFT])))
        return burials

    def forget(self, sequences: Iterable[int]) -> None:
        """Forget messages that wait for another reason now."""
        for sequence in sequences:
            self._entries.pop(sequence, None)
