"""The headers of an edited copy: a message that is in a topic's log, and belongs to one of its channels only.

`POST /channel/edit` makes one from a message of a channel. Its record has the flag COPY (log_record.py), and only that
makes it a copy: in other messages, headers with these names mean nothing.

    nsq-channel     the only channel that gets it
    nsq-copy-of     the id of the message from which it was made
    nsq-replaces    that message's sequence, if the copy runs instead of it; without this header, the message had been
                    finished, and was run again
    nsq-edited-by   who asked for it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

CHANNEL: Final = "nsq-channel"
COPY_OF: Final = "nsq-copy-of"
REPLACES: Final = "nsq-replaces"
EDITED_BY: Final = "nsq-edited-by"
NAMES: Final = frozenset((CHANNEL, COPY_OF, REPLACES, EDITED_BY))
_MOST_OF_EDITOR: Final = 128  # bytes


class CopyMark(NamedTuple):
    """What the headers of an edited copy say about it."""

    channel: str
    copy_of: int  # a message id
    replaces: int | None  # a sequence
    edited_by: str

    def headers(self) -> dict[str, bytes]:
        found = {CHANNEL: self.channel.encode(), COPY_OF: b"%016x" % self.copy_of}
        if self.replaces is not None:
            found[REPLACES] = b"%d" % self.replaces
        if self.edited_by:
            found[EDITED_BY] = self.edited_by.encode("utf-8", "replace")[:_MOST_OF_EDITOR]
        return found


def mark_in(headers: Mapping[str, bytes]) -> CopyMark:
    """Return the mark of a copy with these headers. Call this only if its record has the flag COPY."""
    replaces = headers.get(REPLACES)
    return CopyMark(
        headers[CHANNEL].decode(),
        int(headers[COPY_OF], 16),
        int(replaces) if replaces is not None else None,
        headers.get(EDITED_BY, b"").decode("utf-8", "replace"),
    )
