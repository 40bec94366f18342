"""`--policy-file`: read at the start, and again whenever the file has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from time import time_ns
from typing import TYPE_CHECKING

from nsqd.policy.parse import parse_policies
from nsqd.watched_file import WatchedFile

if TYPE_CHECKING:
    from nsqd.broker.rules import ChannelRules, LogRules, TopicRules
    from nsqd.policy.policies import Policies


@dataclass(frozen=True, slots=True)
class PolicyContent:
    policies: Policies
    digest: str  # SHA-256 of the text: nodes with the same file have the same one
    read_at: int  # nanoseconds since 1970


class PolicyFile:
    """The policies in force, for the broker (`Rules`) and for the log (`LogPolicy`)."""

    def __init__(self, path: str, *, clock: Callable[[], int] = time_ns) -> None:
        """Read the file. Raises StartupError."""
        self._clock = clock
        self._file = WatchedFile("policy file", path, self._parse)
        self.path = path
        self.topics_left = 0  # topics that do not follow the present content yet; see `Rollout`

    def _parse(self, text: str) -> PolicyContent:
        return PolicyContent(parse_policies(text), sha256(text.encode()).hexdigest(), self._clock())

    @property
    def content(self) -> PolicyContent:
        return self._file.now

    @property
    def error(self) -> str:
        """Why the present file is not in force; "" if it is."""
        return self._file.error

    def channel(self, topic: str, channel: str, /) -> ChannelRules:
        return self._file.now.policies.channel(topic, channel)

    def topic(self, topic: str, /) -> TopicRules:
        return self._file.now.policies.topic(topic)

    def log(self, topic: str, /) -> LogRules:
        return self._file.now.policies.log(topic)

    @property
    def entries(self) -> int:
        return len(self._file.now.policies.entries)

    def retention_times(self) -> Iterable[int]:
        return self._file.now.policies.retention_times()

    @property
    def expiry_interval(self) -> float:
        return self._file.now.policies.expiry_interval

    async def follow(self, changed: Callable[[], None]) -> None:
        """Watch the file until cancelled, and call `changed` after each new content that is valid."""
        await self._file.follow(changed)
