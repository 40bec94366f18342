"""The base class of hot records: commands, frames and messages.

They are plain classes with slots, which take half the time of a frozen dataclass to build. We build some of them for
every message.
"""

from __future__ import annotations

from types import GetSetDescriptorType, MemberDescriptorType
from typing import Final

_DESCRIPTORS: Final = (MemberDescriptorType, GetSetDescriptorType)


class HotRecord:
    """Adds equality and a repr over the subclass's slots, for tests and debugging."""

    __slots__: tuple[str, ...] = ()

    def _values(self) -> dict[str, object]:
        # A compiled class has no __slots__, but compiled and plain classes have a descriptor for each field.
        classes = reversed(type(self).__mro__)
        names = [name for kind in classes for name, it in vars(kind).items() if isinstance(it, _DESCRIPTORS)]
        return {name: getattr(self, name) for name in names}

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._values().items())
        return f"{type(self).__name__}({fields})"
