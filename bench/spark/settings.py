"""The options of `python -m bench spark`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench.settings import Settings
from scripts.command_line import option

PARTS: Final = ("batches", "sink", "latency", "landing", "highest", "recovery")
ONE_SIZE: Final = ("landing", "recovery")  # the demand is for one size, or size hardly matters


def _parts(text: str) -> tuple[str, ...]:
    asked = tuple(text.split(","))
    for part in asked:
        if part not in PARTS:
            raise ValueError(f"there is no part {part!r}; there are: {', '.join(PARTS)}")
    return asked


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


@dataclass(kw_only=True)
class SparkSettings(Settings):
    only: tuple[str, ...] = option(PARTS, f"some of: {', '.join(PARTS)}", word="PART,...", parse=_parts)
    sizes: tuple[int, ...] = option(
        (200, 1024),
        f"of a message; {' and '.join(ONE_SIZE)} have the first one only (default: 200,1024)",
        word="BYTES,...",
        parse=_numbers,
    )
    runs: int = option(5, "runs of each batch job and the sink")
    count: int = option(1_000_000, "messages to read or write")
    megabytes: int = option(400, "megabytes of messages at most, for large messages")
    batch: int = option(200, "messages in one MPUB")
    rates: tuple[int, ...] = option(
        (1_000, 10_000, 50_000),
        "messages a second for latency (default: 1000,10000,50000)",
        word="RATE,...",
        parse=_numbers,
    )
    seconds: int = option(15, "seconds at each of these rates")
    landing_rate: int = option(100_000, "messages a second for landing")
    minute: int = option(60, "seconds of landing, and of the highest rate")
    tries: int = option(4, "halvings until the highest rate")
    try_seconds: int = option(12, "seconds of each try")
    recovery_rate: int = option(10_000, "messages a second for recovery")
    kills: int = option(3, "kill -9 of Spark")
