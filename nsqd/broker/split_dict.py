"""A dictionary for a million keys that never stalls while it grows.

It is a module of its own because it is a general container, not tied to the keys of publishes.

A `dict` that grows moves all of its entries in one go: at 700,000 entries that takes 20 to 40 ms. So above a few thousand
entries we spread them over 64 dictionaries, and each grows by itself:

    one ──► 64, chosen by bits of the key's hash ──► each grows at 5,461 entries, 10,922, 21,845 ...

We choose the part by higher bits of the hash, because a dict places its entries by the lowest ones. If all keys of a
part had the same lowest bits, most of them would collide.
"""

from __future__ import annotations

from typing import Final

PARTS: Final = 64
_WHOLE: Final = 5_000  # entries in a single dictionary; spreading that many takes less than a millisecond
_HIGHER_BITS: Final = 40  # above the hash bits by which a dict places its entries


class SplitDict:
    """Maps keys to numbers. `count` is the number of keys."""

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
        """Remove a key. Return its number, or None if it wasn't there."""
        value = self._part_of(key).pop(key, None)
        if value is not None:
            self.count -= 1
        return value

    def _part_of(self, key: bytes) -> dict[bytes, int]:
        parts = self.parts
        return parts[0] if len(parts) == 1 else parts[(hash(key) >> _HIGHER_BITS) % PARTS]
