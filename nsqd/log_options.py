"""The options of nsqd that are the log's. nsqd's table (options.py) has them, too, and so do `--help` and the pages.

A new one is declared here, and then `settings.options` has it wherever the log knows its settings. What the policy file
may overrule for single topics is asked of `LogSettings` (log/settings.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from nsqcommon.durations import parse_duration
from nsqcommon.options import (
    DURATION,
    INTEGER,
    MINUTE,
    SECOND,
    STRINGS,
    BaseOptions,
    Nanoseconds,
    OptionKind,
    one_of,
    option,
)
from nsqcommon.sizes import parse_size
from nsqd.ack import Ack


def _parse_topic_ack(text: str) -> tuple[str, ...]:
    topic, _, word = text.rpartition("=")
    if not topic or word not in list(Ack):
        raise ValueError(f"must be TOPIC={'|'.join(Ack)}")
    return (text,)


def _convert_topic_acks(value: object) -> tuple[str, ...]:
    return sum(map(_parse_topic_ack, STRINGS.convert(value)), ())


def _convert_size(value: object) -> int:
    return parse_size(str(value))


def _parse_topic_retention(text: str) -> tuple[str, ...]:
    topic, _, _ = text.rpartition("=")
    if not topic or _retention_in(text) is None:
        raise ValueError("must be TOPIC=DURATION or TOPIC=SIZE, as in logs=24h or logs=10GB")
    return (text,)


def _retention_in(entry: str) -> tuple[Nanoseconds, int] | None:
    """Return the time or the bytes in an entry of --topic-retention; the other one is zero. None: it has neither."""
    _, _, word = entry.rpartition("=")
    try:
        return 0, parse_size(word)
    except ValueError:
        pass
    try:
        duration = parse_duration(word)
    except ValueError:
        return None
    return (duration, 0) if duration >= 0 else None


def _convert_topic_retentions(value: object) -> tuple[str, ...]:
    return sum(map(_parse_topic_retention, STRINGS.convert(value)), ())


TOPIC_ACKS: Final[OptionKind[tuple[str, ...]]] = replace(STRINGS, parse=_parse_topic_ack, convert=_convert_topic_acks)

SIZE: Final[OptionKind[int]] = replace(INTEGER, word="size", parse=parse_size, convert=_convert_size)
TOPIC_RETENTIONS: Final[OptionKind[tuple[str, ...]]] = replace(
    STRINGS, parse=_parse_topic_retention, convert=_convert_topic_retentions
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(BaseOptions):
    mem_queue_size: int = option(
        10_000, "messages to keep in memory, per topic; the log on disk has them all", at_least=0
    )
    mem_queue_bytes: int = option(16 << 20, "bytes of messages to keep in memory, per topic", at_least=0)
    max_bytes_per_file: int = option(104_857_600, "size at which a topic's log begins a new file, in bytes", at_least=1)
    sync_every: int = option(2500, "messages written after which a sync to disk is due", at_least=1)
    sync_timeout: Nanoseconds = option(2 * SECOND, "time after which a sync to disk is due", kind=DURATION, at_least=1)
    ack: Ack = option(
        Ack.WRITTEN,
        "when a publisher gets its OK: memory (at once, as NSQ does), written (a crash of nsqd loses nothing), or "
        "synced (a power cut loses nothing)",
        kind=one_of(*Ack),
    )
    topic_ack: tuple[str, ...] = option((), "another --ack for one topic: TOPIC=memory|written|synced", kind=TOPIC_ACKS)
    disk_reserve: int = option(
        -1,
        "bytes of the disk that publishing leaves free for whatever frees space; -1: 5% of the file system, "
        "at most 256 MiB; 0: none",
        at_least=-1,
    )
    retention_time: Nanoseconds = option(
        0,
        "how long messages stay after every channel has finished them; 0: until --retention-bytes, or not at all",
        kind=DURATION,
        at_least=0,
    )
    retention_bytes: int = option(
        0,
        "how much of a topic stays after every channel has finished it; 0: as --retention-time says, or nothing",
        kind=SIZE,
        at_least=0,
    )
    topic_retention: tuple[str, ...] = option(
        (),
        "another retention for one topic, also while it has no channel: TOPIC=DURATION or TOPIC=SIZE, or both in turn",
        kind=TOPIC_RETENTIONS,
    )
    idempotence_window: Nanoseconds = option(
        10 * MINUTE,
        "how long the key of a publish is remembered, so that it is not published twice; 0: keys are refused",
        kind=DURATION,
        at_least=0,
    )
    idempotence_keys: int = option(
        1_000_000,
        "how many keys are remembered at most; the oldest are forgotten first, those of deferred messages last",
        at_least=8,
    )

    @property
    def topic_acks(self) -> dict[str, Ack]:
        """The acknowledgement for each topic of `--topic-ack`. The last entry of a topic counts."""
        return {topic: Ack(word) for topic, _, word in (entry.rpartition("=") for entry in self.topic_ack)}

    @property
    def topic_retentions(self) -> dict[str, tuple[Nanoseconds, int]]:
        """Time and bytes for each topic of `--topic-retention`. Of each kind, the last entry counts."""
        found: dict[str, tuple[Nanoseconds, int]] = {}
        for entry in self.topic_retention:
            topic, _, _ = entry.rpartition("=")
            time, size = _retention_in(entry) or (0, 0)
            before = found.get(topic, (0, 0))
            found[topic] = (time or before[0], size or before[1])
        return found
