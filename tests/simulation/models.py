"""What the ledger knows of topics, channels and messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from nsqd.broker import policy
from tests.simulation.burying import BuriedModel

ROUNDING: Final = 0.0011  # seconds; due times are kept in whole milliseconds
_WINDOW: Final = 60.0  # seconds that a breaker looks at
_GRAIN: Final = 5.0 + ROUNDING  # seconds of these that it may leave out


@dataclass(slots=True)
class Published:
    """A message from the moment it was sent, whatever happened to it."""

    topic: str
    at: float  # true time
    delay: float
    forward: float  # the most that the wall clock had been set forward by then
    timestamp: int = 0  # wall time, in nanoseconds, of the turn in which it was published
    has_sure_id: bool = True
    group: bytes = b""


@dataclass(slots=True)
class Due:
    at: float  # true time
    forward: float
    number: int
    is_publication: bool  # the batch in the log has the delay, too, not only the journal
    outlived: bool = False  # nsqd was restarted since: wall time counts


class Known(NamedTuple):
    """How many attempts a message had after an action."""

    attempts: int
    number: int
    lazily: bool  # the journal may record it later


@dataclass(slots=True)
class Owed:
    """A message that a channel has to deliver."""

    attempts: int = 0
    history: list[Known] = field(default_factory=list)  # since it was new for the last time; empty while it is new
    due: Due | None = None
    held_until: float = -inf  # in flight until this true time
    since: int = 0  # the number of the seek, restore or redelivery that made it due again; 0: none
    kicked: int = 0  # the number of the kick that made its attempts begin anew; 0: none
    is_new: bool = True  # nobody has got it, or has asked for it by itself; it waits ahead of the cursor, or is held
    holds_up: bool = False  # it was delivered before: if its group has an order, the later ones wait for it

    def note_attempts(self, attempts: int, number: int, *, lazily: bool) -> None:
        self.attempts = attempts
        self.history.append(Known(attempts, number, lazily))


class Gone(NamedTuple):
    number: int
    owed: Owed
    lazily: bool  # finished by FIN, which the journal may record later


@dataclass(slots=True)
class Recent:
    """When a channel has delivered and buried messages, since its breaker began anew.

    The breaker looks at the last minute, but may leave out up to five seconds of it.
    """

    delivered: list[float] = field(default_factory=list)
    buried: list[float] = field(default_factory=list)
    is_judged: bool = True  # nothing was buried since the last look

    def note_burial(self, now: float) -> None:
        self.buried.append(now)
        self.is_judged = False

    def forget(self) -> None:
        self.delivered.clear()
        self.buried.clear()

    def may_trip(self, share: float, now: float) -> bool:
        buried = _count(self.buried, now - _WINDOW)
        return 0 < buried >= share * _count(self.delivered, now - _WINDOW + _GRAIN)

    def must_trip(self, share: float, now: float, unsent: int) -> bool:
        """Return whether it must have tripped at the last burial; `unsent` were delivered since or before."""
        buried, since = _count(self.buried, now - _WINDOW + _GRAIN), now - _WINDOW
        enough = _count(self.delivered, since + _GRAIN) >= policy.FEWEST
        return enough and buried >= share * (_count(self.delivered, since) + unsent)


def _count(times: list[float], since: float) -> int:
    return sum(time > since for time in times)


@dataclass(slots=True)
class ChannelModel:
    name: str
    created: int
    paused: bool = False
    paused_since: int = 0
    sought: int = 0  # the number of its last seek or restore
    owed: dict[int, Owed] = field(default_factory=dict)
    gone: dict[int, Gone] = field(default_factory=dict)
    buried: BuriedModel = field(default_factory=BuriedModel)
    before_burial: dict[int, Owed] = field(default_factory=dict)  # what was owed of each message that is buried
    counted: dict[str, int] = field(default_factory=dict)  # by cause, what the broker has counted at the last look
    bury_count: int = 0  # of the broker, at the last look
    recent: Recent = field(default_factory=Recent)


@dataclass(slots=True)
class TopicModel:
    name: str
    log_id: str
    ack: str
    created: int
    paused: bool = False
    paused_since: int = 0
    first: int = 0
    tail: int = 0
    high_watermark: int = 0
    messages: dict[int, bytes] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    written_tail: int = 0
    synced_tail: int = 0  # the highest end that a reader ever saw
    has_identity: bool = True  # on disk
    vague: set[int] = field(default_factory=set)  # unreadable, or lost by a disk that failed
    channels: dict[str, ChannelModel] = field(default_factory=dict)
    unparked: set[int] = field(default_factory=set)  # waiting behind H; their delay began with their publication
    cancelled: dict[int, int] = field(default_factory=dict)  # taken back before they were handed over; in which action
    deleted_channels: dict[str, tuple[int, ChannelModel]] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)  # by cause, what the broker has counted at the last look
    began_at: int = 0  # where its log began at the last look

    @property
    def flowing(self) -> bool:
        return bool(self.channels) and not self.paused
