"""All decoders: the rules of the decoders file as it is now, and those by content type, which are built when needed.

Decoding runs in a thread, one at a time in the whole process: Python runs one thread at a time anyway, and so memory is
bounded by one body. The thread returns every tenth of a second at the latest, so that a page with hostile bodies holds
up others only so long, and notices that its viewer has left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import trio

from nsqadmin.decoding.building import BuiltRule, NotInstalled, build_plain, build_rules
from nsqadmin.decoding.content_types import content_type, missing_rule, steps_for
from nsqadmin.decoding.decoder import Decoder, Undecodable
from nsqadmin.decoding.rules import parse_rules
from nsqcommon.watched_file import FileStatus, WatchedFile

T = TypeVar("T")

SLICE: Final = 0.1  # seconds of work in a thread
_MOST_TOPICS: Final = 10_000  # whose rules we remember


@dataclass(frozen=True, slots=True)
class RulesFile:
    """The content of the decoders file, with all that it names."""

    rules: tuple[BuiltRule, ...]
    named: Mapping[str, FileStatus]  # the files that it names, as they were read


def read_rules(path: str, text: str) -> RulesFile:
    """Parse the file's text and build its decoders. Raise BadEntries."""
    return RulesFile(*build_rules(parse_rules(text), os.path.dirname(os.path.abspath(path))))


@dataclass(frozen=True, slots=True)
class ByContentType:
    """The steps that a message's headers name. Their decoder is built at the first body."""

    steps: tuple[str, ...]


Choice = Decoder | ByContentType


class Decoders:
    def __init__(self, path: str = "") -> None:
        """`path` is that of the decoders file; empty: there is none. Raises StartupError."""
        self.file = WatchedFile("decoders file", path, partial(read_rules, path), named=_named_in) if path else None
        self._by_steps: dict[tuple[str, ...], Decoder | Undecodable] = {}
        # Threads ask for rules, too, while the file changes. So a file and its topics are replaced together.
        self._known: tuple[RulesFile | None, dict[str, tuple[BuiltRule, ...]]] = None, {}
        self._turn = trio.CapacityLimiter(1)

    def choose(self, topic: str, headers: Mapping[str, str]) -> Choice | None:
        """Return how to decode a message; None: its body is shown as it is."""
        for built in self._rules_for(topic):
            kind = built.rule.content_type
            if not kind or kind == content_type(headers):
                return built.decoder
        steps = steps_for(headers)
        return ByContentType(steps) if steps else None

    def why_not(self, topic: str, headers: Mapping[str, str]) -> str:
        """Return why a message without a decoder should have one; "": it needs none."""
        return "" if any(not it.rule.content_type for it in self._rules_for(topic)) else missing_rule(headers)

    def built(self, choice: Choice) -> Decoder:
        """Return the decoder, in the thread where it decodes. Raise Undecodable."""
        if isinstance(choice, Decoder):
            return choice
        if (found := self._by_steps.get(choice.steps)) is None:
            try:
                found = build_plain(choice.steps)
            except NotInstalled as error:
                found = Undecodable(str(error))
            self._by_steps[choice.steps] = found
        if isinstance(found, Undecodable):
            raise Undecodable(str(found))
        return found

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do a piece of work of at most SLICE in a thread, when it is its turn."""
        return await trio.to_thread.run_sync(work, limiter=self._turn)

    def _rules_for(self, topic: str) -> tuple[BuiltRule, ...]:
        if self.file is None:
            return ()
        of, topics = self._known
        if of is not (now := self.file.now) or len(topics) > _MOST_TOPICS:
            topics = {}
            self._known = now, topics
        if (found := topics.get(topic)) is None:
            found = topics[topic] = tuple(it for it in now.rules if it.rule.is_of(topic))
        return found


def _named_in(content: RulesFile) -> Mapping[str, FileStatus]:
    return content.named
