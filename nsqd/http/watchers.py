"""Which standbys wait for the end of this node's owner. They ask it all the time how it is, and say where they are.

A standby that is gone is forgotten after a while. Anybody who can ask may make up an address, so we keep only a few, and no
long ones.
"""

from __future__ import annotations

import re
from typing import Final

KEPT_FOR: Final = 180.0  # seconds; a standby asks each second, unless the network is broken
MOST: Final = 16
_ADDRESS: Final = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")


class Watchers:
    def __init__(self) -> None:
        self._asked_at: dict[str, float] = {}  # by address, the one that has asked last at the end

    def asked(self, address: str, now: float) -> None:
        """Note that a standby with this HTTP address has asked. Anything else is ignored."""
        if _ADDRESS.fullmatch(address):
            self._asked_at.pop(address, None)
            self._asked_at[address] = now
            if len(self._asked_at) > MOST:
                del self._asked_at[next(iter(self._asked_at))]

    def addresses(self, now: float) -> list[str]:
        """Return the recent ones, sorted."""
        self._asked_at = {it: at for it, at in self._asked_at.items() if now - at < KEPT_FOR}
        return sorted(self._asked_at)
