"""The headers of an edited copy: a message that is in a topic's log, and belongs to one of its channels only.

`POST /channel/edit` makes one from a message of a channel. Its record has the flag COPY (log_record.py), and only that
makes it a copy: in other messages, headers with these names mean nothing.

    nsq-channel     the only channel that gets it
    nsq-copy-of     the id of the message from which it was made
    nsq-replaces    that message's sequence, if the copy runs instead of it
    nsq-repeats     that message's sequence, if it was finished, and runs again as this copy
    nsq-edited-by   who asked for it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

CHANNEL: Final = "nsq-channel"
COPY_OF: Final = "nsq-copy-of"
REPLACES: Final = "nsq-replaces"
REPEATS: Final = "nsq-repeats"
EDITED_BY: Final = "nsq-edited-by"
NAMES: Final = frozenset((CHANNEL, COPY_OF, REPLACES, REPEATS, EDITED_BY))
_MOST_OF_EDITOR: Final = 128  # bytes


class CopyMark(NamedTuple):
    """What the headers of an edited copy say about it."""

    channel: str
    copy_of: int  # a message id
    sequence: int  # of that message
    is_instead: bool  # it runs instead of that message
    edited_by: str

    @property
    def replaces(self) -> int | None:
        """The sequence of the message that it runs instead of, or None."""
        return self.sequence if self.is_instead else None

    def headers(self) -> dict[str, bytes]:
        found = {CHANNEL: self.channel.encode(), COPY_OF: b"%016x" % self.copy_of}
        found[REPLACES if self.is_instead else REPEATS] = b"%d" % self.sequence
        if self.edited_by:
            found[EDITED_BY] = self.edited_by.encode("utf-8", "replace")[:_MOST_OF_EDITOR]
        return found


def mark_in(headers: Mapping[str, bytes]) -> CopyMark:
    """Return the mark of a copy with these headers. Call this only if its record has the flag COPY."""
    is_instead = REPLACES in headers
    return CopyMark(
        headers[CHANNEL].decode(),
        int(headers[COPY_OF], 16),
        int(headers[REPLACES if is_instead else REPEATS]),
        is_instead,
        headers.get(EDITED_BY, b"").decode("utf-8", "replace"),
    )
