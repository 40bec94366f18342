"""What the hot records (commands, frames, messages) share.

They are plain classes with slots: built in half the time that a frozen dataclass needs, and some are built
for every message.
"""

from __future__ import annotations


class Record:
    """Equality and repr over the slots of the subclass, for tests and debugging."""

    __slots__: tuple[str, ...] = ()

    def _values(self) -> list[object]:
        return [getattr(self, name) for name in self.__slots__]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]  # mutable, as the hot ones are in the making

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"
