"""Loads `--policy-file` at startup, and again whenever it changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from time import time_ns
from typing import TYPE_CHECKING, NamedTuple

import trio

from nsqcommon.entries_file import BadEntries, Mistake
from nsqcommon.watched_file import WatchedFile
from nsqd.ack_option import Ack
from nsqd.policy.parse import parse_policies

if TYPE_CHECKING:
    from nsqd.broker.rules import ChannelRules, LogRules, TopicRules
    from nsqd.policy.policies import Policies


class KeptCopy(NamedTuple):
    """The last valid content of a policy file."""

    path: str  # of the original; we ignore a copy of another file
    text: str
    read_at: int  # nanoseconds since 1970


Keep = Callable[[KeptCopy], bool]  # returns False if the disk refuses the copy


@dataclass(frozen=True, slots=True)
class PolicyContent:
    policies: Policies
    digest: str  # SHA-256 of the text, to compare nodes
    read_at: int  # nanoseconds since 1970
    text: str = field(repr=False)
    is_copy: bool = False  # True if the file was invalid at startup, so that we use its copy


class PolicyFile:
    """The policies in force, for the broker (`Rules`) and for the log (`LogPolicy`)."""

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], int] = time_ns,
        copy: KeptCopy | None = None,
        may_wait_for_store: bool = True,
    ) -> None:
        """Read the file or, if it is invalid, its copy. Raises StartupError if that fails too.

        Without `may_wait_for_store`, a policy with `ack = "remote"` is invalid, because this nsqd has no `--remote`.
        """
        self.path = path
        self._may_wait_for_store = may_wait_for_store
        self._clock = clock
        self._copy = copy
        self._keep: Keep | None = None
        self._file = WatchedFile("policy file", path, self._parse, last_valid=self._last_valid)
        self.topics_left = 0  # topics that don't have the present rules yet; see `Rollout`

    def _parse(self, text: str) -> PolicyContent:
        return PolicyContent(self._policies_in(text), sha256(text.encode()).hexdigest(), self._clock(), text)

    def _policies_in(self, text: str) -> Policies:
        policies = parse_policies(text)
        waiting = [it.line for it in policies.entries if it.values.get("ack") is Ack.REMOTE]
        if waiting and not self._may_wait_for_store:
            cause = 'ack: "remote" needs --remote, which names the store, and this nsqd has none'
            raise BadEntries([Mistake(line, cause) for line in waiting])
        return policies

    def _last_valid(self) -> PolicyContent | None:
        copy = self._copy
        if copy is None or copy.path != os.path.abspath(self.path):
            return None
        try:
            policies = self._policies_in(copy.text)
        except ValueError:  # written by another version of nsqd, which has other keys
            return None
        return PolicyContent(policies, sha256(copy.text.encode()).hexdigest(), copy.read_at, copy.text, is_copy=True)

    def save_copies_with(self, keep: Keep) -> None:
        """Save a copy with `keep` now and after each valid change. `keep` may block on the disk."""
        self._keep = keep
        self._keep_copy()

    def _keep_copy(self) -> None:
        content = self.content
        copy = KeptCopy(os.path.abspath(self.path), content.text, content.read_at)
        if self._keep is None or (self._copy is not None and copy[:2] == self._copy[:2]):
            return
        if self._keep(copy):
            self._copy = copy

    @property
    def content(self) -> PolicyContent:
        return self._file.now

    @property
    def error(self) -> str:
        """The reason why the present file isn't in force, or "" if it is."""
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
        """Watch the file until cancelled, and call `changed` after each valid change."""

        async def apply_and_keep() -> None:
            changed()
            await trio.to_thread.run_sync(self._keep_copy)

        await self._file.follow(apply_and_keep)
