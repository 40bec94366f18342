"""The query of a request: arguments, options, positions in a log."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from nsqcommon.durations import parse_duration
from nsqcommon.http_api import HttpError, parse_query
from nsqcommon.options import change, table_of
from nsqd.options import Options

KEYS = [row.key for row in table_of(Options) if row.at_run_time]


def run(data: bytes, random: Random) -> None:
    with suppress(HttpError):
        parse_query(data)
    text = data.decode("utf-8", "replace")
    with suppress(ValueError):
        parse_duration(text)
    with suppress(ValueError):
        change(Options(), random.choice(KEYS), text)
