"""The options of `format("nsq")`, of `format("nsqtable")` and of object stores: one table for checking them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Final, Literal

from nsqcommon.recipients import Recipients
from nsqcommon.wire.names import is_valid_name
from pyspark_nsq.errors import BadOption
from pyspark_nsq.lanes import At, Bound, Edge, parse_bound, parse_time, parse_times

_BOTH: Final = ("source", "sink")
_SOURCE: Final = ("source",)
_SINK: Final = ("sink",)
_TABLE: Final = ("nsqtable",)
_STORE: Final = ("nsqtable", "store")

# name: (what takes it, default). docs/reference/spark.md explains each option; a test compares names and defaults.
OPTIONS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "lookupd": (_BOTH, ""),
    "nsqd": (_BOTH, ""),
    "topic": (_BOTH, ""),
    "caFile": (_BOTH, ""),
    "certFile": (_BOTH, ""),
    "keyFile": (_BOTH, ""),
    "token": (_BOTH, ""),
    "tokenTo": (_BOTH, ""),
    "tokenOverHttp": (_BOTH, "false"),
    "timeoutSeconds": (_BOTH, "30"),
    "startingOffsets": (_SOURCE, "earliest"),
    "endingOffsets": (_SOURCE, "latest"),
    "startingTimestamp": (_SOURCE, ""),
    "endingTimestamp": (_SOURCE, ""),
    "startingOffsetsByTimestamp": (_SOURCE, ""),
    "startingOffsetsByTimestampStrategy": (_SOURCE, "latest"),
    "endingOffsetsByTimestamp": (_SOURCE, ""),
    "lanes": (_SOURCE, ""),
    "maxRowsPerTrigger": (_SOURCE, "2000000"),
    "maxBytesPerTrigger": (_SOURCE, "1073741824"),
    "minRowsPerTrigger": (_SOURCE, "0"),
    "maxTriggerDelay": (_SOURCE, "15m"),
    "rowsPerTask": (_SOURCE, ""),
    "tasksPerBatch": (_SOURCE, ""),
    "bytesPerTask": (_SOURCE, "134217728"),
    "failOnDataLoss": (_SOURCE, "true"),
    "skipCorrupt": (_SOURCE, "false"),
    "gapRows": (_SOURCE, "false"),
    "includeHeaders": (_SOURCE, "false"),
    "ranges": (_SOURCE, "false"),
    "requireRetention": (_SOURCE, "true"),
    "discoverySeconds": (_SOURCE, "10"),
    "requireAllNodes": (_SOURCE, "false"),
    "requireNodes": (_SOURCE, "0"),
    "readerName": (_SOURCE, ""),
    "readerInto": (_SOURCE, ""),
    "readerFormat": (_SOURCE, ""),
    "path": (_TABLE, ""),
    "partitioning": (_TABLE, ""),
    "version": (_TABLE, ""),
    "exactlyOnce": (_SINK, "false"),
    "keys": (_SINK, "false"),
    "writeId": ((*_SINK, *_TABLE), ""),
    "messagesPerPublish": (_SINK, "1000"),
    "bytesPerPublish": (_SINK, "1048576"),
    "turn": (_TABLE, ""),
    "storage.endpoint": (_STORE, ""),
    "storage.region": (_STORE, ""),
    "storage.accessKey": (_STORE, ""),
    "storage.secretKey": (_STORE, ""),
    "storage.token": (_STORE, ""),
    "storage.pathStyle": (_STORE, ""),
    "storage.anonymous": (_STORE, ""),
}
# Spark itself passes these to sources and sinks, so they aren't a user's mistake.
_SPARKS_OWN: Final = frozenset(("path", "checkpointlocation", "queryname"))

Taker = Literal["source", "sink", "nsqtable", "store"]

_is_pattern: Final = re.compile(r"[.a-zA-Z0-9_*?-]+", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach nsqd and nsqlookupd over HTTP."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    token: str = field(default="", repr=False)
    timeout: float = 30.0
    token_to: tuple[str, ...] = ()  # networks and names of the nsqds that may see the token
    token_over_http: bool = False  # True to send the token over plain HTTP, not only on loopback
    are_named: bool = True  # the option `nsqd` names all nsqds, so each of them may see the token


@dataclass(frozen=True, slots=True)
class Where:
    """Which nsqds to use: the named ones, or else the ones nsqlookupd knows."""

    lookupd: tuple[str, ...]
    nsqd: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics to read, as names and patterns."""

    words: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(word for word in self.words if not _has_wildcard(word))

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(filter(_has_wildcard, self.words))

    def among(self, topics: Iterable[str]) -> set[str]:
        """Return the topics among these that match a name or pattern; never ephemeral ones."""
        durable = (topic for topic in topics if not topic.endswith("#ephemeral"))
        return {topic for topic in durable if any(fnmatchcase(topic, word) for word in self.words)}


@dataclass(frozen=True, slots=True)
class Reader:
    """A stream's name for its reports to nsqd about its progress."""

    name: str
    into: str  # target of its rows
    format: str  # format of the target


@dataclass(frozen=True, slots=True)
class SourceOptions:
    where: Where
    access: Access
    topics: Topics
    start: Bound
    end: Bound
    lanes: tuple[str, ...]
    max_rows: int | None
    max_bytes: int | None
    min_rows: int
    max_delay: float  # seconds
    rows_per_task: int | None
    tasks_per_batch: int | None  # minimum number of tasks of a large batch in a stream
    bytes_per_task: int
    lossless: bool
    skip_corrupt: bool
    gap_rows: bool
    include_headers: bool
    as_ranges: bool
    require_retention: bool
    discovery_seconds: float
    require_all_nodes: bool
    require_nodes: int
    reader: Reader | None  # None: it doesn't report


@dataclass(frozen=True, slots=True)
class SinkOptions:
    where: Where
    access: Access
    topic: str  # empty: the column `topic` names it
    exactly_once: bool
    has_keys: bool  # each row is published under its own key
    write_id: str
    most_messages: int
    most_bytes: int


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """Check and parse the options of a reading query. Raises BadOption."""
    words = _Words(given, "source")
    return SourceOptions(
        where=_where(words),
        access=_access(words),
        topics=_topics(words),
        start=_start(words),
        end=_bound(words, "ending", others=Edge.LATEST),
        lanes=words.several("lanes"),
        max_rows=words.number("maxRowsPerTrigger", at_least=0) or None,
        max_bytes=words.number("maxBytesPerTrigger", at_least=0) or None,
        min_rows=words.number("minRowsPerTrigger", at_least=0),
        max_delay=words.seconds("maxTriggerDelay"),
        rows_per_task=words.number("rowsPerTask", at_least=1) if words.text("rowsPerTask") else None,
        tasks_per_batch=words.number("tasksPerBatch", at_least=1) if words.text("tasksPerBatch") else None,
        bytes_per_task=words.number("bytesPerTask", at_least=1),
        lossless=words.truth("failOnDataLoss"),
        skip_corrupt=words.truth("skipCorrupt"),
        gap_rows=words.truth("gapRows"),
        include_headers=words.truth("includeHeaders"),
        as_ranges=words.truth("ranges"),
        require_retention=words.truth("requireRetention"),
        discovery_seconds=words.number("discoverySeconds", at_least=1),
        require_all_nodes=words.truth("requireAllNodes"),
        require_nodes=words.number("requireNodes", at_least=0),
        reader=_reader(words),
    )


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check and parse the options of a writing query. Raises BadOption."""
    words = _Words(given, "sink")
    topic = words.text("topic")
    if topic and not is_valid_name(topic):
        raise BadOption(f"topic: {topic!r} is not a valid name of a topic")
    options = SinkOptions(
        where=_where(words),
        access=_access(words),
        topic=topic,
        exactly_once=words.truth("exactlyOnce"),
        has_keys=words.truth("keys"),
        write_id=words.text("writeId"),
        most_messages=words.number("messagesPerPublish", at_least=1),
        most_bytes=words.number("bytesPerPublish", at_least=1),
    )
    if options.exactly_once and options.has_keys:
        raise BadOption("keys and exactlyOnce exclude each other: either each row has a key or each part")
    for is_wanted, name in ((options.exactly_once, "exactlyOnce"), (options.has_keys, "keys")):
        if is_wanted and not options.where.nsqd:
            raise BadOption(
                f"{name} needs the option nsqd, the same list in every run: repeats must go to the same nsqd"
            )
    return options


def names_for(taker: Taker) -> list[str]:
    """Return the names of its options, in the documented spelling."""
    return [name for name, (takers, _) in OPTIONS.items() if taker in takers]


def unknown_in(given: Iterable[str], taker: Taker) -> str | None:
    """Return the first of these names that it doesn't take. Case doesn't matter, as everywhere in Spark."""
    known = {*map(str.lower, names_for(taker)), *(() if taker == "store" else _SPARKS_OWN)}
    return next((name for name in given if name.lower() not in known), None)


class _Words:
    """Parses options of `format("nsq")`."""

    def __init__(self, given: Mapping[str, str], side: Literal["source", "sink"]) -> None:
        self._given = {name.lower(): text.strip() for name, text in given.items()}
        if (name := unknown_in(given, side)) is not None:
            raise BadOption(_unknown(name, {name.lower(): name for name in names_for(side)}, side))

    def text(self, name: str) -> str:
        return self._given.get(name.lower(), OPTIONS[name][1])

    def is_given(self, name: str) -> bool:
        return name.lower() in self._given

    def several(self, name: str) -> tuple[str, ...]:
        return tuple(word for word in (part.strip() for part in self.text(name).split(",")) if word)

    def number(self, name: str, *, at_least: int) -> int:
        text = self.text(name)
        if not text.isascii() or not text.isdigit() or int(text) < at_least:
            raise BadOption(f"{name}: expected a whole number of at least {at_least}, not {text!r}")
        return int(text)

    def seconds(self, name: str) -> float:
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h)", self.text(name))
        if found is None:
            raise BadOption(f"{name}: expected a duration like 90s, 15m or 1h, not {self.text(name)!r}")
        return float(found[1]) * _SECONDS_OF[found[2]]

    def truth(self, name: str) -> bool:
        text = self.text(name).lower()
        if text not in ("true", "false"):
            raise BadOption(f"{name}: expected true or false, not {self.text(name)!r}")
        return text == "true"


_SECONDS_OF: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _unknown(name: str, known: Mapping[str, str], side: str) -> str:
    close = get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {known[close[0]]}?" if close else f"there are: {', '.join(sorted(known.values()))}"
    return f"the {side} has no option {name}; {hint}"


def _reader(words: _Words) -> Reader | None:
    name, into, kind = words.text("readerName"), words.text("readerInto"), words.text("readerFormat")
    if not name and (into or kind):
        raise BadOption("readerInto and readerFormat need a readerName")
    return Reader(name, into, kind) if name else None


def _where(words: _Words) -> Where:
    lookupd, nsqd = words.several("lookupd"), words.several("nsqd")
    if bool(lookupd) == bool(nsqd):
        raise BadOption("either lookupd or nsqd is needed: HTTP addresses like 127.0.0.1:4161, separated by commas")
    for address in lookupd + nsqd:
        split_address(address)
    return Where(lookupd, nsqd)


def split_address(address: str) -> tuple[str, str, int]:
    """Return (scheme, host, port) of `host:port` or of a URL without a path."""
    found = re.fullmatch(r"(?:(https?)://)?(?:\[([0-9a-fA-F:.]+)\]|([^/\[\]:]+)):([0-9]{1,5})/?", address)
    if found is None:
        raise BadOption(f"{address!r} is not an address: expected host:port or https://host:port, with the HTTP port")
    return found[1] or "http", found[2] or found[3], int(found[4])


def _access(words: _Words) -> Access:
    access = Access(
        words.text("caFile"),
        words.text("certFile"),
        words.text("keyFile"),
        words.text("token"),
        words.number("timeoutSeconds", at_least=1),
        words.several("tokenTo"),
        words.truth("tokenOverHttp"),
        are_named=bool(words.several("nsqd")),
    )
    try:
        Recipients(access.token_to)
    except ValueError as error:
        raise BadOption(f"tokenTo: {error}") from error
    if access.key_file and not access.cert_file:
        raise BadOption("keyFile needs certFile, the certificate that the key belongs to")
    return access


def _topics(words: _Words) -> Topics:
    topics = words.several("topic")
    if not topics:
        raise BadOption("topic is needed: one or several, separated by commas; * and ? stand for any characters")
    for topic in topics:
        if not (_is_pattern(topic) if _has_wildcard(topic) else is_valid_name(topic)):
            raise BadOption(f"topic: {topic!r} is neither a valid name of a topic nor a pattern")
        if topic.endswith("#ephemeral"):
            raise BadOption(f"topic: {topic!r} is not on disk and has no history")
    return Topics(topics)


def _has_wildcard(word: str) -> bool:
    return "*" in word or "?" in word


def _start(words: _Words) -> Bound:
    strategy = words.text("startingOffsetsByTimestampStrategy").lower()
    if strategy not in ("latest", "error"):
        raise BadOption(f"startingOffsetsByTimestampStrategy: expected latest or error, not {strategy!r}")
    return _bound(words, "starting", others=Edge.EARLIEST, required=strategy == "error")


def _bound(words: _Words, which: str, *, others: Edge, required: bool = False) -> Bound:
    offsets, timestamp, times = f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp"
    given = [name for name in (offsets, timestamp, times) if words.is_given(name) and words.text(name)]
    if len(given) > 1:
        raise BadOption(f"either {' or '.join(given)}, not both")
    if given == [timestamp]:
        return At(parse_time(words.text(timestamp), timestamp), required)
    if given == [times]:
        return parse_times(words.text(times), others=others, option=times, required=required)
    return parse_bound(words.text(offsets), others=others, option=offsets, required=required)
