"""What a process uses of its nsqds, without one."""

from __future__ import annotations

from collections.abc import Mapping


class FakeLink:
    """Writes down what is published, or fails. Stands for nsqjobs.link.Link."""

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes, float, Mapping[str, bytes]]] = []
        self.groups: list[str | None] = []  # of these
        self.error: Exception | None = None

    def publish(
        self, topic: str, body: bytes, *, delay: float, headers: Mapping[str, bytes], group: str | None = None
    ) -> None:
        if self.error is not None:
            raise self.error
        self.published.append((topic, body, delay, headers))
        self.groups.append(group)
