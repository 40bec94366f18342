"""What the hot records (commands, frames, messages) share.

They are plain classes with slots: built in half the time that a frozen dataclass needs, and some are built
for every message.
"""

from __future__ import annotations

from types import GetSetDescriptorType, MemberDescriptorType
from typing import Final

_DESCRIPTORS: Final = (MemberDescriptorType, GetSetDescriptorType)


class Record:
    """Equality and repr over the slots of the subclass, for tests and debugging."""

    __slots__: tuple[str, ...] = ()

    def _values(self) -> dict[str, object]:
        # A compiled class has no __slots__, but both kinds keep a descriptor for each.
        names = [name for name, it in vars(type(self)).items() if isinstance(it, _DESCRIPTORS)]
        return {name: getattr(self, name) for name in names}

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]  # mutable, as the hot ones are in the making

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._values().items())
        return f"{type(self).__name__}({fields})"
