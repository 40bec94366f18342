"""The table of the client states in which each command is legal. It stands alone because new commands add rows."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final

from nsqcommon.wire.extensions import BURY


class ClientState(IntEnum):
    """The state of a client. The numbers appear in /stats, and are the same as in NSQ, which has no CLOSED."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4
    CLOSED = 5


class PauseReason(Enum):
    """The reason for holding up an open client's next command.

    Meanwhile, we keep the bytes that arrive, and continue to send heartbeats.
    """

    QUESTION = "waiting for an authorization server"
    OTHERS = "other clients have their turn first"
    UPGRADE = "waiting for TLS or compression"


OPEN: Final = frozenset({ClientState.INIT, ClientState.SUBSCRIBED, ClientState.CLOSING})
CONSUMING: Final = frozenset({ClientState.SUBSCRIBED, ClientState.CLOSING})
LEGAL: Final = {
    b"IDENTIFY": frozenset({ClientState.INIT}),
    b"AUTH": frozenset({ClientState.INIT}),
    b"SUB": frozenset({ClientState.INIT}),
    b"RDY": CONSUMING,  # ignored while closing
    b"FIN": CONSUMING,
    b"REQ": CONSUMING,
    b"TOUCH": CONSUMING,
    b"CLS": frozenset({ClientState.SUBSCRIBED}),
    b"PUB": OPEN,
    b"MPUB": OPEN,
    b"DPUB": OPEN,
    b"NOP": OPEN,
}
EXTENDED: Final = {  # commands of extensions; invalid unless the client was granted the extension
    b"BURY": (BURY, CONSUMING),
}
