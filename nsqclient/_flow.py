"""Who may send how much: `max_in_flight`, shared out among the connections as RDY.

The promise: the sum of what all nsqds may believe never exceeds `max_in_flight`. An nsqd believes the highest RDY that it
was told until a lower one has left this process (`written`), so what one gives up another gets only then.

Where nobody has chosen a `max_in_flight`, it is the number of connections: each nsqd may send one message at a time.

With as many connections as `max_in_flight` or fewer, each has its share, which differ by one at most. With more of them, RDY 1
goes round: who is idle, or has had it long enough, gives it up to the one that has waited longest. During backoff
nobody has any but one, the tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqclient._config import Config


class Seat:
    """One connection's part in it."""

    __slots__ = (
        "_leaving",
        "_peak",
        "_tell",
        "believed",
        "is_hungry",
        "is_idle",
        "last_message",
        "last_rdy",
        "max_rdy",
        "rdy",
        "starved",
    )

    def __init__(self, tell: Callable[[int], None], *, max_rdy: int, now: float) -> None:
        self._tell = tell  # writes a RDY
        self.max_rdy = max_rdy
        self.rdy = 0  # told last
        self.believed = 0  # the most that nsqd may still go by
        self._peak = 0  # the most that was told since `take`
        self._leaving = 0  # what was told last before it
        self.last_message = now
        self.last_rdy = -inf  # when it was last told more than 0
        self.starved = False  # had all that it may have, since the last round
        self.is_hungry = False  # the same, in the round before
        self.is_idle = False  # gives up what it does not use (adaptive)

    def set(self, rdy: int, now: float) -> None:
        if rdy == self.rdy:
            return
        self.rdy = rdy
        self.believed = max(self.believed, rdy)
        self._peak = max(self._peak, rdy)
        if rdy:
            self.last_rdy = now
        self._tell(rdy)

    def take(self) -> None:
        """What was told so far is about to leave the process."""
        self._leaving = self._peak = self.rdy

    def left(self) -> bool:
        """It has left. Says whether nsqd can only believe less now."""
        before, self.believed = self.believed, max(self._leaving, self._peak)
        return self.believed < before


class Flow:
    def __init__(self, config: Config, *, choose: Callable[[Sequence[Seat]], Seat]) -> None:
        self.seats: list[Seat] = []
        self._retired: list[Seat] = []  # get nothing any more, and may not have heard of it yet
        self.chosen = config.max_in_flight  # None: one for each nsqd
        self._idle_timeout = config.low_rdy_idle_timeout
        self._timeout = config.low_rdy_timeout
        self._is_adaptive = config.rdy_policy == "adaptive"
        self._choose = choose  # at random, who is tested
        self._turn = 0  # whose turn it is to have one more than others
        self._is_held = False  # backoff
        self._is_testing = False  # and one has RDY 1, or the next that comes will
        self._tested: Seat | None = None
        self._is_owed = False  # somebody gets more as soon as others have heard that they get less

    @property
    def max_in_flight(self) -> int:
        return self.allowed_by(self.chosen)

    def allowed_by(self, chosen: int | None) -> int:
        """Return the `max_in_flight` that was chosen, or else one for each nsqd."""
        return max(len(self.seats), 1) if chosen is None else chosen

    @property
    def believed(self) -> int:
        """The sum that is never more than `max_in_flight`, or than it was before it was lowered."""
        return sum(seat.believed for seats in (self.seats, self._retired) for seat in seats)

    # What happens

    def join(self, seat: Seat, now: float) -> None:
        self.seats.append(seat)
        self._turn += 1
        if self._is_testing and self._tested is None:
            self._tested = seat
        self._level(now)

    def leave(self, seat: Seat, now: float) -> None:
        if seat in self._retired:
            self._retired.remove(seat)
        elif seat in self.seats:
            self._remove(seat)
        self._level(now)

    def retire(self, seat: Seat, now: float) -> None:
        """It is to send nothing more, and stays until what it has sent is answered: others get its share."""
        if seat in self.seats:
            self._remove(seat)
            self._retired.append(seat)
            seat.set(0, now)
            self._level(now)

    def _remove(self, seat: Seat) -> None:
        self.seats.remove(seat)
        self._turn += 1
        if self._tested is seat:
            self._test_another()

    def set_max_in_flight(self, chosen: int | None, now: float) -> None:
        self.chosen = chosen
        self._level(now)

    def written(self, seat: Seat, now: float) -> None:
        """What this one was told up to its last `take` has left the process."""
        if seat.believed != seat.rdy and seat.left() and self._is_owed:
            self._level(now)

    def message_from(self, seat: Seat, now: float) -> None:
        seat.last_message = now
        if seat.is_idle:
            seat.is_idle = False
            self._level(now)

    # Backoff

    def hold(self, now: float) -> None:
        """Nobody gets anything."""
        self._is_held = True
        self._is_testing, self._tested = False, None
        self._level(now)

    def test_one(self, now: float) -> bool:
        """One gets RDY 1. False: there is none that could."""
        if not self.seats or self.believed >= self.max_in_flight:
            return False
        self._is_testing, self._tested = True, self._choose(self.seats)
        self._level(now)
        return True

    def release(self, now: float) -> None:
        self._is_held = False
        self._is_testing, self._tested = False, None
        self._level(now)

    # Every now and then

    def redistribute(self, now: float) -> None:
        if self._is_held:
            if self._tested is not None and len(self.seats) > 1 and self._is_wasted(self._tested, now):
                self._test_another()
        elif len(self.seats) > self.max_in_flight:
            for seat in self.seats:
                if seat.rdy and self._is_wasted(seat, now):
                    seat.set(0, now)
        elif self._is_adaptive:
            for seat in self.seats:
                seat.is_idle = now - seat.last_message > self._idle_timeout
                seat.is_hungry, seat.starved = seat.starved, False
        self._level(now)

    def _is_wasted(self, seat: Seat, now: float) -> bool:
        return now - seat.last_message > self._idle_timeout or now - seat.last_rdy > self._timeout

    def _test_another(self) -> None:
        others = [seat for seat in self.seats if seat is not self._tested]
        self._tested = min(others, key=lambda seat: seat.last_rdy) if others else None

    # Who gets what

    def _level(self, now: float) -> None:
        """Makes the shares what they should be: first less for some, and what has become free for others."""
        shares = self._shares()
        for seat, share in zip(self.seats, shares, strict=True):
            if share < seat.rdy:
                seat.set(share, now)
        self._is_owed = False
        free = self.max_in_flight - self.believed
        for seat, share in zip(self.seats, shares, strict=True):
            if share > seat.rdy:
                given = min(share, seat.believed + max(free, 0))
                if given > seat.rdy:
                    free -= max(given - seat.believed, 0)
                    seat.set(given, now)
                self._is_owed |= given < share

    def _shares(self) -> list[int]:
        seats = self.seats
        if self._is_held:
            return [1 if seat is self._tested and self.max_in_flight else 0 for seat in seats]
        if not seats:
            return []
        if len(seats) > self.max_in_flight:
            # Who has it keeps it; then comes who has waited longest.
            order = sorted(seats, key=lambda seat: (not seat.rdy, seat.last_rdy))
            chosen = {id(seat) for seat in order[: self.max_in_flight]}
            return [1 if id(seat) in chosen else 0 for seat in seats]
        each, more = divmod(self.max_in_flight, len(seats))
        shares = [each + ((at + self._turn) % len(seats) < more) for at in range(len(seats))]
        if self._is_adaptive:
            shares = self._adapted(shares)
        return [min(share, seat.max_rdy) for share, seat in zip(shares, seats, strict=True)]

    def _adapted(self, shares: list[int]) -> list[int]:
        """What the idle ones do not use, for those who could use more."""
        free = 0
        for at, seat in enumerate(self.seats):
            if seat.is_idle:
                free += shares[at] - 1
                shares[at] = 1
        hungry = [at for at, seat in enumerate(self.seats) if seat.is_hungry and not seat.is_idle]
        for number, at in enumerate(hungry):
            shares[at] += free // len(hungry) + (number < free % len(hungry))
        return shares
