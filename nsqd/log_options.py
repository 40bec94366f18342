"""nsqd's options for the log. `Options` (options.py) inherits them, so `--help` and the reference list them.

To add one, declare it here; the log's code then reads it from `settings.options`. If the policy file can override it
for a topic, the log asks `LogSettings` (log/settings.py) instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from nsqcommon.durations import parse_long_duration
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
from nsqd.ack_option import Ack


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
    """Return (duration, bytes) of a --topic-retention entry, or None if it is invalid.

    The entry sets only one of the two, and the other is 0: `logs=24h` sets a duration, and `logs=10GB` a size.
    """
    _, _, word = entry.rpartition("=")
    try:
        return 0, parse_size(word)
    except ValueError:
        pass
    try:
        duration = parse_long_duration(word)
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
        10_000, "messages of a topic to cache in memory; all of them are in the log on disk", at_least=0
    )
    mem_queue_bytes: int = option(16 << 20, "bytes of a topic's messages to cache in memory", at_least=0)
    max_bytes_per_file: int = option(104_857_600, "size of a topic's log file, in bytes, before a new one", at_least=1)
    sync_every: int = option(2500, "sync to disk after this many messages", at_least=1)
    sync_timeout: Nanoseconds = option(2 * SECOND, "sync to disk at least this often", kind=DURATION, at_least=1)
    ack: Ack = option(
        Ack.WRITTEN,
        "when a publisher gets its OK: memory (immediately, as in NSQ), written (messages survive a crash of nsqd), "
        "synced (messages survive a power cut), or remote (messages survive the loss of the machine; needs --remote)",
        kind=one_of(*Ack),
    )
    topic_ack: tuple[str, ...] = option(
        (), "override --ack for a topic: TOPIC=memory|written|synced|remote", kind=TOPIC_ACKS
    )
    disk_reserve: int = option(
        -1,
        "bytes of disk space to keep free by refusing publishes, because freeing space takes some; -1: 5% of the file "
        "system, at most 256 MiB; 0: none",
        at_least=-1,
    )
    retention_time: Nanoseconds = option(
        0,
        "how long to keep messages that all channels have finished; 0: no time limit if --retention-bytes is set, "
        "otherwise not at all",
        kind=DURATION,
        at_least=0,
    )
    retention_bytes: int = option(
        0,
        "how many bytes of a topic to keep after all channels have finished them; 0: no size limit if --retention-time "
        "is set, otherwise none",
        kind=SIZE,
        at_least=0,
    )
    topic_retention: tuple[str, ...] = option(
        (),
        "override the retention of a topic, even while it has no channel: TOPIC=DURATION or TOPIC=SIZE; repeat for both",
        kind=TOPIC_RETENTIONS,
    )
    idempotence_window: Nanoseconds = option(
        10 * MINUTE,
        "how long to remember the key of a publish, so that a repeat isn't published again; 0: refuse keys",
        kind=DURATION,
        at_least=0,
    )
    idempotence_keys: int = option(
        1_000_000,
        "how many keys to remember; above it the oldest are forgotten, but keys of deferred messages last",
        at_least=8,
    )

    @property
    def topic_acks(self) -> dict[str, Ack]:
        """The --topic-ack entries by topic. A later entry replaces an earlier one."""
        return {topic: Ack(word) for topic, _, word in (entry.rpartition("=") for entry in self.topic_ack)}

    @property
    def topic_retentions(self) -> dict[str, tuple[Nanoseconds, int]]:
        """The (duration, bytes) in --topic-retention, by topic. A later entry replaces an earlier one of the same kind."""
        found: dict[str, tuple[Nanoseconds, int]] = {}
        for entry in self.topic_retention:
            topic, _, _ = entry.rpartition("=")
            time, size = _retention_in(entry) or (0, 0)
            before = found.get(topic, (0, 0))
            found[topic] = (time or before[0], size or before[1])
        return found
