"""Decides when a client is due a heartbeat, and when it has been silent for too long.

protocol.py's `tick` sends the heartbeat or closes the client. This stands alone because it is pure timing: no I/O.
"""

from __future__ import annotations

from math import inf


class KeepAlive:
    """The heartbeats and the read deadline of one client. Both are off until the client has sent its magic.

    Times are in monotonic seconds.
    """

    __slots__ = ("_heartbeat_at", "_interval", "_patience", "_read_deadline")

    def __init__(self) -> None:
        self._interval = inf  # between heartbeats
        self._heartbeat_at = inf
        self._patience = inf  # how long the client may take for its next complete command
        self._read_deadline = inf  # the end of that time

    @property
    def next_deadline(self) -> float:
        return min(self._heartbeat_at, self._read_deadline)

    def start_heartbeats(self, now: float, interval_ms: int) -> None:
        """Schedule a heartbeat every `interval_ms` from now on, or none if that is 0 or less."""
        self._interval = interval_ms / 1000 if interval_ms > 0 else inf
        self._heartbeat_at = now + self._interval

    def expect_commands(self, now: float, interval_ms: int) -> None:
        """Allow two heartbeat intervals for each command, or unlimited time if heartbeats are off.

        For example, with the default of 30 seconds, a client is closed after 60 seconds without a complete command.
        """
        self._patience = 2 * interval_ms / 1000 if interval_ms > 0 else inf
        self._read_deadline = now + self._patience

    def heard(self, now: float) -> None:
        """Restart the read deadline, because the client has sent a complete command or we no longer hold it up."""
        self._read_deadline = now + self._patience

    def excuse(self) -> None:
        """Suspend the read deadline until `heard` is called, because the client is waiting for us."""
        self._read_deadline = inf

    def stop(self) -> None:
        """Switch off the heartbeats and the read deadline."""
        self._heartbeat_at = self._read_deadline = inf

    def is_too_late(self, now: float) -> bool:
        """Return whether the client has been silent for too long."""
        return now >= self._read_deadline

    def take_heartbeat(self, now: float) -> bool:
        """Return whether a heartbeat is due, and if so, schedule the next one. We don't make up for missed ones."""
        if now < self._heartbeat_at:
            return False
        self._heartbeat_at = max(now, self._heartbeat_at + self._interval)
        return True
