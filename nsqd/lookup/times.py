"""Timeouts and intervals of nsqd's connections to nsqlookupd, in seconds."""

from __future__ import annotations

from typing import Final

PING_INTERVAL: Final = 15.0
FIRST_PING: Final = 3.0  # after connecting; by then, nsqlookupd knows whether it can connect back to this node
IO_LIMIT: Final = 1.0  # for connecting, each write, and each reply
RESOLVE_INTERVAL: Final = 15.0  # between two look-ups of a name
FIRST_TRY_LIMIT: Final = 2.0  # how long discovery waits for a peer's first connection
SHORTEST_BACKOFF: Final = 0.25
LONGEST_BACKOFF: Final = 8.0  # leaves time to resolve and resync within one PING_INTERVAL
LONGEST_BACKOFF_OF_NEW: Final = 1.0  # until the first nsqlookupd has accepted our IDENTIFY
