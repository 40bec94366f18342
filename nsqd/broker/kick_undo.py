"""The last kick of a channel, as long as it can be taken back.

A kick that was a mistake (the consumer is not mended yet, the selection was too wide) is taken back by burying again what
nobody got since, with the attempts, the time and the reason of before. So what a kick takes out is kept for a while. It is
in memory only: after a restart there is nothing to take back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Final

from nsqd.broker.buried import BLOCK_BITS, NOTE_SHIFT, BuriedMessage, parsed_note, unpacked

if TYPE_CHECKING:
    from nsqd.broker.reclaimer import Reclaimer

KEPT_FOR: Final = 600.0  # seconds after the kick has ended
_NOTHING: Final[dict[int, int]] = {}


class KickUndo:
    """What one kick has taken out. As of buried messages, there may be a million, so each costs one integer.

    They lie in blocks, because a single dictionary of a million takes too long to grow, and to free.
    """

    __slots__ = ("_blocks", "_count", "_numbers", "_texts", "number", "until")

    def __init__(self, number: int) -> None:
        self.number = number  # by which a request names the kick: milliseconds of the wall clock when it began
        self.until = inf  # when it is forgotten, in monotonic seconds; known once it has ended
        # By block, then by sequence: the number of the note, and the rest as it was packed.
        self._blocks: dict[int, dict[int, int]] = {}
        self._count = 0
        self._texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._blocks.values())

    def __contains__(self, sequence: object) -> bool:
        return isinstance(sequence, int) and sequence in self._blocks.get(sequence >> BLOCK_BITS, _NOTHING)

    def keep(self, sequence: int, packed: int, note: str) -> None:
        number = self._numbers.get(note)
        if number is None:
            number = self._numbers[note] = len(self._texts)
            self._texts.append(note)
        block = self._blocks.get(sequence >> BLOCK_BITS)
        if block is None:
            block = self._blocks[sequence >> BLOCK_BITS] = {}
        self._count += sequence not in block
        block[sequence] = number << NOTE_SHIFT | packed

    def give_back(self, sequences: Iterable[int]) -> list[BuriedMessage]:
        """Return what was noted of these messages, and forget them."""
        burials: list[BuriedMessage] = []
        for sequence in sequences:
            packed = self._take(sequence)
            assert packed is not None
            burials.append(unpacked(sequence, packed, parsed_note(self._texts[packed >> NOTE_SHIFT])))
        return burials

    def forget(self, sequences: Iterable[int]) -> None:
        """Forget messages that wait for another reason now."""
        for sequence in sequences:
            self._take(sequence)

    def _take(self, sequence: int) -> int | None:
        number = sequence >> BLOCK_BITS
        block = self._blocks.get(number)
        packed = block.pop(sequence, None) if block is not None else None
        if packed is not None:
            self._count -= 1
            if not block:
                del self._blocks[number]
        return packed

    def clear(self, reclaimer: Reclaimer) -> None:
        """Forget everything."""
        reclaimer.add_blocks(self._blocks.values())
        reclaimer.add(self._texts, self._numbers)
        self._blocks, self._count = {}, 0
        self._texts, self._numbers = [], {}
