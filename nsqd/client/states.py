"""The states of a client, and which commands are legal in each."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final

from nsqcommon.wire.extensions import BURY


class ClientState(IntEnum):
    """The numbers are those that /stats shows. CLOSED is not one of NSQ's."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4
    CLOSED = 5


class Holdup(Enum):
    """Why an open client does not carry out its next command now.

    Incoming bytes are kept meanwhile, and heartbeats go on.
    """

    QUESTION = "an authorization server is asked first"
    OTHERS = "others have their turn first"
    UPGRADE = "TLS or compression comes first"


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
EXTENDED: Final = {  # the commands of an extension, which are unknown to a client that was not granted it
    b"BURY": (BURY, CONSUMING),
}
