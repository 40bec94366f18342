"""How a standby waits: it asks the owner, has the chain read, and says every ten seconds what it waits for.

The owner is asked ten times in `after`. As long as it is well, the chain is read every ten seconds only, because each
request to a store costs something. That is still worth it: the standby has read the chain when it has to take over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from nsqd.broker.store import StandbySnapshot
from nsqd.remote.owner_call import CALL_TIMEOUT, owner_says
from nsqd.remote.standby import OwnerSays, Standby, Verdict

if TYPE_CHECKING:
    from nsqcommon.remote.slot import Claimant
    from nsqd.remote.standby import Place

log = logging.getLogger(__name__)

FOLLOW_INTERVAL: Final = 10.0  # seconds between two looks at the chain of an owner that is well
REPORT_INTERVAL: Final = 10.0
_ASKED_PER_WAIT: Final = 10
_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 0.1, 1.0
_SHORTEST_TIMEOUT: Final = 0.25
_TIMEOUTS_PER_WAIT: Final = 4
_ALARMING: Final = frozenset({Verdict.OUT_OF_REACH, Verdict.STORE_IS_AWAY})


class AskOwner(Protocol):
    def __call__(self, owner: Claimant, writer: str) -> OwnerSays: ...


class Vigil:
    """The wait of one process for one name. The thread that claims the name calls it; any thread may ask for `snapshot`."""

    def __init__(
        self,
        name: str,
        store: str,
        after: float,
        *,
        address: str = "",
        ask: AskOwner | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wait for the owner of a name to be gone for `after` seconds. `address`: our HTTP's, which the owner gets to know."""
        self._interval = min(max(after / _ASKED_PER_WAIT, _SHORTEST_INTERVAL), _LONGEST_INTERVAL)
        self.verdict = Verdict.OWNED
        self._name = name
        self._store = store
        self._after = after
        timeout = min(max(after / _TIMEOUTS_PER_WAIT, _SHORTEST_TIMEOUT), CALL_TIMEOUT)
        self._ask = ask or partial(owner_says, after=after, timeout=timeout, standby=address)
        self._clock = clock
        self._standby = Standby(after)
        self._began = clock()
        self._owner: Claimant | None = None
        self._says: OwnerSays | None = None
        self._asked_at = -inf
        self._well_at = -inf
        self._place: Place | None = None
        self._moved_at = -inf  # when a look first found the chain to end there
        self._reads_next = -inf
        self._reported = -inf
        self._decided_at = inf

    def ask(self, owner: Claimant, writer: str) -> bool:
        """Ask the owner how it is. Return whether the chain has to be read now."""
        asked_at = self._asked_at = self._clock()
        self._owner, self._says = owner, self._ask(owner, writer)
        self._standby.owner_said(self._says, asked_at)
        now = self._clock()
        if self._says is OwnerSays.WELL:
            self._well_at = now
        self._decide(now)
        return self._standby.is_in_doubt or now >= self._reads_next

    def chain_read(self, place: Place, *, is_ended: bool) -> Verdict:
        """Take the end of the chain, which was read after the owner was asked. Return what to do."""
        now = self._clock()
        self._reads_next = now + FOLLOW_INTERVAL
        if place != self._place:
            self._place, self._moved_at = place, now
        self._standby.chain_read(place, now, is_ended=is_ended)
        self._decide(now)
        return self.verdict

    def chain_unread(self) -> None:
        """Note that the store hasn't answered."""
        now = self._clock()
        self._standby.chain_unread(now)
        if self.verdict is not Verdict.TAKE_OVER:  # or it would seem to change its mind while it takes over
            self._decide(now)

    @property
    def pause(self) -> float:
        """How many seconds to wait before the owner is asked again. An owner that stands still has used them up."""
        return max(0.0, self._asked_at + self._interval - self._clock())

    @property
    def is_stale(self) -> bool:
        """Whether the decision to take over is so old that the owner may have come back."""
        return self._clock() - self._decided_at >= self._after

    def _decide(self, now: float) -> None:
        before, self.verdict = self.verdict, self._standby.decide(now)
        if self.verdict is Verdict.TAKE_OVER:
            self._decided_at = now
        if before is not self.verdict or now >= self._reported + REPORT_INTERVAL:
            self._reported = now
            log.log(logging.WARNING if self.verdict in _ALARMING else logging.INFO, "%s", self._text(now))

    def _text(self, now: float) -> str:
        name, owner = self._name, self._owner
        if owner is None:
            return f"standing by for {name}: the store hasn't said yet who owns it"
        match self.verdict:
            case Verdict.OWNED:
                return f"standing by for {name}, which {owner} owns"
            case Verdict.STORE_IS_AWAY:
                return f"standing by for {name}: {self._about_owner(now)}, and the store doesn't answer this machine"
            case Verdict.OUT_OF_REACH:
                return (
                    f"standing by for {name}: {self._about_owner(now)}, but its chain moves, so it is alive. "
                    "Can this machine reach its HTTP address?"
                )
            case Verdict.IN_DOUBT:
                return f"standing by for {name}: {self._about_owner(now)}; taking over if it stays so for {self._after:g} s"
            case Verdict.TAKE_OVER:
                return f"taking {name} over: {self._about_owner(now)}, and its chain stands still"

    def _about_owner(self, now: float) -> str:
        owner = self._owner
        address = f" at {owner.http_address}" if owner is not None and owner.http_address else ""
        well = f"well {now - self._well_at:.1f} s ago" if self._well_at > -inf else "never well since this start"
        return f"{owner}{address}: {self._says or 'not asked yet'} ({well})"

    def snapshot(self) -> StandbySnapshot:
        now, owner, place = self._clock(), self._owner, self._place
        return StandbySnapshot(
            store=self._store,
            name=self._name,
            waiting_seconds=now - self._began,
            waits_for=self._text(now),
            owner=str(owner) if owner is not None else "",
            owner_address=owner.http_address if owner is not None else "",
            answer=self._says.value if self._says is not None else "",
            well_seconds_ago=now - self._well_at if self._well_at > -inf else None,
            run=str(place[0]) if place is not None else "",
            slot=place[1] if place is not None else 0,
            still_seconds=now - self._moved_at if place is not None else 0.0,
        )
