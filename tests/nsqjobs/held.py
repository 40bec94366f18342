"""A message in the hands of a worker, without an nsqd."""

from __future__ import annotations

from typing import Any


class FakeHeld:
    """Writes down how it was answered. Stands for nsqjobs.held.HeldMessage."""

    topic = "mails"
    id = "0123456789abcdef"

    def __init__(self, body: bytes, *, attempts: int = 1) -> None:
        self.body = body
        self.attempts = attempts
        self.said: list[Any] = []

    def finish(self) -> None:
        self.said.append("finish")

    def give_back(self, delay: float = 0.0, *, count: bool = False) -> None:
        self.said.append(("give back", delay, count))

    def bury(self, reason: str) -> None:
        self.said.append(("bury", reason))
