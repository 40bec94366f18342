"""Decides when a standby takes a node over: by what the node's owner says, and whether the chain moves.

    the owner says  the chain                                    verdict
    well            -                                            wait: it owns the name
    anything else   could not be read                            wait: without the store we can't own anything
    cut off         stands still since the look before           take over
    nothing, gone   has stood still for `after`                  take over, if the owner has said nothing for `after`
    gone            is ended                                     take over: that is how a clean stop leaves it
    anything else   has moved since the owner was well           wait: it is alive, and only we can't reach it
    anything else   stands still, but not for so long            wait

"Cut off" is what an owner says of itself if the store hasn't answered it for `after`. "Nothing" is an address where nothing
answers in time, or an owner that the store doesn't answer, and that won't say for how long without a password. "Gone" is an
address where we know more: the host refuses connections, or another process has it.

A wrong decision costs a pause, and never a message: the fence decides who owns the name, and not this clock. So two
standbys may decide the same at the same time. One of them gets the fence, and the other reads it and waits again.

Only what was read of the chain *after* the owner stopped answering says something. Example: a look finds ten slots that
were not there at the last look, ten seconds before. The owner may have written them before it died.

A request to the store that fails is repeated, and says nothing. But while we wait long for the store, the owner isn't asked
either, and may have been well in between. So the wait begins once more after that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqcommon.remote.names import Run

    Place = tuple[Run, int]

LONGEST_GAP: Final = (
    5.0  # seconds between two questions to the owner that count as one silence, or `after` if that is more
)
STORE_PATIENCE: Final = 2.0  # seconds without an answer of the store after which we say so


class OwnerSays(StrEnum):
    WELL = "it owns the name, and reaches the store"
    CUT_OFF = "it can't reach the store"
    NOTHING = "no answer"
    GONE = "its process is gone"


class Verdict(Enum):
    OWNED = auto()  # the owner answers
    STORE_IS_AWAY = auto()  # from here
    OUT_OF_REACH = auto()  # the owner doesn't answer, and it is alive
    IN_DOUBT = auto()
    TAKE_OVER = auto()


@dataclass(frozen=True, slots=True)
class _Doubt:
    since: float  # when the owner stopped answering
    place: Place | None = None  # the end of the chain at the last look since then
    still_since: float = 0.0  # when a look first found it there
    is_still: bool = False  # two looks have found it there
    is_alive: bool = False  # the chain has moved
    is_ended: bool = False


class Standby:
    """Tell it everything that a standby finds out, with the time, and then ask it to `decide`."""

    def __init__(self, after: float) -> None:
        """Take over when the owner has been gone for `after` seconds."""
        self._after = after
        self._longest_gap = max(after, LONGEST_GAP)
        self._says = OwnerSays.WELL
        self._asked_at = -inf
        self._doubt: _Doubt | None = None
        self._unread_since = inf  # when the store began to give no answer

    @property
    def is_in_doubt(self) -> bool:
        """Whether it matters now what the chain does, because the owner isn't well."""
        return self._doubt is not None

    def owner_said(self, says: OwnerSays, now: float) -> None:
        is_one_silence = now - self._asked_at < self._longest_gap
        self._says, self._asked_at = says, now
        if says is OwnerSays.WELL:
            self._doubt = None
        elif self._doubt is None or not is_one_silence:
            self._doubt = _Doubt(now)

    def chain_read(self, place: Place, now: float, *, is_ended: bool) -> None:
        """Note where the chain ends, by requests that were sent after the owner was asked. `now`: after the answers."""
        self._unread_since = inf
        doubt = self._doubt
        if doubt is None:
            return
        if place != doubt.place:
            self._doubt = _Doubt(doubt.since, place, now, is_alive=doubt.place is not None, is_ended=is_ended)
        else:
            self._doubt = replace(doubt, is_still=True)

    def chain_unread(self, now: float) -> None:
        """Note that the store hasn't answered."""
        self._unread_since = min(self._unread_since, now)

    def decide(self, now: float) -> Verdict:
        """Return what to do. Take over only right after `chain_read`."""
        doubt = self._doubt
        if doubt is None:
            return Verdict.OWNED
        if now - self._unread_since >= STORE_PATIENCE:
            return Verdict.STORE_IS_AWAY
        if self._unread_since < inf or doubt.place is None or now - self._asked_at >= self._longest_gap:
            return Verdict.IN_DOUBT
        if now - max(doubt.since, doubt.still_since) >= self._after:
            return Verdict.TAKE_OVER
        if self._says is OwnerSays.CUT_OFF and doubt.is_still:
            return Verdict.TAKE_OVER
        if self._says is OwnerSays.GONE and doubt.is_ended:
            return Verdict.TAKE_OVER
        return Verdict.OUT_OF_REACH if doubt.is_alive else Verdict.IN_DOUBT
