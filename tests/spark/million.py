"""History is there for whoever comes later: two new queries read a topic from its first message, each all of it and once,
and the consumer of a channel, who works meanwhile, notices nothing.

The long version: `python -m tests.spark.million --messages 1000000`. It prints its counts.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet

from nsqpipe.session import open_session
from scripts.command_line import option, read_options
from tests.spark.kill9 import PATIENCE, Seen
from tests.support.client import Client
from tests.support.process import Nsqd
from tests.support.spark import KEPT, address, numbered, patiently, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class Result:
    messages: int
    found: tuple[Seen, ...]  # the numbers that each query found
    consumed: list[int]
    channel: dict[str, int]

    def __str__(self) -> str:
        queries = "; ".join(
            f"{len(seen)} messages, {seen.missing(self.messages)} missing, {seen.duplicates} duplicates"
            for seen in self.found
        )
        channel = ", ".join(f"{name} {count}" for name, count in self.channel.items())
        return f"{self.messages} published; queries: {queries}; the consumer: {len(self.consumed)}, channel: {channel}"

    @property
    def is_right(self) -> bool:
        whole = [
            len(seen) == self.messages and not seen.missing(self.messages) + seen.duplicates for seen in self.found
        ]
        undisturbed = {"message_count": self.messages, "depth": 0, "requeue_count": 0, "timeout_count": 0}
        return all(whole) and sorted(self.consumed) == list(range(self.messages)) and self.channel == undisturbed


class Consumer(threading.Thread):
    """Finishes all messages of a channel, one after the other."""

    def __init__(self, client: Client, messages: int) -> None:
        super().__init__(daemon=True)
        self.consumed: list[int] = []
        self._client = client
        self._messages = messages

    def run(self) -> None:
        self._client.subscribe("orders", "c", ready=500)
        while len(self.consumed) < self._messages:
            message = self._client.message(PATIENCE)
            self.consumed.append(int(message.body))
            self._client.finish(message)


def run(spark: SparkSession, folder: Path, messages: int) -> Result:
    with Nsqd(folder / "data", KEPT) as nsqd:
        nsqd.post("/topic/create?topic=orders")
        nsqd.post("/channel/create?topic=orders&channel=c")
        publish(nsqd, "orders", numbered(messages))
        consumer = Consumer(nsqd.connect(), messages)
        consumer.start()
        queries = [
            _land(spark, nsqd, folder / "one"),
            _land(spark, nsqd, folder / "two", maxRowsPerTrigger=messages // 5),
        ]
        for query in queries:
            assert query.awaitTermination(PATIENCE), "a query did not end"
        consumer.join(PATIENCE)
        names = ("message_count", "depth", "requeue_count", "timeout_count")
        patiently(lambda: nsqd.channel("orders")["in_flight_count"] == 0)  # the last FIN is on its way
        channel = {name: nsqd.channel("orders")[name] for name in names}
    found = tuple(Seen(pyarrow.parquet.read_table(folder / name)["body"].chunks) for name in ("one", "two"))
    return Result(messages, found, consumer.consumed, channel)


def _land(spark: SparkSession, nsqd: Nsqd, table: Path, **options: int) -> StreamingQuery:
    reader = spark.readStream.format("nsq").schema("body binary").options(nsqd=address(nsqd), topic="orders", **options)
    writer = reader.load().writeStream.format("parquet").trigger(availableNow=True)
    return writer.option("checkpointLocation", f"{table}.checkpoint").start(str(table))


@dataclass(frozen=True, kw_only=True)
class MillionOptions:
    messages: int = option(1_000_000, "how many")


def main() -> int:
    given = read_options(MillionOptions, name="python -m tests.spark.million", about=__doc__)
    with tempfile.TemporaryDirectory(prefix="nsq-million-") as folder:
        result = run(open_session("million"), Path(folder), given.messages)
    sys.stdout.write(f"{result}\n")
    return 0 if result.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
