"""A dictionary of a million keys that grows in pieces.

When a `dict` grows, it moves all of its entries at once, which takes 20 to 40 ms at 700,000. So where there are more
than some thousands, they are spread over many dictionaries, each of which grows by itself:

    one ──► 64, by bits of the key's hash ──► each grows when it has 5,461 entries, 10,922, 21,845 ...

Dictionaries find their entries by the lowest bits of the hash, so the part is chosen by higher bits: in a part whose
keys had equal lowest bits, most of them would collide.
"""

from __future__ import annotations

from typing import Final

PARTS: Final = 64
_WHOLE: Final = 5_000  # entries that one dictionary holds; spreading them takes less than a millisecond
_HIGHER_BITS: Final = 40  # beyond those by which a dict finds its entries


class SplitDict:
    """A number for each key. `count` is how many keys there are."""

    __slots__ = ("count", "parts")

    def __init__(self) -> None:
        self.count = 0
        self.parts: list[dict[bytes, int]] = [{}]

    def __contains__(self, key: bytes) -> bool:
        return key in self._part_of(key)

    def get(self, key: bytes) -> int | None:
        return self._part_of(key).get(key)

    def put(self, key: bytes, value: int) -> None:
        part = self._part_of(key)
        before = len(part)
        part[key] = value
        self.count += len(part) - before
        if len(part) > _WHOLE and len(self.parts) == 1:
            self.parts = [{} for _ in range(PARTS)]
            for known, number in part.items():
                self._part_of(known)[known] = number

    def pop(self, key: bytes) -> int | None:
        """Take a key out. Return its number; None: it was not there."""
        value = self._part_of(key).pop(key, None)
        if value is not None:
            self.count -= 1
        return value

    def _part_of(self, key: bytes) -> dict[bytes, int]:
        parts = self.parts
        return parts[0] if len(parts) == 1 else parts[(hash(key) >> _HIGHER_BITS) % PARTS]
