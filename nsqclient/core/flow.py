"""Flow control: how connections share `max_in_flight` as RDY.

The guarantee: the sum of all RDY values in force never exceeds `max_in_flight`. A lower RDY is in force only when the
command has left this process (`written`). Until then nsqd may still use the higher value, so another nsqd gets the
difference only afterwards. For example, if `max_in_flight` is 10 and a second nsqd connects, we send RDY 5 to the first
one, and once that has been written, RDY 5 to the second.

The default of `max_in_flight` is the number of connections: each nsqd may send one message at a time.

With up to `max_in_flight` connections, each has an equal share, give or take one. With more, RDY 1 goes round: an nsqd
that is idle or has had its turn passes it to the one that has waited longest. The adaptive policy keeps turns short, so
that every nsqd gets one soon: QUIET without a message, or TURN with some. The next turn begins only when the messages
of the one before are answered, so there are never more than `max_in_flight` in flight. During backoff, only the nsqd
being tested has RDY 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsqclient.core.config import Config


LOOK: Final = 0.1  # seconds between two checks of short turns
_QUIET: Final = 0.1  # seconds without a message after which a short turn ends
_TURN: Final = 1.0  # the longest short turn, in seconds


class Seat:
    """The RDY of one connection: the last value sent, and the highest that nsqd may still use."""

    __slots__ = (
        "_leaving",
        "_peak",
        "_tell",
        "believed",
        "in_flight",
        "is_idle",
        "last_message",
        "last_rdy",
        "max_rdy",
        "rdy",
        "starved",
        "was_starved",
    )

    def __init__(
        self, tell: Callable[[int], None], *, max_rdy: int, now: float, in_flight: Callable[[], int] = lambda: 0
    ) -> None:
        self._tell = tell  # sends RDY
        self.in_flight = in_flight  # the number of its unanswered messages
        self.max_rdy = max_rdy  # nsqd's limit
        self.rdy = 0  # sent last
        self.believed = 0  # the highest value that nsqd may still use
        self._peak = 0  # the highest value sent since `mark_sending`
        self._leaving = 0  # the last value sent before `mark_sending`
        self.last_message = now
        self.last_rdy = -inf  # when RDY above 0 was last sent
        self.starved = False  # its RDY was used up since the last round
        self.was_starved = False  # the same for the round before
        self.is_idle = False  # it keeps one of its share (adaptive)

    def set_rdy(self, rdy: int, now: float) -> None:
        """Send this RDY if it differs from the current one."""
        if rdy == self.rdy:
            return
        self.rdy = rdy
        self.believed = max(self.believed, rdy)
        self._peak = max(self._peak, rdy)
        if rdy:
            self.last_rdy = now
        self._tell(rdy)

    def mark_sending(self) -> None:
        """Mark the values sent so far: they are about to leave the process."""
        self._leaving = self._peak = self.rdy

    def mark_sent(self) -> bool:
        """Confirm that they have left. Return True if this lowers the value that nsqd may use."""
        before, self.believed = self.believed, max(self._leaving, self._peak)
        return self.believed < before


class Flow:
    """The shares of all connections of a consumer."""

    def __init__(self, config: Config, *, choose: Callable[[Sequence[Seat]], Seat]) -> None:
        self.seats: list[Seat] = []
        self._retired: list[Seat] = []  # RDY 0, but their nsqds may still use a higher value
        self.requested = config.max_in_flight  # the user's setting; None: one for each nsqd
        self._idle_timeout = config.low_rdy_idle_timeout
        self._timeout = config.low_rdy_timeout
        self._is_adaptive = config.rdy_policy == "adaptive"
        self._choose = choose  # to pick an nsqd for the test message
        self._turn = 0  # rotates which seats have one more than the others
        self._is_held = False  # during backoff
        self._is_testing = False  # during backoff: one nsqd has RDY 1, or the next one to connect gets it
        self._tested: Seat | None = None  # that one
        self._is_owed = False  # some seat gets more as soon as another one's lower value is in force

    @property
    def max_in_flight(self) -> int:
        return self.allowed_by(self.requested)

    def allowed_by(self, requested: int | None) -> int:
        """Return `requested`, or one for each nsqd if it is None."""
        return max(len(self.seats), 1) if requested is None else requested

    @property
    def believed(self) -> int:
        """The sum over all nsqds. It exceeds `max_in_flight` only after you lower that, until nsqds have followed."""
        return sum(seat.believed for seats in (self.seats, self._retired) for seat in seats)

    @property
    def in_flight(self) -> int:
        """The number of unanswered messages."""
        return sum(seat.in_flight() for seats in (self.seats, self._retired) for seat in seats)

    @property
    def committed(self) -> int:
        """How many messages may be in flight, whatever RDY we send next."""
        return sum(max(seat.believed, seat.in_flight()) for seats in (self.seats, self._retired) for seat in seats)

    @property
    def has_short_turns(self) -> bool:
        """True if `redistribute` has to run every LOOK seconds."""
        return self._is_adaptive and 0 < self.max_in_flight < len(self.seats)

    # Events

    def join(self, seat: Seat, now: float) -> None:
        """Give a new connection its share."""
        self.seats.append(seat)
        self._turn += 1
        if self._is_testing and self._tested is None:
            self._tested = seat
        self._rebalance(now)

    def leave(self, seat: Seat, now: float) -> None:
        """Give the share of a closed connection to the others."""
        if seat in self._retired:
            self._retired.remove(seat)
        elif seat in self.seats:
            self._remove(seat)
        self._rebalance(now)

    def retire(self, seat: Seat, now: float) -> None:
        """Give this connection's share to others. It stays until its messages are answered."""
        if seat in self.seats:
            self._remove(seat)
            self._retired.append(seat)
            seat.set_rdy(0, now)
            self._rebalance(now)

    def _remove(self, seat: Seat) -> None:
        self.seats.remove(seat)
        self._turn += 1
        if self._tested is seat:
            self._test_another()

    def set_max_in_flight(self, requested: int | None, now: float) -> None:
        self.requested = requested
        self._rebalance(now)

    def written(self, seat: Seat, now: float) -> None:
        """Confirm that the values before this seat's last `mark_sending` have left the process."""
        if seat.believed != seat.rdy and seat.mark_sent() and self._is_owed:
            self._rebalance(now)

    def message_from(self, seat: Seat, now: float) -> None:
        seat.last_message = now
        if seat.is_idle:
            seat.is_idle = False
            self._rebalance(now)

    # Backoff

    def hold(self, now: float) -> None:
        """Set every RDY to 0 (backoff)."""
        self._is_held = True
        self._is_testing, self._tested = False, None
        self._rebalance(now)

    def test_one(self, now: float) -> bool:
        """Give one connection RDY 1. Return False if none may have it."""
        if not self.seats or self.believed >= self.max_in_flight:
            return False
        self._is_testing, self._tested = True, self._choose(self.seats)
        self._rebalance(now)
        return True

    def release(self, now: float) -> None:
        """End backoff: give each connection its share again."""
        self._is_held = False
        self._is_testing, self._tested = False, None
        self._rebalance(now)

    # At intervals

    def redistribute(self, now: float) -> None:
        """Move RDY from idle connections, and from those that have had their turn, to others."""
        if self._is_held:
            if self._tested is not None and len(self.seats) > 1 and self._is_wasted(self._tested, now):
                self._test_another()
        elif len(self.seats) > self.max_in_flight:
            is_over = self._is_turn_over if self._is_adaptive else self._is_wasted
            for seat in self.seats:
                if seat.rdy and is_over(seat, now):
                    seat.set_rdy(0, now)
        elif self._is_adaptive:
            for seat in self.seats:
                seat.is_idle = now - seat.last_message > self._idle_timeout
                seat.was_starved, seat.starved = seat.starved, False
        self._rebalance(now)

    def _is_turn_over(self, seat: Seat, now: float) -> bool:
        is_quiet = now - max(seat.last_message, seat.last_rdy) > _QUIET and not seat.in_flight()
        return is_quiet or now - seat.last_rdy > _TURN

    def _is_wasted(self, seat: Seat, now: float) -> bool:
        return now - seat.last_message > self._idle_timeout or now - seat.last_rdy > self._timeout

    def _test_another(self) -> None:
        others = [seat for seat in self.seats if seat is not self._tested]
        self._tested = min(others, key=lambda seat: seat.last_rdy) if others else None

    # The shares

    def _rebalance(self, now: float) -> None:
        """Set every RDY to its share: lower the ones above it, then raise others as far as `max_in_flight` allows."""
        shares = self._shares()
        for seat, share in zip(self.seats, shares, strict=True):
            if share < seat.rdy:
                seat.set_rdy(share, now)
        self._is_owed = False
        free = self.max_in_flight - self.believed
        if self.has_short_turns:
            free -= sum(seat.in_flight() for seat in self.seats if not seat.believed)
        for seat, share in zip(self.seats, shares, strict=True):
            if share > seat.rdy:
                given = min(share, seat.believed + max(free, 0))
                if given > seat.rdy:
                    free -= max(given - seat.believed, 0)
                    seat.set_rdy(given, now)
                self._is_owed |= given < share

    def _shares(self) -> list[int]:
        seats = self.seats
        if self._is_held:
            return [1 if seat is self._tested and self.max_in_flight else 0 for seat in seats]
        if not seats:
            return []
        if len(seats) > self.max_in_flight:
            # Seats with RDY 1 keep it; then the ones that have waited longest.
            order = sorted(seats, key=lambda seat: (not seat.rdy, seat.last_rdy))
            has_turn = {id(seat) for seat in order[: self.max_in_flight]}
            return [1 if id(seat) in has_turn else 0 for seat in seats]
        each, more = divmod(self.max_in_flight, len(seats))
        shares = [each + ((at + self._turn) % len(seats) < more) for at in range(len(seats))]
        if self._is_adaptive:
            shares = self._adapted(shares)
        return [min(share, seat.max_rdy) for share, seat in zip(shares, seats, strict=True)]

    def _adapted(self, shares: list[int]) -> list[int]:
        """Give the unused shares of idle seats to busy ones."""
        free = 0
        for at, seat in enumerate(self.seats):
            if seat.is_idle:
                free += shares[at] - 1
                shares[at] = 1
        hungry = [at for at, seat in enumerate(self.seats) if seat.was_starved and not seat.is_idle]
        for number, at in enumerate(hungry):
            shares[at] += free // len(hungry) + (number < free % len(hungry))
        return shares
