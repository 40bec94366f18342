"""How long a client may be silent, and when it is told that we live."""

from __future__ import annotations

from math import inf


class KeepAlive:
    """The times that one client is held to.

    Keeps times in monotonic seconds and decides what is due; touches nothing else. The client sends the heartbeat, or ends.
    Until the first call everything is switched off, as before the magic.
    """

    __slots__ = ("_heartbeat_at", "_interval", "_patience", "_read_deadline")

    def __init__(self) -> None:
        self._interval = inf  # between heartbeats
        self._heartbeat_at = inf
        self._patience = inf  # how long the client may take for its next whole command
        self._read_deadline = inf  # when that is over

    @property
    def next_deadline(self) -> float:
        return min(self._heartbeat_at, self._read_deadline)

    def start_heartbeats(self, now: float, interval_ms: int) -> None:
        """Send one each `interval_ms` from now on; 0 or less: none."""
        self._interval = interval_ms / 1000 if interval_ms > 0 else inf
        self._heartbeat_at = now + self._interval

    def expect_commands(self, now: float, interval_ms: int) -> None:
        """Wait for two heartbeat intervals for each command; for ever if there are no heartbeats."""
        self._patience = 2 * interval_ms / 1000 if interval_ms > 0 else inf
        self._read_deadline = now + self._patience

    def heard(self, now: float) -> None:
        """Give the client its time anew: a whole command has come, or it may go on."""
        self._read_deadline = now + self._patience

    def excuse(self) -> None:
        """Wait for nothing until `heard`: we are the ones who keep the client waiting."""
        self._read_deadline = inf

    def stop(self) -> None:
        """Let nothing be due any more."""
        self._heartbeat_at = self._read_deadline = inf

    def is_too_late(self, now: float) -> bool:
        """Return whether the client has been silent for too long."""
        return now >= self._read_deadline

    def take_heartbeat(self, now: float) -> bool:
        """Return whether a heartbeat is due, and if so plan the next one. Those that were missed are not made up for."""
        if now < self._heartbeat_at:
            return False
        self._heartbeat_at = max(now, self._heartbeat_at + self._interval)
        return True
