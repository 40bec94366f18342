"""How long nsqd waits for its nsqlookupds, and how often it does what, in seconds."""

from __future__ import annotations

from typing import Final

PING_INTERVAL: Final = 15.0
FIRST_PING: Final = 3.0  # after connecting; nsqlookupd has tried by then whether it can reach this node
IO_LIMIT: Final = 1.0  # for connecting, each write, and the wait for each reply
RESOLVE_INTERVAL: Final = 15.0  # between two look-ups of a name
FIRST_TRY_LIMIT: Final = 2.0  # how long new topics wait for a peer that has not answered yet
SHORTEST_BACKOFF: Final = 0.25
LONGEST_BACKOFF: Final = 8.0  # a peer that is back is complete within one PING_INTERVAL, resolving and resync included
LONGEST_BACKOFF_OF_NEW: Final = 1.0  # while no nsqlookupd has heard of this node since it started
