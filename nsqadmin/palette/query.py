"""Parses the text of the palette: a command, a search in messages, the id of a message or job, or parts of names.

pause billing               a command and its object; many commands have a second word, such as "resume" for "unpause"
drain node n1               the kind of the object may be named
create topic orders         the object may be new
order_id = 4711 in orders   a filter for messages, and the topics to search
0d4c5e9b1f2a3b4c            the id of a message
job 7f1c...                 the id of a job, which may have any form
orders billing              anything else: parts of a name
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nsqadmin.messages.filters import LONGEST, BadFilter, parse_filter

_SHORTEST_PREFIX: Final = 3  # letters of a command


class Kind(StrEnum):
    """The kinds of results. Their words are shown."""

    PAGE = "page"
    TOPIC = "topic"
    CHANNEL = "channel"
    TASK = "task"
    JOB = "job"
    INCIDENT = "incident"
    MESSAGE = "message"
    SEARCH = "search"
    COMMAND = "command"
    NODE = "nsqd"
    CONSUMER = "consumer"


class Verb(StrEnum):
    PAUSE = "pause"
    UNPAUSE = "unpause"
    EMPTY = "empty"
    DELETE = "delete"
    MOVE = "move"
    PUBLISH = "publish"
    CREATE = "create"
    KICK = "kick"
    DISCARD = "discard"
    RETRY = "retry"
    DRAIN = "drain"
    FORGET = "forget"
    ACKNOWLEDGE = "acknowledge"
    UNACKNOWLEDGE = "unacknowledge"
    MUTE = "mute"
    UNMUTE = "unmute"
    GO = "go"
    SEARCH = "search"


SYNONYMS: Final[Mapping[Verb, tuple[str, ...]]] = {
    Verb.PAUSE: ("hold",),
    Verb.UNPAUSE: ("resume", "continue"),
    Verb.EMPTY: ("purge", "clear"),
    Verb.DELETE: ("remove", "drop"),
    Verb.MOVE: ("seek", "rewind"),
    Verb.PUBLISH: ("pub", "send"),
    Verb.CREATE: ("new", "add"),
    Verb.KICK: ("requeue",),
    Verb.RETRY: ("rerun",),
    Verb.ACKNOWLEDGE: ("ack",),
    Verb.UNACKNOWLEDGE: ("unack",),
    Verb.MUTE: ("silence",),
    Verb.GO: ("goto", "open", "show", "find"),
}
_VERBS: Final[Mapping[str, Verb]] = {word: verb for verb in Verb for word in (verb.value, *SYNONYMS.get(verb, ()))}
COMMAND_WORDS: Final = tuple(_VERBS)
_KINDS: Final[Mapping[str, Kind]] = {
    **{word: kind for kind in Kind for word in (kind.value, f"{kind.value}s")},
    "node": Kind.NODE,
    "nodes": Kind.NODE,
    "client": Kind.CONSUMER,
    "clients": Kind.CONSUMER,
}
_NOT_OBJECTS: Final = frozenset((Kind.COMMAND, Kind.SEARCH))

_is_message_id: Final = re.compile(r"[0-9a-f]{16}", re.ASCII).fullmatch
# Celery, Django and taskiq name jobs with a UUID, with dashes or without.
_is_job_id: Final = re.compile(
    r"[0-9a-f]{8}(-?)[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}", re.ASCII
).fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    text: str = ""
    words: tuple[str, ...] = ()  # all words, in lower case
    verb: Verb | None = None
    is_whole_verb: bool = False  # the verb was typed to its end
    kind: Kind | None = None  # only objects of this kind
    names: tuple[str, ...] = ()  # the words after the verb and kind, as typed
    message_id: str = ""
    job_id: str = ""
    wanted: str = ""  # a filter for messages
    where: tuple[str, ...] = ()  # parts of the name of a topic to search, in lower case

    @property
    def is_main_word(self) -> bool:
        """True if the verb was typed, or its beginning: another word for it, such as "send", is more likely a name."""
        return self.verb is not None and self.verb.value.startswith(self.words[0])

    @property
    def objects(self) -> tuple[str, ...]:
        return tuple(name.lower() for name in self.names)


def parse(text: str) -> Query:
    """Parse anything. What isn't understood is part of a name."""
    typed = tuple(text[:LONGEST].encode("utf-8", "replace").decode().split())
    text, words = " ".join(typed), tuple(word.lower() for word in typed)
    if not typed:
        return Query()
    if len(words) == 1 and _is_message_id(words[0]):
        return Query(text=text, words=words, message_id=words[0])
    if len(words) == 1 and _is_job_id(words[0]):
        return Query(text=text, words=words, job_id=typed[0])
    if (search := _conditions(text)) is not None:
        return Query(text=text, words=words, wanted=search[0], where=search[1])
    verb = _verb(words[0])
    is_whole = words[0] in _VERBS
    rest = typed[1:] if verb is not None else typed
    if verb is Verb.GO and len(rest) > 1 and rest[0].lower() == "to":
        rest = rest[1:]
    if verb is Verb.SEARCH and is_whole and rest:
        wanted, where = _with_place(" ".join(rest))
        return Query(text=text, words=words, verb=verb, is_whole_verb=True, wanted=wanted, where=where, names=rest)
    kind = _KINDS.get(rest[0].lower()) if rest else None
    if kind in _NOT_OBJECTS or (verb in (None, Verb.GO) and len(rest) < 2):  # "jobs" is a page
        kind = None
    if kind is not None:
        rest = rest[1:]
        verb, is_whole = verb or Verb.GO, is_whole or verb is None
    message_id = job_id = ""
    if verb is Verb.GO and len(rest) == 1 and kind is Kind.MESSAGE and _is_message_id(rest[0].lower()):
        message_id = rest[0].lower()
    if verb is Verb.GO and len(rest) == 1 and kind is Kind.JOB:
        job_id = rest[0]
    return Query(
        text=text,
        words=words,
        verb=verb,
        is_whole_verb=is_whole,
        kind=kind,
        names=rest,
        message_id=message_id,
        job_id=job_id,
    )


def _verb(word: str) -> Verb | None:
    if word in _VERBS or len(word) < _SHORTEST_PREFIX:
        return _VERBS.get(word)
    return next((verb for known, verb in _VERBS.items() if known.startswith(word)), None)


def _conditions(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the filter and the parts of a topic's name if the text begins with a condition on a field, otherwise None.

    The filter may have an error after that.
    """
    begins = False
    for wanted, where in ((text, ()), _with_place(text)):
        try:
            if parse_filter(wanted).conditions:
                return wanted, where
        except BadFilter:
            begins = True
    return (text, ()) if begins else None


def _with_place(text: str) -> tuple[str, tuple[str, ...]]:
    """Cut "in orders" off the end of a search."""
    wanted, separator, place = text.rpartition(" in ")
    if not separator or not wanted.strip() or '"' in place:
        return text, ()
    words = place.lower().split()
    if words[:1] == ["topic"] and len(words) > 1:
        words = words[1:]
    return wanted.strip(), tuple(words)
