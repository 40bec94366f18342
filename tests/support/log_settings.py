"""Settings of the log with nsqd's defaults, except for those that a test is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from nsqd.ack_option import Ack
from nsqd.log.retention import Retention
from nsqd.log.settings import LogPolicy, LogSettings
from nsqd.options import Options

NO_RETENTION: Final = Retention()


def log_settings(
    *,
    ack: str = Ack.WRITTEN,
    topic_ack: Mapping[str, str] | None = None,
    retention: Retention = NO_RETENTION,
    topic_retention: Mapping[str, Retention] | None = None,
    policy: LogPolicy | None = None,
    **options: Any,
) -> LogSettings:
    # A test's result must not depend on how full the machine's disk is. Without a broker nobody tells the journal about
    # keys, so that a start would look for them in all segments.
    given = {"disk_reserve": 0, "idempotence_window": 0, **options}
    return LogSettings(
        Options(
            ack=Ack(ack),
            topic_ack=tuple(f"{topic}={word}" for topic, word in (topic_ack or {}).items()),
            retention_time=retention.time,
            retention_bytes=retention.bytes,
            topic_retention=tuple(
                entry for topic, kept in (topic_retention or {}).items() for entry in _entries(topic, kept)
            ),
            **given,
        ),
        policy,
    )


def _entries(topic: str, retention: Retention) -> Iterator[str]:
    """Yield a topic's entries of --topic-retention."""
    if retention.bytes:
        yield f"{topic}={retention.bytes}B"
    if retention.time or not retention.bytes:
        yield f"{topic}={retention.time}ns"
