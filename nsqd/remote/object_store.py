"""What an object store has to do for a node: five verbs, and three answers to the one that decides.

A name is written once: `create` stores an object unless there is one, and the store decides which of several writers
was first. Everything else follows from this, so there are no leases, no versions and no compare-and-set.

    create("wal/7/00000003", slot)
        CREATED   ours is there, for good
        EXISTS    there was one already. Get it, and compare it with what you have sent:
                      the same bytes   an earlier try of ours has reached the store
                      other bytes      another writer was first
                      nothing          the store was busy with two writers at once; send the same bytes again
        UNKNOWN   it may be stored, now or an hour from now. Send the same bytes to the same name again

Never give up after UNKNOWN and never change the bytes, because the first request may still arrive. And don't conclude
from a `get` that finds nothing that it never will.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, StrEnum
from typing import Final, Protocol

LIST_LIMIT: Final = 1000  # names that one `list` returns


class Created(Enum):
    """The answer to `create`."""

    CREATED = "created"
    EXISTS = "exists"
    UNKNOWN = "unknown"


class StoreFaultKind(StrEnum):
    """Why a store doesn't do what it was asked. An operator reads the fault's text; programs read this."""

    BUSY = "busy"  # it asks for fewer requests
    CLOCK = "clock"  # it refuses requests because this machine's clock is off
    DENIED = "denied"  # it doesn't accept our credentials, or they don't allow this
    FULL = "full"
    MISSING = "missing"  # there is no such bucket, container or folder
    UNREACHABLE = "unreachable"  # it gives no answer
    OTHER = "other"


class StoreFault(Exception):
    """A store could not answer. Its text is one line for an operator, and says what to mend."""

    def __init__(self, text: str, kind: StoreFaultKind = StoreFaultKind.OTHER) -> None:
        super().__init__(text)
        self.text = text
        self.kind = kind


Names = list[str]  # inside a class that has a method `list`, `list[str]` is no type

# Gets the reason before `create` returns UNKNOWN, in the thread that has called it.
OnUnknown = Callable[[StoreFault], object]


def ignore(fault: StoreFault) -> None:
    """Do nothing with the reason."""


class ObjectStore(Protocol):
    """A store below one prefix. Its methods block, and any thread may call them.

    A name is one or more words with slashes between them, as in `wal/7/00000003`. Words have ASCII letters, digits and
    `.`, `_`, `-` only, and begin with a letter or digit.
    """

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        """Store an object unless there is one of this name. Every failure of the store is the answer UNKNOWN."""

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        """Return the bytes from `start` up to `end`, or to the object's end. None: there is no such object.

        Raises StoreFault if the store can't tell. So None is an answer of the store, and not a guess.
        """

    def delete(self, names: Sequence[str]) -> None:
        """Delete these objects. Names without an object don't matter. Raises StoreFault: some may be deleted."""

    def list(self, prefix: str, after: str = "") -> Names:
        """Return the first LIST_LIMIT names in `prefix` that come after `after`, sorted. Raises StoreFault.

        `prefix` ends with a slash, or is empty. A list may be as old as an hour, so use it for sweeping and for fsck,
        and never to decide which object is the newest.
        """

    def overwrite(self, name: str, data: bytes) -> None:
        """Store an object whether or not there is one. Only for `hint`, which decides nothing. Raises StoreFault."""
