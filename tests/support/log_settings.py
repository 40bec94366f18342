"""Settings of the log with nsqd's defaults, except for those that a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nsqd import start
from nsqd.ack import Ack
from nsqd.log.settings import LogSettings
from nsqd.options import Options

# A test's result must not depend on how full the machine's disk is. Without a broker nobody tells the journal about keys,
# so that a start would look for them in all segments.
_DEFAULTS = start.log_settings(Options(disk_reserve=0, idempotence_window=0), None)


def log_settings(
    *, ack: str = _DEFAULTS.ack, topic_ack: Mapping[str, str] | None = None, **changes: Any
) -> LogSettings:
    topic_acks = {topic: Ack(word) for topic, word in (topic_ack or {}).items()}
    return replace(_DEFAULTS, ack=Ack(ack), topic_ack=topic_acks, **changes)
